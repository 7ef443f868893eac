package faultnet

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/Shopify/toxiproxy/v2/toxics"
)

// LoseAnswers ends connections at random before an answer of the server: one in n writes of
// the server. The client cannot know whether its request was carried out.
func (p *Proxy) LoseAnswers(n int) {
	p.tb.Helper()
	register()
	losers.Store(p.Addr(), p)
	p.tb.Cleanup(func() { losers.Delete(p.Addr()) })
	toxic := fmt.Sprintf(`{"type":%q,"stream":"downstream","attributes":{"proxy":%q,"n":%d}}`, losingType, p.Addr(), n)
	if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		p.tb.Fatalf("faultnet: %v", err)
	}
}

// Lost returns how many connections were ended by [Proxy.LoseAnswers].
func (p *Proxy) Lost() int64 { return p.lost.Load() }

const losingType = "interlock_losing"

var (
	register = sync.OnceFunc(func() { toxics.Register(losingType, new(losing)) })
	losers   sync.Map // of the address to its *Proxy: toxiproxy makes each toxic of JSON
)

// losing is the toxic of [Proxy.LoseAnswers].
type losing struct {
	Proxy string `json:"proxy"`
	N     int    `json:"n"`
}

// Pipe implements [toxics.Toxic]. After the end of the connection it takes what the server still
// sends, or the goroutine that reads from the server would wait for ever.
func (l *losing) Pipe(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			switch {
			case c == nil:
				stub.Close()
				return
			case stub.Closed():
			case rand.N(l.N) > 0:
				stub.Output <- c
			default:
				if p, ok := losers.Load(l.Proxy); ok {
					p.(*Proxy).lost.Add(1)
				}
				stub.Close()
			}
		}
	}
}
