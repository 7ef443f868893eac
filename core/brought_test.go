package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
)

// consume runs a message with a ticket under a rule.
func consume(ctx context.Context, rule *core.Guard, ticket core.Ticket, handler func(lease *core.Lease)) reason.Reason {
	message := &adapter.Message{Name: "settle", Metadata: map[string]string{"account": "42"}}
	refusal := rule.Do(core.WithTicket(ctx, ticket), message, func(ctx context.Context) bool {
		handler(core.LeaseFromContext(ctx))
		return true
	})
	if refusal != nil {
		return refusal.Reason
	}
	return ""
}

// A message is delivered twice: one consumer goes on with the lock, the other waits in turn.
func TestARuleGoesOnWithTheTicketOfAMessageThatIsDeliveredTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		producer, consumer := watched(t, s), watched(t, s)
		rule := core.Serialize(consumer, "account/{account}", core.Wait(time.Minute), core.Watchdog(20*time.Second))
		lease := held(t, producer, t.Context(), "account/42")
		ticket := handOver(t, lease, time.Hour)
		var tokens []int64
		begun := make(chan struct{}, 2)
		again := make(chan reason.Reason, 1)
		begin := time.Now()
		why := consume(t.Context(), rule, ticket, func(first *core.Lease) {
			tokens = append(tokens, first.Token())
			go func() {
				again <- consume(t.Context(), rule, ticket, func(second *core.Lease) {
					begun <- struct{}{}
					tokens = append(tokens, second.Token())
				})
			}()
			synctest.Wait()
			if len(begun) > 0 {
				t.Error("both deliveries of the message ran at once")
			}
		})
		if took := time.Since(begin); why != "" || took != 0 {
			t.Errorf("refused with %q after %v; want the lock at once", why, took)
		}
		if why := <-again; why != "" || len(tokens) != 2 || tokens[0] <= lease.Token() || tokens[1] <= tokens[0] {
			t.Errorf("the second delivery: %q, tokens %v after %d", why, tokens, lease.Token())
		}
		release(t, held(t, producer, t.Context(), "account/42", core.Wait(0))) // it is free
		release(t, lease)
	})
}

// A rule that needs another lock, or the lock in another way, is not the rule of the ticket.
func TestATicketServesOneRuleThatNeedsItsLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := watched(t, s)
		ticket := handOver(t, held(t, l, t.Context(), "account/42"), time.Hour)
		for name, rule := range map[string]*core.Guard{
			"another key":  core.Serialize(l, "tenant/{account}", core.Wait(0)),
			"permits":      core.AtMost(l, 2, "account/{account}", core.Wait(0)),
			"several keys": core.Serialize(l, "account/{account}", core.And("tenant/1"), core.Wait(0)),
		} {
			want := reason.Reason("")
			if name != "another key" {
				want = reason.Held
			}
			if why := consume(t.Context(), rule, ticket, func(*core.Lease) {}); why != want && (want == "" || why != reason.Full) {
				t.Errorf("%s: refused with %q; want %q, as without a ticket", name, why, want)
			}
		}
		rule := core.Serialize(l, "account/{account}", core.Wait(0))
		why := consume(t.Context(), rule, ticket, func(outer *core.Lease) {
			message := &adapter.Message{Metadata: map[string]string{"account": "42"}}
			refusal := rule.Do(outer.Context(), message, func(ctx context.Context) bool {
				if inner := core.LeaseFromContext(ctx); inner.Token() != outer.Token() {
					t.Errorf("the inner rule has the token %d; want that of the outer, %d", inner.Token(), outer.Token())
				}
				return true
			})
			if refusal != nil {
				t.Errorf("the inner rule refuses: %v", refusal)
			}
		})
		if why != "" {
			t.Errorf("refused with %q", why)
		}
	})
}

func TestATicketThatCannotBeUsedRefusesTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, other := watched(t, s), newLocker(t, memstore.New())
		never := func(*core.Lease) { t.Error("the handler ran") }
		ticket := handOver(t, held(t, l, t.Context(), "account/42"), time.Hour)
		if why := consume(t.Context(), core.Serialize(other, "account/{account}"), ticket, never); why != reason.Misconfigured {
			t.Errorf("in another store: %q; want %s", why, reason.Misconfigured)
		}
		s.Intercept(moves(memstore.Fault{Err: driver.ErrRevoked}))
		if why := consume(t.Context(), core.Serialize(l, "account/{account}"), ticket, never); why != reason.StaleToken {
			t.Errorf("after an operator's release: %q; want %s", why, reason.StaleToken)
		}
		s.Intercept(nil)
		l = watched(t, newStore())
		ticket = handOver(t, held(t, l, t.Context(), "account/42"), time.Minute)
		time.Sleep(2 * time.Minute)
		ran := false
		if why := consume(t.Context(), core.Serialize(l, "account/{account}"), ticket, func(*core.Lease) { ran = true }); why != "" || !ran {
			t.Errorf("after its time: %q, ran %v; want the lock in turn", why, ran)
		}
	})
}
