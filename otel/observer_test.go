package otellock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestALockIsTwoSpansUnderTheCallersAndTheStoresCommandsAreBelow(t *testing.T) {
	inWorld(t, func(w *world) {
		var inStore trace.SpanContext
		w.store.acquires = func(ctx context.Context) { inStore = trace.SpanContextFromContext(ctx) }
		w.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Fault{Before: 2 * time.Second} })
		begin := time.Now()
		lease := w.lock("k", core.Name("debit"))
		if got := trace.SpanFromContext(lease.Context()); got != w.caller {
			w.Error("the handler runs under another span than the caller's")
		}
		time.Sleep(3 * time.Second)
		w.release(lease)

		acquire, release := w.span("lock acquire debit", 0), w.span("lock release debit", 0)
		wantSpan(w, acquire, w.caller, codes.Unset, "rule=debit", "key_hash="+hashOfK, "outcome=granted",
			"contended=false", "attempts=1", "reentered=false", "token=yes")
		wantSpan(w, release, w.caller, codes.Unset, "rule=debit", "key_hash="+hashOfK, "outcome=released",
			"handed_over=false", "reentered=false", "token=yes")
		if !inStore.Equal(acquire.SpanContext()) {
			w.Error("the store was asked under another span than the acquire's")
		}
		for s, want := range map[sdktrace.ReadOnlySpan][2]time.Duration{
			acquire: {0, 2 * time.Second}, release: {5 * time.Second, 7 * time.Second},
		} {
			if from, to := s.StartTime().Sub(begin), s.EndTime().Sub(begin); from != want[0] || to != want[1] {
				w.Errorf("%s from %v to %v, want %v", s.Name(), from, to, want)
			}
		}
		w.wantCounts("acquire.duration{granted debit} 1, 2 s", "hold.duration{released debit} 1, 3 s",
			"attempts{debit} 1", "waiters{debit} 0", "leases{debit} 0")
		if core.Hashed("k").Hash() != hashOfK {
			w.Error("the hash of a key has changed: what was recorded is not found by it any more")
		}
	})
}

func TestTheSpanOfAWorkerWithoutANameSaysThatItBeganWithATicket(t *testing.T) {
	inWorld(t, func(w *world) {
		lease := w.lock("k", core.Name("r"))
		ticket, err := lease.HandOver(w.ctx, time.Minute)
		if err != nil {
			w.Fatal(err)
		}
		w.release(lease)
		next, err := w.locker.TakeOver(w.ctx, ticket)
		if err != nil {
			w.Fatal(err)
		}
		w.release(next)
		wantSpan(w, w.span("lock acquire takeover", 0), w.caller, codes.Unset, "rule=takeover", "key_hash="+hashOfK,
			"outcome=granted", "contended=false", "attempts=1", "reentered=false", "token=yes")
	})
}

// Alerts and dashboards are by rule: a series without the label is in none of their rows.
func TestALockWithoutANameHasTheLabelOfARule(t *testing.T) {
	inWorld(t, func(w *world) {
		w.release(w.lock("k"))
		permit, err := w.locker.Permit(w.ctx, "p", 3)
		if err != nil {
			w.Fatal(err)
		}
		w.release(permit)
		wantSpan(w, w.span("lock acquire _UNNAMED", 0), w.caller, codes.Unset, "rule=_UNNAMED", "key_hash="+hashOfK, "outcome=granted",
			"contended=false", "attempts=1", "reentered=false", "token=yes")
		w.span("lock release _UNNAMED", 1)
		w.wantCounts("acquire.duration{granted _UNNAMED} 1, 0 s", "hold.duration{released _UNNAMED} 1, 0 s",
			"attempts{_UNNAMED} 1", "waiters{_UNNAMED} 0", "leases{_UNNAMED} 0",
			"acquire.duration{permit granted _UNNAMED} 1, 0 s", "hold.duration{permit released _UNNAMED} 1, 0 s",
			"attempts{permit _UNNAMED} 1", "waiters{permit _UNNAMED} 0", "leases{permit _UNNAMED} 0")
	})
}

func TestAWaiterIsCountedWhileItWaitsAndAHolderWhileItHolds(t *testing.T) {
	inWorld(t, func(w *world) {
		first := w.lock("k", core.Name("r"))
		done := make(chan struct{})
		go func() {
			defer close(done)
			second := w.lock("k", core.Name("r"))
			time.Sleep(time.Second)
			w.release(second)
		}()
		time.Sleep(3 * time.Second)
		w.wantCounts("acquire.duration{granted r} 1, 0 s", "attempts{r} 1", "waiters{r} 1", "leases{r} 1")
		w.release(first)
		<-done
		w.wantCounts("acquire.duration{granted r} 2, 3 s", "hold.duration{released r} 2, 4 s",
			"attempts{r} 1", "renewals{renewed r} 1", "waiters{r} 0", "leases{r} 0") // renewed to ask whether others wait
		wantSpan(w, w.span("lock acquire r", 1), w.caller, codes.Unset, "rule=r", "key_hash="+hashOfK,
			"outcome=granted", "contended=true", "attempts=0", "reentered=false", "token=yes")
		wantSpan(w, w.span("lock release r", 0), w.caller, codes.Unset, "rule=r", "key_hash="+hashOfK,
			"outcome=released", "handed_over=true", "reentered=false", "token=yes")
	})
}

func TestALeaseThatIsHandedOverHasItsOutcomeAndATicketThatIsUsedUpIsNoFault(t *testing.T) {
	inWorld(t, func(w *world) {
		lease := w.lock("k", core.Name("r"))
		time.Sleep(3 * time.Second)
		ticket, err := lease.HandOver(w.ctx, time.Minute)
		if err != nil {
			w.Fatal(err)
		}
		w.release(lease)
		next, err := w.locker.TakeOver(w.ctx, ticket, core.Name("worker"))
		if err != nil {
			w.Fatal(err)
		}
		if _, err := w.locker.TakeOver(w.ctx, ticket, core.Name("again")); !errors.Is(err, core.ErrTicketTaken) {
			w.Error(err)
		}
		time.Sleep(2 * time.Second)
		w.release(next)
		wantSpan(w, w.span("lock release r", 0), w.caller, codes.Unset, "rule=r", "key_hash="+hashOfK,
			"outcome=handed_over", "handed_over=false", "reentered=false", "token=yes")
		wantSpan(w, w.span("lock acquire worker", 0), w.caller, codes.Unset, "rule=worker", "key_hash="+hashOfK,
			"outcome=granted", "contended=false", "attempts=1", "reentered=false", "token=yes")
		if s := w.span("lock acquire again", 0); s.Status().Code != codes.Unset {
			w.Errorf("a message that came again is a fault: %+v", s.Status())
		}
		w.wantCounts("acquire.duration{granted r} 1, 0 s", "hold.duration{handed_over r} 1, 3 s", "attempts{r} 1",
			"waiters{r} 0", "leases{r} 0", "acquire.duration{granted worker} 1, 0 s", "hold.duration{released worker} 1, 2 s",
			"attempts{worker} 1", "waiters{worker} 0", "leases{worker} 0", "acquire.duration{held again} 1, 0 s",
			"attempts{again} 1", "waiters{again} 0")
	})
}

func TestEveryWayNotToGetALockHasItsOutcome(t *testing.T) {
	fails := func(err error) func(w *world) error {
		return func(w *world) error {
			w.store.Intercept(failing(err))
			_, err := w.locker.Lock(w.ctx, "k", core.Name("r"))
			return err
		}
	}
	for name, c := range map[string]struct {
		do     func(w *world) error
		want   string
		status codes.Code
		waits  time.Duration
	}{
		"held elsewhere": {func(w *world) error {
			w.store.Take("k", time.Minute)
			_, err := w.locker.TryLock(w.ctx, "k", core.Name("r"))
			return err
		}, "held", codes.Unset, 0},
		"held for the whole wait": {func(w *world) error {
			w.store.Take("k", time.Minute)
			_, err := w.locker.Lock(w.ctx, "k", core.Name("r"), core.Wait(2*time.Second))
			return err
		}, "held", codes.Unset, 2 * time.Second},
		"too many wait": {func(w *world) error {
			w.store.Take("k", 5*time.Second)
			done := make(chan struct{})
			go func() { defer close(done); w.release(w.lock("k", core.Name("other"))) }()
			synctest.Wait()
			_, err := w.locker.Lock(w.ctx, "k", core.Name("r"), core.MaxWaiters(1))
			<-done
			return err
		}, "queue_full", codes.Unset, 0},
		"the caller left": {func(w *world) error {
			w.store.Take("k", time.Minute)
			gone := errors.New("connection closed")
			ctx, cancel := context.WithCancelCause(w.ctx)
			time.AfterFunc(time.Second, func() { cancel(gone) })
			_, err := w.locker.Lock(ctx, "k", core.Name("r"))
			return err
		}, "canceled", codes.Unset, time.Second},
		"the caller's time had ended": {func(w *world) error {
			w.store.Take("k", time.Minute)
			ctx, cancel := context.WithTimeout(w.ctx, time.Second)
			defer cancel()
			_, err := w.locker.Lock(ctx, "k", core.Name("r"))
			return err
		}, "deadline", codes.Unset, time.Second},
		"the store is down":    {fails(core.ErrUnavailable), "unavailable", codes.Error, 0},
		"the store says so":    {fails(errors.New("ERR")), "unavailable", codes.Error, 0},
		"too few replicas":     {fails(core.ErrNotReplicated), "not_replicated", codes.Error, 0},
		"the lease above lost": {doUnderALostLease, "lost", codes.Error, 0},
		"the process closes": {func(w *world) error {
			w.store.Take("k", time.Minute)
			time.AfterFunc(time.Second, func() { _ = w.locker.Close(w.ctx) })
			_, err := w.locker.Lock(w.ctx, "k", core.Name("r"))
			return err
		}, "closing", codes.Error, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				if err := c.do(w); err == nil {
					w.Fatal("the lock was granted")
				}
				s := w.span("lock acquire r", 0)
				attrs := map[attribute.Key]string{}
				for _, kv := range s.Attributes() {
					attrs[kv.Key] = kv.Value.Emit()
				}
				if attrs["interlock.outcome"] != c.want || attrs["error.type"] != c.want || s.Status().Code != c.status {
					w.Errorf("attributes %v, status %v; want %s, %v", attrs, s.Status(), c.want, c.status)
				}
				if _, ok := attrs["interlock.token"]; ok {
					w.Error("a token without a grant")
				}
				if got := w.counts("interlock.acquire.duration"); !slices.Contains(got, fmt.Sprintf("acquire.duration{%s r} 1, %g s", c.want, c.waits.Seconds())) {
					w.Errorf("measured %q", got)
				}
			})
		})
	}
}

// doUnderALostLease re-enters a lock that was lost.
func doUnderALostLease(w *world) error {
	outer := w.lock("k", core.Name("outer"), core.TTL(time.Second))
	<-outer.Context().Done()
	_, err := w.locker.Lock(outer.Context(), "k", core.Name("r"))
	return err
}

func TestAReenteredLockIsSeenInTheTraceAndIsNoSecondLease(t *testing.T) {
	inWorld(t, func(w *world) {
		outer := w.lock("k", core.Name("outer"))
		inner, err := w.locker.Lock(outer.Context(), "k", core.Name("inner"))
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Second)
		w.wantCounts("acquire.duration{granted outer} 1, 0 s", "attempts{outer} 1",
			"waiters{outer} 0", "waiters{inner} 0", "leases{outer} 1")
		w.release(outer) // the inner hold goes on, and with it the lock
		w.release(inner)
		wantSpan(w, w.span("lock acquire inner", 0), w.caller, codes.Unset, "rule=inner", "key_hash="+hashOfK,
			"outcome=granted", "contended=false", "attempts=0", "reentered=true", "token=yes")
		wantSpan(w, w.span("lock release inner", 0), w.caller, codes.Unset, "rule=inner", "key_hash="+hashOfK,
			"outcome=released", "handed_over=false", "reentered=true", "token=yes")
		w.wantCounts("acquire.duration{granted outer} 1, 0 s", "attempts{outer} 1", "hold.duration{released outer} 1, 1 s",
			"waiters{outer} 0", "waiters{inner} 0", "leases{outer} 0")
	})
}

func TestALeaseOfSeveralLocksIsOneLease(t *testing.T) {
	inWorld(t, func(w *world) {
		lease, err := w.locker.LockAll(w.ctx, []string{"m", "k"}, core.Name("transfer"))
		if err != nil {
			w.Fatal(err)
		}
		w.wantCounts("acquire.duration{granted transfer} 1, 0 s", "attempts{transfer} 2",
			"waiters{transfer} 0", "leases{transfer} 1")
		w.release(lease)
		both := `["` + hashOfK + `","` + core.Hashed("m").Hash() + `"]`
		wantSpan(w, w.span("lock acquire transfer", 0), w.caller, codes.Unset, "rule=transfer", "key_count=2", "key_hashes="+both,
			"outcome=granted", "contended=false", "attempts=2", "reentered=false", "token=yes")
		wantSpan(w, w.span("lock release transfer", 0), w.caller, codes.Unset, "rule=transfer", "key_count=2", "key_hashes="+both,
			"outcome=released", "handed_over=false", "reentered=false", "token=yes")

		// All or none: a lock that was taken and given back is no lease.
		w.store.Take("m", time.Minute)
		if _, err := w.locker.LockAll(w.ctx, []string{"k", "m"}, core.Name("transfer"), core.Wait(time.Second)); !errors.Is(err, core.ErrHeld) {
			w.Fatal(err)
		}
		w.wantCounts("acquire.duration{granted transfer} 1, 0 s", "acquire.duration{held transfer} 1, 1 s",
			"hold.duration{released transfer} 1, 0 s", "attempts{transfer} 5", "waiters{transfer} 0", "leases{transfer} 0")
		if n := strings.Count(fmt.Sprint(w.names()), "release"); n != 1 {
			w.Errorf("%d release spans: %v", n, w.names())
		}
	})
}

func TestManyKeysAreCountedAndTheFirstOfThemNamed(t *testing.T) {
	inWorld(t, func(w *world) {
		var keys []string
		for i := range 40 {
			keys = append(keys, fmt.Sprintf("k%02d", i))
		}
		lease, err := w.locker.LockAll(w.ctx, keys)
		if err != nil {
			w.Fatal(err)
		}
		w.release(lease)
		for _, kv := range w.span("lock acquire _UNNAMED", 0).Attributes() {
			if kv.Key == "interlock.key_hashes" && len(kv.Value.AsStringSlice()) != 16 ||
				kv.Key == "interlock.key_count" && kv.Value.AsInt64() != 40 {
				w.Errorf("%v", kv)
			}
		}
	})
}

func TestALockThatSortsBeforeAHeldOneIsMarked(t *testing.T) {
	inWorld(t, func(w *world) {
		outer := w.lock("k", core.Name("outer"))
		for _, key := range []string{"a", "z"} {
			lease, err := w.locker.Lock(outer.Context(), key, core.Name(key))
			if err != nil {
				w.Fatal(err)
			}
			w.release(lease)
		}
		w.release(outer)
		for key, want := range map[string]bool{"a": true, "z": false} {
			marked := slices.ContainsFunc(w.span("lock acquire "+key, 0).Attributes(), func(kv attribute.KeyValue) bool {
				return kv.Key == "interlock.disordered" && kv.Value.AsBool()
			})
			if marked != want {
				w.Errorf("%s marked: %v", key, marked)
			}
		}
	})
}

func TestRenewalsAreCountedAndOnlyFailuresAreSpans(t *testing.T) {
	inWorld(t, func(w *world) {
		lease := w.lock("k", core.Name("r"), core.Watchdog(30*time.Second))
		time.Sleep(25 * time.Second) // renewed at 10 and 20
		w.store.Intercept(func(r memstore.Request) memstore.Fault {
			w.store.Intercept(nil)
			err := fmt.Errorf("%w: %s: connection reset", core.ErrUnavailable, r.Op)
			return memstore.Fault{Before: 100 * time.Millisecond, Err: err}
		})
		time.Sleep(10 * time.Second) // fails at 30, succeeds at 31.1
		w.release(lease)
		w.wantCounts("acquire.duration{granted r} 1, 0 s", "hold.duration{released r} 1, 35 s", "attempts{r} 1",
			"renewals{renewed r} 3", "renewals{unavailable r} 1", "waiters{r} 0", "leases{r} 0")
		s := w.span("lock renew r", 0)
		wantSpan(w, s, w.caller, codes.Error, "rule=r", "key_hash="+hashOfK, "outcome=unavailable", "error.type=unavailable")
		if took := s.EndTime().Sub(s.StartTime()); took != 100*time.Millisecond {
			w.Errorf("the renewal's span took %v", took)
		}
		if len(w.spans.Ended()) != 3 {
			w.Errorf("spans: %v", w.names())
		}
	})
}
