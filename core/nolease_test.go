package core_test

import (
	"context"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/logtest"
)

func TestAHandlerWithoutALeaseMayAskForItsToken(t *testing.T) {
	logtest.Default(t)
	s := newStore()
	s.Intercept(always(memstore.Unreachable))
	l := newLocker(t, s)
	ran := false
	core.Serialize(l, "k", core.FailOpen()).Do(t.Context(), noRequest{}, func(ctx context.Context) bool {
		ran = true
		lease := core.LeaseFromContext(ctx)
		if lease.Token() != 0 || lease.Key() != "" || len(lease.Keys()) != 0 || !lease.Deadline().IsZero() {
			t.Errorf("token %d, key %q, keys %q, deadline %v", lease.Token(), lease.Key(), lease.Keys(), lease.Deadline())
		}
		if token, ok := lease.TokenFor("k"); token != 0 || ok {
			t.Errorf("TokenFor: %d, %v", token, ok)
		}
		wantErr(t, lease.Err(), core.ErrNoLease)
		wantErr(t, lease.Check(ctx), core.ErrNoLease)
		wantErr(t, lease.Release(ctx), core.ErrNoLease)
		if err := lease.Context().Err(); err != nil {
			t.Errorf("Context: %v", err)
		}
		return true
	})
	if !ran {
		t.Error("the handler did not run")
	}
	s.Intercept(nil)
}
