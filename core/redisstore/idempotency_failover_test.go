package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// What a replica has acknowledged outlives the master: the answer that was stored,
// and the mark of a request whose process dies with it.
func TestRecordsOutliveAFailover(t *testing.T) {
	t.Parallel()
	set := redistest.Sentinel(t, 1)
	rdb := set.Client(t)
	// Longer than a second for the replica would make the end longer, when there is none.
	e := newEngine(t, newStore(t, rdb, redisstore.Replicas(1, time.Second)), idempotency.Lease(10*time.Second))
	var bank bank
	want(t, "first", do(t.Context(), e, pay("k"), bank.run), fresh(1))
	run, running, release := hold(bank.run)
	got := make(chan result, 1)
	go func() {
		got <- do(t.Context(), e, pay("marked"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			begin := time.Now()
			err := idempotency.MarkEffect(ctx)
			if errors.Is(err, core.ErrUnavailable) && time.Since(begin) >= 900*time.Millisecond { // the machine stood still
				err = idempotency.MarkEffect(ctx)
			}
			if err != nil {
				t.Error(err)
			}
			return run(ctx, a)
		})
	}()
	<-running
	replica := set.Replicas[0].Client(t)
	redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error { // a commit waits for no replica
		for _, key := range replica.Keys(ctx, "interlock:idem:*").Val() {
			if replica.HExists(ctx, key, "r").Val() {
				return nil
			}
		}
		return fmt.Errorf("the replica does not have the answer")
	})
	set.Master.Kill()
	set.AwaitFailover(t, set.Master)
	// The lease has not ended: what is in flight for that alone proves no mark.
	redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		for _, key := range replica.Keys(ctx, "interlock:idem:*").Val() {
			if replica.HExists(ctx, key, "m").Val() {
				return nil
			}
		}
		return fmt.Errorf("the new master does not have the mark")
	})
	// One replica is left, and it is the master: nobody could acknowledge more.
	other := newEngine(t, newStore(t, rdb), idempotency.Lease(time.Second)) // it is granted nothing
	eventually := func(what, key string, wanted result) {
		t.Helper()
		redistest.Eventually(t, 30*time.Second, func(context.Context) error {
			if r := do(t.Context(), other, pay(key), bank.run); r != wanted {
				return fmt.Errorf("%s: %+v; want %+v", what, r, wanted)
			}
			return nil
		})
	}
	eventually("again", "k", replayed(1))
	eventually("in flight, for all that is known", "marked", refused("idempotency-in-flight"))
	close(release)
	want(t, "the holder", <-got, fresh(2))
	eventually("in the end", "marked", replayed(2))
}
