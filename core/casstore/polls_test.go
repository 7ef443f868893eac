package casstore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/casstore/castest"
)

// docs/consensus.md has these numbers.
func TestAProcessThatWaitsAsksAsOftenAsThePageSays(t *testing.T) {
	permit := func(ctx context.Context, m *machine) error { _, err := m.Permit(ctx, "k", 1); return err }
	shared := func(ctx context.Context, m *machine) error { _, err := m.LockShared(ctx, "k"); return err }
	alone := func(ctx context.Context, m *machine) error { _, err := m.Lock(ctx, "k"); return err }
	for name, c := range map[string]struct {
		holds, waits func(ctx context.Context, m *machine) error
		most         float64 // in a lease
	}{
		"for a lock":                   {alone, alone, 2},
		"for a shared lock":            {alone, shared, 2},
		"for a permit":                 {permit, permit, lease.Seconds()},
		"for a lock that others share": {shared, alone, 2 * lease.Seconds()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const leases = 40
				server := castest.NewMemory()
				if err := c.holds(t.Context(), start(t, server)); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				b := start(t, server)
				go func() { _ = c.waits(ctx, b) }()
				time.Sleep(lease)
				before := server.Commits()
				time.Sleep(leases * lease)
				each := float64(server.Commits()-before)/leases - 3 // the signs of life
				if t.Logf("%.1f requests in a lease", each); each > 1.1*c.most+0.1 {
					t.Errorf("a process that waits sends %.1f requests in a lease; want %.0f at most", each, c.most)
				}
			})
		})
	}
}
