//go:build integration

package quorum_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/core/quorum"
)

func TestTheStoreKeepsItsContract(t *testing.T) {
	nodes := newGroup(t, 3)
	drivertest.Run(t, func(t *testing.T) driver.Store {
		return inStep{nodes.store(t, quorum.NodeTimeout(2*time.Second))}
	})
}

// inStep is a quorum that returns from a call when all nodes have carried the request
// out, and not only a majority. So a node that lags, on a machine with much other work,
// does not make a list that differs from the lists of the other nodes.
type inStep struct{ *quorum.Store }

// Acquire repeats a request that too few nodes have answered: for a vote on a short lease a
// node has a twelfth of it. Votes that its owner has by then are granted again.
func (s inStep) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	for end := time.Now().Add(15 * time.Second); ; {
		rep, err := s.Store.Acquire(ctx, ask)
		s.wait()
		if !rep.Ambiguous && !errors.Is(err, driver.ErrUnavailable) || ctx.Err() != nil || time.Now().After(end) {
			return rep, err
		}
	}
}

func (s inStep) Release(ctx context.Context, ask driver.ReleaseRequest) (found driver.Waiting, err error) {
	defer s.wait()
	return s.Store.Release(ctx, ask)
}

// Renew repeats what too few nodes have answered in their time.
func (s inStep) Renew(ctx context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	var mu sync.Mutex
	var again []int
	s.Store.Renew(ctx, batch, func(i int, contended bool, err error) {
		if errors.Is(err, driver.ErrUnavailable) && ctx.Err() == nil {
			mu.Lock()
			defer mu.Unlock()
			again = append(again, i)
			return
		}
		done(i, contended, err)
	})
	for _, i := range again {
		s.Renew(ctx, batch[i:i+1], func(_ int, contended bool, err error) { done(i, contended, err) })
	}
}

// wait ends after a second also when other calls keep the nodes busy.
func (s inStep) wait() {
	for end := time.Now().Add(time.Second); s.Busy() && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
	}
}
