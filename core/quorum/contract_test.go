package quorum_test

import (
	"errors"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
)

func TestTheStoreKeepsItsContract(t *testing.T) {
	nodes := newGroup(t, 3)
	drivertest.Run(t, func(t *testing.T) driver.Store { return nodes.store(t) })
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
