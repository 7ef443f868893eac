//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
)

// A process is stopped in its payments for longer than its lease. Another makes
// them, and then the first wakes.
func TestAPaymentOfAStoppedProcessIsMadeOnceByAnother(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client(t)
	const lease = 3 * time.Second
	stopped := startServing(t, server.Addr(), "-faults", "-work", "0", "-lease", lease.String())
	other := startServing(t, server.Addr(), "-faults", "-work", "0", "-lease", lease.String())
	other.putAll()
	pays, under := make(map[string]payment), make(map[string]<-chan reply)
	for _, c := range stopped.clients {
		front := c.frontend()
		pays[front] = payment{payer: "carol", key: rand.Text(), account: front, amount: 10}
		slow := pays[front]
		slow.behaviour = "delay=1h"
		under[front] = later(func() reply { return c.pay(t.Context(), slow) })
	}
	// The lock is taken after the claim. Its first renewal shows that the process has read
	// the grant: one that was stopped before has lost nothing.
	left, renewed := make(map[string]time.Duration), make(map[string]bool)
	redistest.Eventually(t, 10*time.Second, func(ctx context.Context) (err error) {
		for id := range pays {
			before, now := left[id], rdb.PTTL(ctx, "interlock:{account/"+id+"}").Val()
			left[id] = now
			if renewed[id] = renewed[id] || before > 0 && now > before; !renewed[id] {
				err = fmt.Errorf("the payment through %s is not under way", id)
			}
		}
		return err
	})
	stopped.signal(syscall.SIGSTOP)
	made := make(map[string]reply)
	for _, c := range other.clients {
		redistest.Eventually(t, 5*lease, func(ctx context.Context) error {
			made[c.frontend()] = c.pay(ctx, pays[c.frontend()])
			if made[c.frontend()].reason == "idempotency-in-flight" {
				return errors.New("the stopped process's claim has not lapsed")
			}
			return nil
		})
		if a := made[c.frontend()]; !a.done() || a.replayed || a.account.Balance != 90 {
			t.Errorf("after the lapse through %s: %+v", c.frontend(), a)
		}
	}
	stopped.signal(syscall.SIGCONT)
	// It notices at once, long before the delay is over.
	for front, u := range under {
		if a := <-u; a.reason != "lost" {
			t.Errorf("the stopped process through %s: %+v", front, a)
		}
	}
	for _, p := range []*process{stopped, other} {
		for _, c := range p.clients {
			if a := c.pay(t.Context(), pays[c.frontend()]); !a.replayed || a.payment != made[c.frontend()].payment {
				t.Errorf("once more through %s: %+v, want %+v", c.frontend(), a, made[c.frontend()])
			}
		}
	}
	for _, front := range frontends {
		other.wantBalance(front, 90)
	}
}
