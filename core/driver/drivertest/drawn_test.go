package drivertest_test

import (
	"context"
	"testing"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/drawn"
)

// asks has the fields of requests that the plays have.
var asks drawn.Fields[driver.AcquireRequest]

// noted is a store that notes its requests.
type noted struct{ *memstore.Store }

func (s noted) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	asks.Note(req)
	return s.Store.Acquire(ctx, req)
}

func (s noted) Stand(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	asks.Note(req)
	return s.Store.Stand(ctx, req)
}

// A field of a request that no play has is held by no store.
func TestThePlaysHaveEachFieldOfARequest(t *testing.T) {
	t.Run("plays", func(t *testing.T) {
		drivertest.RunInBubbles(t, func(*testing.T) driver.Store { return noted{memstore.New()} })
	})
	asks.WantAll(t)
}
