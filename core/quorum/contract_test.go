package quorum_test

import (
	"context"
	"errors"
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

// inStep is a quorum whose calls return when all nodes have done what they were asked
// for, and not only a majority. So a node that is behind, on a machine with much other
// work, does not make a list that differs from those of the other nodes.
type inStep struct{ *quorum.Store }

// Acquire repeats a request of which not enough is known: for a vote on a short lease a
// node has a twelfth of it. What its owner has by then it is granted again.
func (s inStep) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	for end := time.Now().Add(15 * time.Second); ; {
		rep, err := s.Store.Acquire(ctx, ask)
		s.wait()
		if !rep.Ambiguous && !errors.Is(err, driver.ErrUnavailable) || ctx.Err() != nil || time.Now().After(end) {
			return rep, err
		}
	}
}

func (s inStep) Release(ctx context.Context, ask driver.ReleaseRequest) (waiting string, err error) {
	defer s.wait()
	return s.Store.Release(ctx, ask)
}

// wait ends after a second also when other calls keep the nodes busy.
func (s inStep) wait() {
	for end := time.Now().Add(time.Second); s.Busy() && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
	}
}

func TestAQuorumHasNoPlaces(t *testing.T) {
	s := newGroup(t, 3).store(t)
	for _, kind := range []driver.Kind{driver.Shared, driver.Permit} {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", Kind: kind, AtMost: 2, TTL: time.Second})
		if !errors.Is(err, driver.ErrConfig) || rep.Granted || rep.Ambiguous {
			t.Errorf("kind %d: %+v, %v; want ErrConfig", kind, rep, err)
		}
	}
}
