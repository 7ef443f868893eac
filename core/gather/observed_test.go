package gather_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/testkit"
)

// gathered is an observer that keeps the descriptions of batches.
type gathered struct {
	mu  sync.Mutex
	all []string
}

func (g *gathered) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{Gathered: func(b observe.Gathered) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.all = append(g.all, fmt.Sprint(op.Rule, " ", op.Keys, ": ", b.Items, " items after ", b.Queued, " in ", b.Took, ", left ", b.Left, ", ", b.Err))
	}}
}

func TestAnObserverGetsTheSizeAndTheTimesOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testkit.LogTo(t)
		watch := &gathered{}
		locker := testkit.LockerOn(t, memstore.New(), core.WithObserver(watch))
		group := gather.New(locker, func(_ context.Context, _ string, batch []int) ([]int, error) {
			time.Sleep(3500 * time.Millisecond)
			if len(batch) == 1 {
				return batch, errors.New("full")
			}
			return batch, nil
		}, core.Name("debits"), gather.Most(2))
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { _, _ = group.Do(t.Context(), "k", i) })
			time.Sleep(time.Second)
		}
		all.Wait()
		synctest.Wait()
		watch.mu.Lock()
		defer watch.mu.Unlock()
		const want = "[debits [k]: 1 items after 0s in 3.5s, left 0, full " +
			"debits [k]: 2 items after 2.5s in 3.5s, left 1, <nil> " +
			"debits [k]: 1 items after 4s in 3.5s, left 0, full]"
		if got := fmt.Sprint(watch.all); got != want {
			t.Errorf("the observer got\n%s; want\n%s", got, want)
		}
	})
}
