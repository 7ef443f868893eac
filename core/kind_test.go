package core_test

import (
	"context"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

// Of two ways to hold a lock in one call neither can be meant.
func TestOneCallHoldsALockInOneWay(t *testing.T) {
	l := newLocker(t, memstore.New())
	ctx := t.Context()
	nothing := func(context.Context) error { t.Error("it runs"); return nil }
	for name, refused := range map[string]func() (*core.Lease, error){
		"Permit with Permits":     func() (*core.Lease, error) { return l.Permit(ctx, "k", 1, core.Permits(5)) },
		"TryPermit with Shared":   func() (*core.Lease, error) { return l.TryPermit(ctx, "k", 1, core.Shared()) },
		"LockShared with Permits": func() (*core.Lease, error) { return l.LockShared(ctx, "k", core.Permits(1)) },
		"Lock with both":          func() (*core.Lease, error) { return l.Lock(ctx, "k", core.Permits(1), core.Shared()) },
		"Share with Permits":      func() (*core.Lease, error) { return nil, guardError(l, core.Shared(), core.Permits(1)) },
		"Lead with Shared":        func() (*core.Lease, error) { return nil, core.Lead(ctx, l, "k", nothing, core.Shared()) },
		"Lead with Permits":       func() (*core.Lease, error) { return nil, core.Lead(ctx, l, "k", nothing, core.Permits(3)) },
	} {
		t.Run(name, func(t *testing.T) {
			lease, err := refused()
			wantErr(t, err, core.ErrConfig)
			if lease != nil {
				t.Error("it holds the lock")
			}
		})
	}
	lease, err := l.Permit(ctx, "k", 5, core.Permits(5)) // says the same twice
	wantErr(t, err, nil)
	wantErr(t, lease.Release(ctx), nil)
}

func guardError(l *core.Locker, opts ...core.GuardOption) error {
	_, err := core.NewGuard(l, "k", opts...)
	return err
}
