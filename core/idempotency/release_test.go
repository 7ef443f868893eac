package idempotency_test

import (
	"context"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
)

// releasing is a store that notes which requests bring the release of a lock along.
type releasing struct {
	*memstore.Store
	brought []bool
}

func (s *releasing) Commit(ctx context.Context, ask record.CommitRequest) (record.CommitReply, error) {
	s.brought = append(s.brought, ask.Release != nil)
	return s.Store.Commit(ctx, ask)
}

func (s *releasing) Abandon(ctx context.Context, ask record.AbandonRequest) error {
	s.brought = append(s.brought, ask.Release != nil)
	return s.Store.Abandon(ctx, ask)
}

// A store sends a request that brings a release along with the release, on another
// goroutine. An endpoint without a lock did not need that, and had it for each response.
func TestOnlyAnEndpointWithALockBringsItsRelease(t *testing.T) {
	store := &releasing{Store: memstore.New()}
	locker, err := core.New(store.Store)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	under := engine.With(idempotency.Under(core.Serialize(locker, "account")))
	n := 0
	for i, c := range []struct {
		engine *idempotency.Engine
		status int
		brings bool
	}{{engine, 200, false}, {engine, 503, false}, {under, 200, true}, {under, 503, true}} {
		serve(t.Context(), c.engine, post(`"`+string(rune('a'+i))+`"`), answers(c.status, &n))
		if len(store.brought) != i+1 || store.brought[i] != c.brings {
			t.Errorf("status %d: %v", c.status, store.brought)
		}
	}
	if err := engine.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := locker.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
