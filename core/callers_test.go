package core_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
)

// called is a request of a service that was sent under a context.
func called(held string) *adapter.Message {
	return &adapter.Message{Name: "debit", Metadata: map[string]string{core.HeldHeader: held}}
}

// serve runs a request under a rule, and returns the reason of its refusal.
func serveCalled(ctx context.Context, rule *core.Guard, held string) (why reason.Reason, took time.Duration) {
	begin := time.Now()
	refusal := rule.Do(ctx, called(held), func(context.Context) bool { return true })
	if refusal != nil {
		why = refusal.Reason
	}
	return why, time.Since(begin)
}

func lockers(t *testing.T, store *memstore.Store, n int) (all []*core.Locker) {
	t.Helper()
	for range n {
		l, err := core.New(store)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = l.Close(ctx)
		})
		all = append(all, l)
	}
	return all
}

// A service that locks what its caller holds would wait for its own caller, for as long as its
// rule waits.
func TestARequestForALockOfItsCallerIsRefusedAtOnce(t *testing.T) {
	for name, same := range map[string]bool{"of another process": false, "of the same process": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := lockers(t, memstore.New(), 2)
				if same {
					all[1] = all[0]
				}
				lease, err := all[0].Lock(t.Context(), "account/42")
				if err != nil {
					t.Fatal(err)
				}
				held := core.HeldFor(lease.Context())
				rule := core.Serialize(all[1], "account/42", core.Wait(time.Minute))
				for range 2 {
					if why, took := serveCalled(t.Context(), rule, held); why != reason.HeldByCaller || took != 0 {
						t.Errorf("%q after %v; want held-by-caller at once", why, took)
					}
				}
				if why, _ := serveCalled(t.Context(), core.Serialize(all[1], "account/42", core.Wait(0)), held); why != reason.HeldByCaller {
					t.Errorf("a rule that does not wait: %q; want held-by-caller", why)
				}
				// Through a service in between, which holds another lock.
				middle := core.Serialize(all[1], "order/7")
				refusal := middle.Do(t.Context(), called(held), func(ctx context.Context) bool {
					if why, took := serveCalled(t.Context(), rule, core.HeldFor(ctx)); why != reason.HeldByCaller || took != 0 {
						t.Errorf("through a service: %q after %v; want held-by-caller at once", why, took)
					}
					return true
				})
				if refusal != nil {
					t.Error(refusal)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				if why, _ := serveCalled(t.Context(), rule, held); why != "" {
					t.Errorf("after the release: %q; want the lock", why)
				}
				if again := core.HeldFor(lease.Context()); again != "" {
					t.Errorf("a lease that was released is sent as %q", again)
				}
			})
		})
	}
}

// The request waits after others of its process when the store names the holder.
func TestARequestInTheQueueIsRefusedWhenItsCallerHoldsTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := lockers(t, memstore.New(), 2)
		lease, err := all[0].Lock(t.Context(), "account/42")
		if err != nil {
			t.Fatal(err)
		}
		rule := core.Serialize(all[1], "account/42", core.Wait(time.Minute))
		first := make(chan reason.Reason)
		go func() { why, _ := serveCalled(t.Context(), rule, ""); first <- why }()
		synctest.Wait() // it has asked the store, and waits
		if why, took := serveCalled(t.Context(), rule, core.HeldFor(lease.Context())); why != reason.HeldByCaller || took != 0 {
			t.Errorf("%q after %v; want held-by-caller at once", why, took)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if why := <-first; why != "" {
			t.Errorf("the request of another caller: %q; want the lock", why)
		}
	})
}

// The header grants nothing, and only its own request is refused by it.
func TestALockOfAnotherCallerIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := memstore.New(), memstore.New()
		here, elsewhere := lockers(t, one, 2), lockers(t, other, 1)
		lease, err := here[0].Lock(t.Context(), "account/42")
		if err != nil {
			t.Fatal(err)
		}
		same, err := elsewhere[0].Lock(t.Context(), "account/42") // the same key on another store
		if err != nil {
			t.Fatal(err)
		}
		rule := core.Serialize(here[1], "account/42", core.Wait(2*time.Second))
		for name, held := range map[string]string{
			"of another store": core.HeldFor(same.Context()),
			"none":             "",
			"no base64":        "!!!!",
			"cut":              core.HeldFor(lease.Context())[:9],
			"10 kB":            strings.Repeat("A", 10<<10),
			"forged":           strings.Repeat("A", 171),
		} {
			if why, took := serveCalled(t.Context(), rule, held); why != reason.Held || took < 2*time.Second {
				t.Errorf("%s: %q after %v; want held after 2 s", name, why, took)
			}
		}
		_ = lease.Release(t.Context())
		_ = same.Release(t.Context())
	})
}

// A request that gets a place next to its caller's does not wait for the caller.
func TestAPlaceBesideTheCallerIsGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := lockers(t, memstore.New(), 2)
		lease, err := all[0].LockShared(t.Context(), "account/42")
		if err != nil {
			t.Fatal(err)
		}
		held := core.HeldFor(lease.Context())
		if why, took := serveCalled(t.Context(), core.Share(all[1], "account/42"), held); why != "" || took != 0 {
			t.Errorf("%q after %v; want a place beside the caller's", why, took)
		}
		if why, took := serveCalled(t.Context(), core.Serialize(all[1], "account/42", core.Wait(time.Minute)), held); why != reason.HeldByCaller || took != 0 {
			t.Errorf("%q after %v; want held-by-caller at once", why, took)
		}
		_ = lease.Release(t.Context())
	})
}

// A request for a permit waits for its own callers only if they hold all of them.
func TestARequestForAPermitOfItsCallersIsRefusedAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		permits int
		callers int // of the permits
		others  int
		why     reason.Reason
	}{
		"the one permit":                    {1, 1, 0, reason.HeldByCaller},
		"both permits":                      {2, 2, 0, reason.HeldByCaller},
		"one of two, the other is free":     {2, 1, 0, ""},
		"one of two, the other of a client": {2, 1, 1, reason.Full},
	} {
		for _, same := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in one process: %v", name, same), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					all := lockers(t, memstore.New(), 3)
					if same {
						all[1], all[2] = all[0], all[0]
					}
					service := all[1]
					held, wait := "", time.Minute
					if c.why == reason.Full {
						wait = 2 * time.Second
					}
					for i := range c.callers + c.others {
						lease, err := all[2*(i%2)].Lock(t.Context(), "export/acme", core.Permits(c.permits))
						if err != nil {
							t.Fatal(err)
						}
						defer func() { _ = lease.Release(context.WithoutCancel(t.Context())) }()
						if i < c.callers {
							held = core.HeldFor(core.WithHeld(lease.Context(), held))
						}
					}
					rule := core.AtMost(service, c.permits, "export/acme", core.Wait(wait))
					first := make(chan reason.Reason, 1)
					if c.why == reason.HeldByCaller { // also after a request of another client
						go func() {
							why, _ := serveCalled(t.Context(), core.AtMost(service, c.permits, "export/acme", core.Wait(wait)), "")
							first <- why
						}()
						synctest.Wait()
						defer func() {
							if why := <-first; why != reason.Full {
								t.Errorf("the request of another client: %q; want it to wait", why)
							}
						}()
					}
					why, took := serveCalled(t.Context(), rule, held)
					if why != c.why || (took >= wait) != (why == reason.Full) {
						t.Errorf("%q after %v; want %q", why, took, c.why)
					}
				})
			})
		}
	}
}

// A service in between that holds nothing keeps the knowledge of its callers.
func TestEveryRulePassesTheLocksOfTheCallersOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := lockers(t, memstore.New(), 2)
		lease, err := all[0].Lock(t.Context(), "account/42")
		if err != nil {
			t.Fatal(err)
		}
		held := core.HeldFor(lease.Context())
		inner := core.Serialize(all[1], "account/42", core.Wait(time.Minute))
		claim := func(context.Context, []core.Fence) error { return nil }
		for name, middle := range map[string]*core.Guard{
			"Serialize":           core.Serialize(all[1], "order/7"),
			"Fenced":              core.Fenced("order/7", claim, core.AllowUnfenced()),
			"Relay":               core.Relay(),
			"CheckAnswer, OnLost": core.Serialize(all[1], "order/8", core.CheckAnswer(), core.OnLost(func(core.Loss) {})),
		} {
			refusal := middle.Do(t.Context(), called(held), func(ctx context.Context) bool {
				if why, took := serveCalled(t.Context(), inner, core.HeldFor(ctx)); why != reason.HeldByCaller || took != 0 {
					t.Errorf("called by a handler under %s: %q after %v; want held-by-caller at once", name, why, took)
				}
				return true
			})
			if refusal != nil {
				t.Errorf("%s: the refusal %+v; want the request let through", name, refusal)
			}
		}
		_ = lease.Release(t.Context())
	})
}

func TestTheHeaderOfManyLocksIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lockers(t, memstore.New(), 1)[0]
		ctx := t.Context()
		for key := range 20 {
			lease, err := l.Lock(ctx, "key/"+string(rune('a'+key)))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = lease.Release(context.WithoutCancel(ctx)) }()
			ctx = lease.Context() //nolint:fatcontext // twenty locks, each under the one before
		}
		if held := core.HeldFor(ctx); len(held) != 171 {
			t.Errorf("%d bytes for 20 locks; want the 171 of 16", len(held))
		}
		if core.HeldFor(t.Context()) != "" {
			t.Error("a context without a lock holds something")
		}
	})
}
