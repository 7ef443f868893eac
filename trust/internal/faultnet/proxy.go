package faultnet

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Proxy stands in front of one server. Its faults apply to present and new connections.
type Proxy struct {
	tb    testing.TB
	proxy *toxiproxy.Proxy
	lost  atomic.Int64
}

// NewProxy starts a proxy in front of an address; the test's cleanup ends it.
func NewProxy(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &Proxy{tb: tb, proxy: toxiproxy.NewProxy(server, tb.Name(), "127.0.0.1:0", upstream)}
	if err := p.proxy.Start(); err != nil {
		tb.Fatalf("faultnet: %v", err)
	}
	tb.Cleanup(p.proxy.Stop)
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.proxy.Listen }

// Cut swallows all bytes, in both directions: nothing is reset, connections can be
// made and lead nowhere. It looks like a partition, or a firewall that forgot.
func (p *Proxy) Cut() {
	p.tb.Helper()
	for _, stream := range []string{"upstream", "downstream"} {
		toxic := fmt.Sprintf(`{"type":"timeout","stream":%q,"attributes":{"timeout":0}}`, stream)
		if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			p.tb.Fatalf("faultnet: %v", err)
		}
	}
}
