package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
)

func newEngine(t *testing.T, store idempotency.Store, opts ...idempotency.Option) *idempotency.Engine {
	t.Helper()
	e, err := idempotency.New(store, append([]idempotency.Option{idempotency.Global()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("closing the engine: %v", err)
		}
	})
	return e
}

// counting makes a function that counts its runs, and does something before it returns.
func counting(runs *int, do func(ctx context.Context)) func(context.Context, string) (string, error) {
	return func(ctx context.Context, _ string) (string, error) {
		*runs++
		do(ctx)
		return fmt.Sprint("run ", *runs), nil
	}
}

func nothing(context.Context) {}

func TestAClaimIsRenewedInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		e, runs := newEngine(t, store), 0
		got, err := once.Do(t.Context(), e, "k", "", counting(&runs, func(context.Context) {
			time.Sleep(4 * time.Minute)
			all := store.Records()
			if len(all) != 1 || all[0].State != record.StateInFlight || all[0].Left <= 0 || all[0].Generation != 1 {
				t.Errorf("while the function runs: %+v", all)
			}
		}))
		if got != "run 1" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		if n := store.Requests(memstore.Extend); n < 20 {
			t.Errorf("%d renewals in four minutes", n)
		}
		if all := store.Records(); len(all) != 1 || all[0].State != record.StateCompleted || all[0].Response == "" {
			t.Errorf("at the end: %+v", all)
		}
	})
}

func TestAnotherProcessTakesAClaimAndCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		e, runs := newEngine(t, store), 0
		if _, err := once.Do(t.Context(), e, "done", "", counting(&runs, nothing)); err != nil {
			t.Fatal(err)
		}
		answer := store.Records()[0].Response
		var commit func(string)
		_, err := once.Do(t.Context(), e, "k", "", counting(&runs, func(ctx context.Context) {
			commit = store.TakeClaims(time.Minute)
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, core.ErrLost) {
				t.Errorf("the context ended with %v; want ErrLost", cause)
			}
		}))
		if !errors.Is(err, core.ErrLost) && !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("the process that lost its claim: %v", err)
		}
		if _, err := once.Do(t.Context(), e, "k", "", counting(&runs, nothing)); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("while the other process has the claim: %v; want ErrInFlight", err)
		}
		commit(answer)
		commit("too late") // the record has an answer
		if got, err := once.Do(t.Context(), e, "k", "", counting(&runs, nothing)); got != "run 1" || err != nil {
			t.Errorf("after the other process has stored its answer: %q, %v", got, err)
		}
		if runs != 2 {
			t.Errorf("%d runs; want 2", runs)
		}
	})
}

func TestAClaimThatLapsesWakesItsDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		req := record.ClaimRequest{ID: "r", Token: "silent", Lease: time.Hour, Retention: time.Hour}
		if _, err := store.Claim(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		woken := make(chan struct{}, 1)
		stop := store.Await("r", time.Now(), func() { woken <- struct{}{} })
		defer stop()
		if all := store.Records(); len(all) != 1 || all[0].Waiting != 1 || all[0].Left != time.Hour {
			t.Errorf("before: %+v", all)
		}
		if n := store.LapseClaims(); n != 1 {
			t.Errorf("%d claims lapsed", n)
		}
		<-woken
		if all := store.Records(); len(all) != 1 || all[0].Left != 0 {
			t.Errorf("after: %+v", all)
		}
		req.Token = "next"
		if rep, err := store.Claim(t.Context(), req); err != nil || rep.State != record.StateGranted || rep.Generation != 2 {
			t.Errorf("the next claim: %+v, %v", rep, err)
		}
	})
}

func TestADamagedRecordFailsUntilItIsForgotten(t *testing.T) {
	store := memstore.New()
	ctx := t.Context()
	claim := func() error {
		_, err := store.Claim(ctx, record.ClaimRequest{ID: "r", Token: "t", Lease: time.Hour, Retention: time.Hour})
		return err
	}
	if err := claim(); err != nil {
		t.Fatal(err)
	}
	if n := store.DamageRecords(); n != 1 {
		t.Errorf("%d records damaged", n)
	}
	for name, request := range map[string]func() error{
		"claim": claim,
		"extend": func() (err error) {
			store.Extend(ctx, []record.Extension{{ID: "r", Token: "t"}}, func(_ int, e error) { err = e })
			return err
		},
		"mark": func() error { return store.Mark(ctx, record.MarkRequest{ID: "r", Token: "t"}) },
		"commit": func() error {
			_, err := store.Commit(ctx, record.CommitRequest{ID: "r", Token: "t"})
			return err
		},
		"abandon": func() error { return store.Abandon(ctx, record.AbandonRequest{ID: "r", Token: "t"}) },
		"resolve": func() error { return store.Resolve(ctx, record.ResolveRequest{ID: "r", Token: "u"}) },
	} {
		if err := request(); !errors.Is(err, record.ErrDamaged) {
			t.Errorf("%s: %v; want ErrDamaged", name, err)
		}
	}
	if err := errors.Join(store.Forget(ctx, "r"), claim()); err != nil {
		t.Error(err)
	}
}

func TestAStoreThatLosesItsDataLosesLocksAndRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		lease := mustLock(t, newLocker(t, store), "k")
		e, runs := newEngine(t, store), 0
		do := func() {
			if _, err := once.Do(t.Context(), e, "k", "", counting(&runs, nothing)); err != nil {
				t.Error(err)
			}
		}
		do()
		store.Empty()
		if _, token, held := store.Holder("k"); held || len(store.Records()) != 0 {
			t.Errorf("the lock is held: %v, and there are the records %+v", held, store.Records())
		} else if rep, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Hour}); err != nil ||
			!rep.Granted || rep.Token <= max(token, lease.Token()) {
			t.Errorf("a token after the loss: %+v, %v; the token before was %d", rep, err, lease.Token())
		}
		do()
		if runs != 2 {
			t.Errorf("%d runs; want 2, since the record was lost", runs)
		}
		if err := lease.Release(t.Context()); !errors.Is(err, core.ErrLost) {
			t.Errorf("Release: %v; want ErrLost", err)
		}
	})
}

func TestFaultsOfRecords(t *testing.T) {
	only := func(op memstore.Op, fault memstore.Fault) func(memstore.Request) memstore.Fault {
		return func(r memstore.Request) memstore.Fault {
			if r.Op == op {
				return fault
			}
			return memstore.Fault{}
		}
	}
	t.Run("a lost reply to a claim is cleaned up", func(t *testing.T) {
		for name, fault := range map[string]memstore.Fault{
			"reply": memstore.LostReply, "request": memstore.LostRequest, "slow": memstore.Delay(time.Minute),
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := memstore.New()
					e, runs := newEngine(t, store), 0
					store.Intercept(only(memstore.Claim, fault))
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if _, err := once.Do(ctx, e, "k", "", counting(&runs, nothing)); err == nil || runs != 0 {
						t.Errorf("%d runs, %v", runs, err)
					}
					time.Sleep(10 * time.Minute)
					if all := store.Records(); len(all) != 0 {
						t.Errorf("left behind: %+v", all)
					}
				})
			})
		}
	})
	t.Run("a lost reply to a commit does not run the function again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			e, runs := newEngine(t, store), 0
			store.Intercept(only(memstore.Commit, memstore.LostReply))
			for range 2 {
				if got, err := once.Do(t.Context(), e, "k", "", counting(&runs, nothing)); got != "run 1" || err != nil {
					t.Errorf("%q, %v", got, err)
				}
			}
			store.Intercept(nil)
		})
	})
	t.Run("a request that is slower than its caller waits comes all the same", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(time.Minute) })
			released := 0
			_, err := store.Commit(t.Context(), record.CommitRequest{
				ID: "r", Token: "t", Response: []byte("answer"), Retention: time.Hour,
				Deadline: time.Now().Add(time.Second), Release: func(context.Context) { released++ },
			})
			if !errors.Is(err, core.ErrUnavailable) || released != 1 {
				t.Errorf("Commit: %v; Release was called %d times", err, released)
			}
			time.Sleep(time.Minute)
			if all := store.Records(); len(all) != 1 || all[0].State != record.StateCompleted {
				t.Errorf("the commit that came late has left %+v", all)
			}
		})
	})
}

func TestRecordsThatHaveExpiredAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		for i := range 10_000 {
			req := record.CommitRequest{ID: fmt.Sprint(i), Token: "t", Retention: time.Second, Tombstone: time.Second}
			if _, err := store.Commit(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := memstore.Kept(store); n > 4_000 {
			t.Errorf("%d records and tombstones are kept, and one record has not expired", n)
		}
	})
}
