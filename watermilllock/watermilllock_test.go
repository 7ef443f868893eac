package watermilllock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	_ "github.com/interlock-go/interlock/internal/bubble"
	"github.com/interlock-go/interlock/watermilllock"
)

func TestAMessageThatIsPublishedAgainIsConsumedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs atomic.Int32
	w.process("orders", watermilllock.Idempotent(w.engine), func(msg *message.Message) ([]*message.Message, error) {
		n := runs.Add(1)
		if name := message.HandlerNameFromCtx(msg.Context()); name != "charge" || idempotency.Generation(msg.Context()) != 1 {
			t.Errorf("the context of the message is of %q", name)
		}
		return receipt(fmt.Sprintf("%s paid by run %d", msg.Payload, n)), nil
	})
	for range 3 {
		w.publish("m1", "order 1", nil)
	}
	w.publish("m2", "order 2", nil)
	if runs.Load() != 2 {
		t.Errorf("%d runs, want 2", runs.Load())
	}
	// The same message each time, since the first may not have come so far.
	receipts := w.published("receipts")
	for i, want := range []string{"order 1 paid by run 1", "order 1 paid by run 1", "order 1 paid by run 1", "order 2 paid by run 2"} {
		if len(receipts) != 4 || string(receipts[i].Payload) != want || receipts[i].Metadata.Get("kind") != "receipt" {
			t.Fatalf("receipt %d: %+v; want %s", i, receipts, want)
		}
	}
	if receipts[0].UUID != receipts[1].UUID || receipts[0].UUID != receipts[2].UUID || receipts[0].UUID == receipts[3].UUID {
		t.Errorf("the UUIDs: %+v", receipts)
	}
}

// byUUID is the key of a message outside of a router.
var byUUID = watermilllock.Key(func(msg *message.Message) string { return "charge/" + msg.UUID })

// refusals is a middleware that reports each refusal for the time being.
func refusals(wrap message.HandlerMiddleware) (counted message.HandlerMiddleware, refused <-chan error) {
	told := make(chan error, 1)
	return func(next message.HandlerFunc) message.HandlerFunc {
		h := wrap(next)
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if errors.Is(err, idempotency.ErrInFlight) || errors.Is(err, core.ErrHeld) {
				select {
				case told <- err:
				default:
				}
			}
			return produced, err
		}
	}, told
}

// A Pub/Sub gives a message that is not acknowledged for a while to another process.
func TestAMessageThatIsClaimedWhileItIsConsumedIsConsumedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs atomic.Int32
	counted, refused := refusals(watermilllock.Idempotent(w.engine, watermilllock.NoDelay()))
	finish := make(chan struct{})
	charge := func(msg *message.Message) ([]*message.Message, error) {
		runs.Add(1)
		<-finish
		return receipt("paid"), context.Cause(msg.Context())
	}
	w.process("orders", counted, charge)
	w.process("orders", counted, charge)
	done := w.deliver("orders", "m1", "order 1", nil) // to both
	if err := <-refused; !errors.Is(err, idempotency.ErrInFlight) {
		t.Errorf("the second process: %v", err)
	}
	close(finish)
	w.acknowledged(done)
	if receipts := w.published("receipts"); runs.Load() != 1 || len(receipts) != 2 || receipts[0].UUID != receipts[1].UUID {
		t.Errorf("%d runs, want 1; receipts %+v", runs.Load(), receipts)
	}
}

func TestWhatBecomesOfAMessage(t *testing.T) {
	t.Parallel()
	broken := errors.New("the bank is closed")
	marked := func(ctx context.Context) error {
		if err := idempotency.MarkEffect(ctx); err != nil {
			return err
		}
		return broken
	}
	returns := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	for name, c := range map[string]struct {
		first  func(ctx context.Context) error // of the first run; later ones succeed
		runs   int32
		poison string // why it is in the poison queue, each time
	}{
		"an error": {first: returns(broken), runs: 2},
		"a panic":  {first: func(context.Context) error { panic("broken") }, runs: 2},
		"final":    {first: returns(once.Final(broken)), runs: 1, poison: "the bank is closed"},
		"marked":   {first: marked, runs: 1, poison: "the bank is closed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var runs atomic.Int32
			w.process("orders", watermilllock.Idempotent(w.engine), func(msg *message.Message) ([]*message.Message, error) {
				if runs.Add(1) == 1 {
					return nil, c.first(msg.Context())
				}
				return nil, nil
			})
			var want []string
			for range 2 {
				w.publish("m1", "order 1", nil)
				if c.poison != "" {
					want = append(want, c.poison)
				}
			}
			w.publish("m1", "order 2", nil)
			want = append(want, "idempotency-key-reused")
			w.publish("", "order 3", nil)
			want = append(want, "idempotency-key-malformed")
			poisoned := w.published("poison")
			if runs.Load() != c.runs || len(poisoned) != len(want) {
				t.Fatalf("%d runs, in the poison queue: %+v; want %d runs and %q", runs.Load(), poisoned, c.runs, want)
			}
			for i, m := range poisoned {
				if reason := m.Metadata.Get(middleware.ReasonForPoisonedKey); !strings.Contains(reason, want[i]) {
					t.Errorf("poisoned by %q; want %q", reason, want[i])
				}
			}
		})
	}
}

// The second message is refused while the first is consumed, and consumed after it.
func TestMessagesOfOneAccountAreConsumedOneAfterTheOther(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(w *world, rule *core.Guard) message.HandlerMiddleware{
		"a rule alone": func(_ *world, rule *core.Guard) message.HandlerMiddleware {
			return watermilllock.Guard(rule, watermilllock.NoDelay())
		},
		"with records": func(w *world, rule *core.Guard) message.HandlerMiddleware {
			return watermilllock.Idempotent(w.engine.With(idempotency.Under(rule)), watermilllock.NoDelay())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			rule := core.Serialize(w.locker, "account/{account}", core.Wait(0))
			var inside, runs atomic.Int32
			running, finish := make(chan struct{}), make(chan struct{})
			charge := func(msg *message.Message) ([]*message.Message, error) {
				if key := core.LeaseFromContext(msg.Context()).Key(); key != "account/42" {
					t.Errorf("consumed under %q", key)
				}
				if inside.Add(1) != 1 {
					t.Error("two messages of one account are consumed at once")
				}
				defer inside.Add(-1)
				if runs.Add(1) == 1 {
					close(running)
					<-finish
				}
				return receipt("paid"), nil
			}
			counted, refused := refusals(wrap(w, rule))
			w.process("orders", counted, charge)
			w.process("others", counted, charge)
			first := w.deliver("orders", "m1", "order", message.Metadata{"account": "42"})
			<-running
			second := w.deliver("others", "m2", "order", message.Metadata{"account": "42"})
			if err := <-refused; !errors.Is(err, core.ErrHeld) {
				t.Errorf("the second message: %v", err)
			}
			close(finish)
			w.acknowledged(first)
			w.acknowledged(second)
			if runs.Load() != 2 {
				t.Errorf("%d runs, want 2", runs.Load())
			}
			w.publish("none", "order", nil)
			poisoned := w.published("poison")
			if len(poisoned) != 1 || !strings.Contains(poisoned[0].Metadata.Get(middleware.ReasonForPoisonedKey), "bad-key") {
				t.Errorf("without an account: %+v", poisoned)
			}
		})
	}
}

// Otherwise a subscriber without a delay would ask for the lock without a pause.
func TestTheNackOfAMessageThatIsRefusedComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		lease, err := w.locker.Lock(t.Context(), "account/42")
		if err != nil {
			t.Fatal(err)
		}
		rule := core.Serialize(w.locker, "account/{account}", core.Wait(0))
		h := watermilllock.Guard(rule)(func(*message.Message) ([]*message.Message, error) { return nil, nil })
		msg := message.NewMessage("m1", nil)
		msg.Metadata.Set("account", "42")
		begin := time.Now()
		if _, err := h(msg); !errors.Is(err, core.ErrHeld) || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := h(msg); err != nil {
			t.Errorf("the lock is free: %v", err)
		}
	})
}

func TestTheDelayOfANackEndsWithTheSubscriber(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dying, err := idempotency.New(w.store, idempotency.Global(), idempotency.Lease(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	h := watermilllock.Idempotent(dying, byUUID)(func(msg *message.Message) ([]*message.Message, error) {
		cancel()
		_ = dying.Close(ctx) // ends the handler's context, and its claim with the lease
		<-msg.Context().Done()
		return nil, context.Cause(msg.Context())
	})
	_, err = h(message.NewMessageWithContext(ctx, "m1", nil))
	var refused *once.RefusedError
	if !errors.As(err, &refused) || refused.RetryAfter != time.Hour {
		t.Errorf("%v", err)
	}
}

func TestTheContextsOfMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	type key struct{}
	own := context.WithValue(t.Context(), key{}, "own")
	handle := func(msg *message.Message) ([]*message.Message, error) {
		inherited := message.NewMessageWithContext(msg.Context(), "inherited", nil)
		chosen := message.NewMessageWithContext(own, "chosen", nil)
		return []*message.Message{message.NewMessage("plain", nil), inherited, chosen, msg}, nil
	}
	rule := core.Serialize(w.locker, "orders")
	for name, wrap := range map[string]message.HandlerMiddleware{
		"Idempotent": watermilllock.Idempotent(w.engine, byUUID), "again": watermilllock.Idempotent(w.engine, byUUID), "Guard": watermilllock.Guard(rule),
	} {
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "message"))
		msg := message.NewMessageWithContext(ctx, "m1", nil)
		produced, err := wrap(handle)(msg)
		if err != nil || len(produced) != 4 {
			t.Fatalf("%s: %v, %v", name, produced, err)
		}
		if msg.Context() != ctx {
			t.Errorf("%s: the message has another context than before", name)
		}
		cancel()
		for _, m := range produced[:3] {
			if m.Context().Err() != nil || m.Context().Value(key{}) == nil {
				t.Errorf("%s: %s is published with a context that has ended (%v), value %v", name, m.UUID, m.Context().Err(), m.Context().Value(key{}))
			}
		}
	}
}

// Two consumers without a name would have one key for a message, and the second would be
// skipped in silence.
func TestAMessageOutsideOfARouterNeedsAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := watermilllock.Idempotent(w.engine, watermilllock.NoDelay())(func(*message.Message) ([]*message.Message, error) {
		t.Error("it ran")
		return nil, nil
	})
	if _, err := h(message.NewMessage("m1", nil)); !once.Permanent(err) || !errors.Is(err, core.ErrKey) {
		t.Errorf("%v; want a refusal for good, with core.ErrKey", err)
	}
}

func TestOptionsAndWhatIsNil(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs int
	wrap := watermilllock.Idempotent(w.engine, nil, watermilllock.Key(nil), watermilllock.With(once.Scoped("acme")),
		watermilllock.Key(func(msg *message.Message) string { return "charge/" + msg.Metadata.Get("order") }))
	h := wrap(func(*message.Message) ([]*message.Message, error) {
		runs++
		return nil, nil
	})
	for _, uuid := range []string{"m1", "m2"} {
		msg := message.NewMessage(uuid, []byte("pay"))
		msg.Metadata.Set("order", "7")
		if _, err := h(msg); err != nil {
			t.Error(err)
		}
	}
	if runs != 1 {
		t.Errorf("an order in two messages was paid %d times", runs)
	}
	if err := w.engine.Forget(t.Context(), once.ScopeOf("acme"), "charge/7"); err != nil {
		t.Fatal(err)
	}
	broken := wrap(func(*message.Message) ([]*message.Message, error) { return []*message.Message{nil}, nil })
	msg := message.NewMessage("m3", []byte("pay"))
	msg.Metadata.Set("order", "8")
	if produced, err := broken(msg); err != nil || len(produced) != 1 {
		t.Errorf("a message that is nil: %v, %v", produced, err)
	}
	if _, err := broken(msg); !errors.Is(err, idempotency.ErrResponseUnavailable) {
		t.Errorf("and again: %v", err)
	}
	for name, f := range map[string]func(){
		"engine": func() { watermilllock.Idempotent(nil) },
		"rule":   func() { watermilllock.Guard(nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a nil %s was accepted", name)
				}
			}()
			f()
		}()
	}
}
