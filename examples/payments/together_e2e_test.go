//go:build unix

package main

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
)

// answers returns once a request gets the answer with the given reason.
func answers(t *testing.T, reason string, request func() reply) {
	t.Helper()
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		if a := request(); a.reason != reason {
			return fmt.Errorf("answered %+v, want %q", a, reason)
		}
		return nil
	})
}

// One process makes a report that does not end by itself. The second shares the account
// with it, and then debits it; the third asks without waiting.
func TestReportsOfProcessesShareAnAccountAndExcludeDebits(t *testing.T) {
	const ttl = 6 * time.Second
	addr := redistest.Shared(t).Addr()
	endless := startServing(t, addr, "-ttl", ttl.String(), "-work", "1h")
	second := startServing(t, addr, "-work", "0", "-wait", "1m")
	third := startServing(t, addr, "-work", "0", "-wait", "0")
	second.put("alice", 100)
	second.put("bob", 100)

	left := int64(100)
	round := func(i int, end func(cancel func())) {
		name := second.clients[i].frontend()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first := later(func() reply { return endless.clients[i].report(ctx, "alice", "bob") })
		// A debit that the account cannot pay changes nothing, whether it gets the lock
		// or not.
		answers(t, "held", func() reply { return third.clients[i].debit(t.Context(), "alice", 1000) })
		for _, p := range []*process{second, third} {
			for _, c := range p.clients {
				a := c.report(t.Context(), "bob", "alice")
				for range 5 {
					if a.reason != "unavailable" { // the third gives the lock's answer a second
						break
					}
					a = c.report(t.Context(), "bob", "alice")
				}
				if !a.done() || a.sum != left+100 {
					t.Errorf("%s: a report through %s beside another: %+v", name, c.frontend(), a)
				}
			}
		}
		debit := later(func() reply { return second.clients[i].debit(t.Context(), "alice", 1) })
		// The debit waits, and keeps new reports out of other processes, and of its own.
		answers(t, "held", func() reply { return third.clients[i].report(t.Context(), "alice", "bob") })
		behind := later(func() reply { return second.clients[i].report(t.Context(), "alice", "bob") })
		select {
		case a := <-debit:
			t.Errorf("%s: a debit during a report: %+v", name, a)
		case a := <-behind:
			t.Errorf("%s: a report before the debit that waits: %+v", name, a)
		case a := <-first:
			t.Errorf("%s: the report that does not end: %+v", name, a)
		case <-time.After(50 * time.Millisecond):
		}
		end(cancel)
		left--
		if a := <-debit; !a.done() || a.account.Balance != left {
			t.Errorf("%s: the debit after the report: %+v, want %d", name, a, left)
		}
		if a := <-behind; !a.done() || a.sum != left+100 {
			t.Errorf("%s: the report after the debit: %+v, want %d", name, a, left+100)
		}
		if a := <-first; a.done() {
			t.Errorf("%s: the report that does not end: %+v", name, a)
		}
	}
	for i := range frontends {
		round(i, func(cancel func()) { cancel() })
	}
	round(0, func(func()) {
		endless.signal(syscall.SIGKILL)
		killed := time.Now()
		answers(t, "", func() reply { return third.clients[0].report(t.Context(), "alice", "bob") })
		// Within the lease and a second; the margin is for a machine that has other work.
		if took := time.Since(killed); took > ttl+15*time.Second {
			t.Errorf("the killed process kept the debit out for %v, with a lease of %v", took, ttl)
		}
	})
	second.wantBalance("alice", left)
}

func TestNoReportOfAnyProcessSeesHalfATransfer(t *testing.T) {
	addr := redistest.Shared(t).Addr()
	ps := []*process{
		startServing(t, addr, "-wait", "1m", "-work", "1ms"),
		startServing(t, addr, "-wait", "1m", "-work", "1ms"),
	}
	ps[0].put("alice", 1000)
	ps[1].put("bob", 1000)
	const each = 10
	var wg sync.WaitGroup
	for _, p := range ps {
		for _, c := range p.clients {
			wg.Go(func() {
				for range each {
					if a := c.transfer(t.Context(), "alice", "bob", 3); !a.done() {
						t.Error(a.failure())
					}
				}
			})
			wg.Go(func() {
				for range 2 * each {
					if a := c.report(t.Context(), "alice", "bob"); !a.done() || a.sum != 2000 {
						t.Errorf("a report through %s: %+v, want 2000", c.frontend(), a)
					}
				}
			})
		}
	}
	wg.Wait()
}

// Three processes call a partner that allows three calls at once. The one that has all
// the permits is killed.
func TestThePermitsOfAKilledProcessComeBack(t *testing.T) {
	const ttl = 2 * time.Second
	p, base, open := gated(t)
	addr := redistest.Shared(t).Addr()
	var ps []*process
	for _, lease := range []time.Duration{ttl, time.Minute, time.Minute} { // only the first one's is waited for
		ps = append(ps, startServing(t, addr, "-ttl", lease.String(), "-wait", "1m", "-partner", base))
	}
	victim, others := ps[0], ps[1:]
	var dead, served []<-chan reply
	for _, c := range victim.clients[1:] {
		dead = append(dead, later(func() reply { return c.rate(t.Context(), "alice") }))
	}
	p.under(t, partnerLimit, partnerLimit)
	for _, o := range others {
		for range 3 {
			for _, c := range o.clients {
				served = append(served, later(func() reply { return c.rate(t.Context(), "bob") }))
			}
		}
	}
	victim.signal(syscall.SIGKILL)
	killed := time.Now()
	p.under(t, partnerLimit, 2*partnerLimit)
	if took := time.Since(killed); took > ttl+15*time.Second {
		t.Errorf("the permits came back after %v, with a lease of %v", took, ttl)
	}
	open()
	for _, s := range served {
		if a := <-s; !a.done() || a.rating != "AA" {
			t.Errorf("a rating by another process: %+v", a)
		}
	}
	for _, d := range dead {
		if a := <-d; a.err == nil {
			t.Errorf("the killed process answered: %+v", a)
		}
	}
	if n, all := p.calls.counts(), len(dead)+len(served); n != (counts{most: partnerLimit, all: all}) {
		t.Errorf("calls at the partner: %+v, want %d, at most %d at once", n, all, partnerLimit)
	}
}
