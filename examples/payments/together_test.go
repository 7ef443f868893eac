package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/internal/redistest"
)

// gated serves a partner whose calls wait until the gate is opened. They end earlier if
// their caller leaves.
func gated(t *testing.T) (p *partner, base string, open func()) {
	t.Helper()
	gate := make(chan struct{})
	open = sync.OnceFunc(func() { close(gate) })
	p = newPartner(func(ctx context.Context) error {
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	srv := httptest.NewServer(p)
	t.Cleanup(func() {
		open()
		srv.Close()
	})
	return p, srv.URL, open
}

// under returns once so many calls are under way, of so many that have begun or more.
func (p *partner) under(t *testing.T, now, all int) {
	t.Helper()
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		if n := p.calls.counts(); n.now != now || n.all < all {
			return fmt.Errorf("the partner has %+v, want %d of %d calls under way", n, now, all)
		}
		return nil
	})
}

func TestReportsOfAllFrontEndsRunTogetherAndExcludeChanges(t *testing.T) {
	begun, proceed := make(chan struct{}), make(chan struct{})
	b := serveTest(t, config{wait: 0}, slow(begun, proceed))
	b.put(t, "alice", "bob")
	var reports []<-chan reply
	for _, c := range b.clients {
		reports = append(reports, later(func() reply { return c.report(t.Context(), "alice", "bob") }))
	}
	for range reports {
		<-begun // all are under way
	}
	for _, c := range b.clients {
		for what, a := range map[string]reply{
			"put":      c.put(t.Context(), "alice", 1),
			"debit":    c.debit(t.Context(), "bob", 1),
			"transfer": c.transfer(t.Context(), "bob", "alice", 1),
		} {
			if a.reason != "held" {
				t.Errorf("%s through %s during reports: %v, want held", what, c.frontend(), a.failure())
			}
		}
		if a := c.get(t.Context(), "alice"); !a.done() || a.account.Balance != 100 {
			t.Errorf("get through %s: %+v", c.frontend(), a)
		}
	}
	for range reports {
		proceed <- struct{}{}
	}
	for i, r := range reports {
		if a := <-r; !a.done() || a.sum != 200 {
			t.Errorf("the report through %s: %+v", frontends[i], a)
		}
	}
	if n := b.reporting.counts(); n.most != len(frontends) || n.now != 0 {
		t.Errorf("reports: %+v, want all %d at once", n, len(frontends))
	}
}

func TestARatingWithoutAPermitIsRefused(t *testing.T) {
	p, base, open := gated(t)
	b := serveTest(t, config{wait: 0, partner: base}, nil)
	var taken []<-chan reply
	for _, c := range b.clients[len(b.clients)-partnerLimit:] {
		taken = append(taken, later(func() reply { return c.rate(t.Context(), "alice") }))
	}
	p.under(t, partnerLimit, partnerLimit)
	for _, c := range b.clients {
		a := c.rate(t.Context(), "bob")
		if _, rpc := c.(rpcClient); a.reason != "full" || rpc && status.Code(a.err) != codes.ResourceExhausted {
			t.Errorf("one more through %s: %v, want full", c.frontend(), a.failure())
		}
	}
	for front, url := range b.urls {
		a := request(t, "GET", url+"/accounts/bob/rating")
		if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" {
			t.Errorf("one more through %s: %d %v", front, a.status, a.header)
		}
	}
	open()
	for _, c := range taken {
		if a := <-c; !a.done() || a.rating != "AA" || a.account.ID != "alice" {
			t.Errorf("a rating with a permit: %+v", a)
		}
	}
	if n := p.calls.counts(); n != (counts{most: partnerLimit, all: partnerLimit}) {
		t.Errorf("calls at the partner: %+v", n)
	}
}

func TestAPartnerThatIsAwayIsSaidSo(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	b := serveTest(t, config{wait: time.Second, partner: srv.URL}, nil)
	for _, away := range []bool{false, true} {
		if away {
			srv.Close()
		}
		for _, c := range b.clients {
			a := c.rate(t.Context(), "alice")
			if _, rpc := c.(rpcClient); a.reason != "partner-unavailable" || rpc && status.Code(a.err) != codes.Unavailable {
				t.Errorf("through %s: %v, want partner-unavailable", c.frontend(), a.failure())
			}
		}
	}
}
