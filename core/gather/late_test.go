package gather_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/internal/lent"
	"github.com/interlock-go/interlock/internal/testkit"
)

// lateContext is a context of a goroutine that stands still when it asks for the lock.
type lateContext struct {
	context.Context
	looks atomic.Int64
	goOn  chan struct{}
}

// Err is called when Do begins, and when the caller asks for the lock.
func (c *lateContext) Err() error {
	if c.looks.Add(1) == 2 {
		<-c.goOn
	}
	return c.Context.Err()
}

// The second caller gets the lock before the first one has asked for it. The section keeps the lock until
// both callers have their results, as a transaction does that waits for their answers.
func TestACallerDoesNotWaitForTheLockOfTheBatchThatHasItsItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testkit.LogTo(t)
		kept := make(chan func(), 2)
		group := gather.New(testkit.Locker(t), func(_ context.Context, _ string, batch []string) ([]string, error) {
			return batch, &lent.Kept{Take: func(release func()) { kept <- release }}
		})
		first := &lateContext{Context: t.Context(), goOn: make(chan struct{})}
		var calls sync.WaitGroup
		var results atomic.Int64
		do := func(ctx context.Context, item string) {
			calls.Go(func() {
				got, err := group.Do(ctx, "k", item)
				if got != item || err != nil {
					t.Errorf("%q, %v; want %q", got, err, item)
				}
				results.Add(1)
			})
			synctest.Wait()
		}
		do(first, "a")
		do(t.Context(), "b")
		close(first.goOn)
		synctest.Wait()
		if n := results.Load(); n != 2 || len(kept) != 1 {
			t.Errorf("%d of 2 callers have their results, and %d batches keep the lock; want 2 of one batch", n, len(kept))
		}
		for results.Load() < 2 || len(kept) > 0 {
			(<-kept)()
			synctest.Wait()
		}
		calls.Wait()
	})
}

func TestACallerDoesNotAskForTheLockWhenItsItemWasTaken(t *testing.T) {
	group := gather.New(testkit.Locker(t), gather.Each(func(_ context.Context, _ string, item int) (int, error) { return item, nil }))
	if group.AsksWhenTaken(t.Context(), "k") {
		t.Error("the caller asks for the lock; want it to wait for its result")
	}
}
