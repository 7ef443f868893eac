package idempotency_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
)

// newer has a newer caller come for the lock of account from another process.
func (w *world) newer(locks *memstore.Store) {
	locker, err := core.New(locks)
	if err != nil {
		w.Fatal(err)
	}
	go func() {
		defer func() { _ = locker.Close(context.Background()) }()
		lease, err := locker.Lock(context.Background(), "account", core.Newest())
		if err != nil {
			w.Error(err)
			return
		}
		_ = lease.Release(context.Background())
	}()
	synctest.Wait()
}

// A request that is superseded has its lock until it has answered: its answer is stored, and its
// transaction committed. Without an answer its outcome is unknown.
func TestARequestThatIsSuperseded(t *testing.T) {
	for name, c := range map[string]struct {
		status int // zero: no answer
		unit   bool
		want   string
		again  string
	}{
		"success":               {200, false, "200 late", "replay 200 late"},
		"success in a unit":     {200, true, "200 late", "replay 200 late"},
		"failure":               {500, false, "500 late", "200 run 1"},
		"without an answer":     {0, false, "ran, then superseded", "idempotency-in-flight"},
		"no answer, and a unit": {0, true, "idempotency-rolled-back", "200 run 1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				locks := memstore.New()
				locker, err := core.New(locks)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = locker.Close(context.Background()) }()
				e := w.engine(idempotency.Under(core.Serialize(locker, "account", core.Newest())))
				h := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
					w.newer(locks)
					<-ctx.Done()
					return endpoint.Response{Status: c.status, Body: []byte("late")}, c.status != 0
				}
				l := &ledger{store: w.store}
				if c.unit {
					h = l.pays(t, h)
				}
				w.want(serve(w.Context(), e, post("k"), h), c.want)
				if want := "[committed]"; c.unit && c.status != 0 && fmt.Sprint(l.ended) != want {
					t.Errorf("the transaction: %v", l.ended)
				}
				synctest.Wait() // the newer caller has come and gone
				n := 0
				w.want(serve(w.Context(), e, post("k"), answers(200, &n)), c.again)
			})
		})
	}
}

// The context of a handler in an engine inside the rule ends, too.
func TestANewerCallerOfALockAroundTheEngineEndsTheHandler(t *testing.T) {
	inBubble(t, func(w *world) {
		locks, e := memstore.New(), w.engine(idempotency.MaxHold(time.Hour))
		_, refusal := w.around(w.Context(), locks, e, ended(t, func() { w.newer(locks) }, core.ErrSuperseded, time.Second), core.Newest())
		if refusal != nil {
			t.Error(refusal) // the engine has answered
		}
	})
}

// A success was stored although its effect was rolled back.
func TestAnAnswerIsNotStoredWithoutItsTransactionIfAnotherLockAroundIsLost(t *testing.T) {
	inBubble(t, func(w *world) {
		outer, inner, n := memstore.New(), memstore.New(), 0
		locker, err := core.New(inner)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = locker.Close(context.Background()) }()
		e, l := w.engine(idempotency.Under(core.Serialize(locker, "account", core.Newest()))), &ledger{store: w.store}
		got, _ := w.around(w.Context(), outer, e, l.pays(t, func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			w.newer(inner)
			<-ctx.Done()
			outer.Expire("account")
			outer.Take("account", time.Hour)
			time.Sleep(15 * time.Second) // longer than until the renewal, which finds that
			return endpoint.Response{Status: 200, Body: []byte("late")}, true
		}))
		w.want(got, "idempotency-rolled-back")
		w.want(fmt.Sprint(l.ended), "[rolled back]")
		synctest.Wait() // the newer caller has come and gone
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "200 run 1")
	})
}
