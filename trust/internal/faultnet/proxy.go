package faultnet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
)

// Proxy stands in front of one server. What is done to it counts for the
// connections that there are and for new ones.
type Proxy struct {
	tb    testing.TB
	proxy *toxiproxy.Proxy
}

// NewProxy starts a proxy in front of an address; the test's cleanup ends it.
func NewProxy(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &Proxy{tb, toxiproxy.NewProxy(server, tb.Name(), "127.0.0.1:0", upstream)}
	if err := p.proxy.Start(); err != nil {
		tb.Fatalf("faultnet: %v", err)
	}
	tb.Cleanup(p.proxy.Stop)
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.proxy.Listen }

// Through makes a client go through the proxy.
func (p *Proxy) Through(o *redis.Options) { o.Addr = p.Addr() }

// Cut swallows all bytes, in both directions: nothing is reset, connections can be
// made and lead nowhere. It looks like a partition, or a firewall that forgot.
func (p *Proxy) Cut() {
	p.tb.Helper()
	p.add("timeout", "upstream", 0)
	p.add("timeout", "downstream", 0)
}

// Delay has all replies arrive later, for good: lead a Wire past the proxy to end it.
// (toxiproxy can block when it takes a delay from a connection that broke meanwhile.)
func (p *Proxy) Delay(d time.Duration) {
	p.tb.Helper()
	p.add("latency", "downstream", d)
}

// Mend ends a Cut. Connections that were cut are closed.
func (p *Proxy) Mend() { p.proxy.Toxics.ResetToxics(context.Background()) }

// add adds a toxic; its one number is called as the toxic's kind demands.
func (p *Proxy) add(kind, stream string, d time.Duration) {
	p.tb.Helper()
	name := "timeout"
	if kind == "latency" {
		name = "latency"
	}
	if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
		`{"type":%q,"stream":%q,"attributes":{%q:%d}}`, kind, stream, name, d.Milliseconds()))); err != nil {
		p.tb.Fatalf("faultnet: %v", err)
	}
}
