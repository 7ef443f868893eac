//go:build integration && long

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
)

// Processes that have ended leave their places in line. A release passes them over, as they listen no more: no caller that
// asks once is refused.
func TestLocksOfEndedProcessesAreHadByCallersThatAskOnce(t *testing.T) {
	t.Parallel()
	const keys, ended = 200, 2
	w := alone(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	holder := w.locker(w.store())
	leases := make([]*core.Lease, keys)
	for i := range leases {
		var err error
		if leases[i], err = holder.Lock(ctx, fmt.Sprint("k", i)); err != nil {
			t.Fatal(err)
		}
	}
	var wires []*wire
	for range ended {
		wire := newWire()
		wires = append(wires, wire)
		l, err := core.New(w.store(wire.through))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), w.Patience())
			defer cancel()
			_ = l.Close(ctx) // it does not reach the server
		})
		for i := range keys {
			go func() { _, _ = l.Lock(ctx, fmt.Sprint("k", i), core.Wait(time.Hour)) }()
		}
	}
	look := w.store()
	for i := range keys {
		for {
			view, err := look.Look(ctx, fmt.Sprint("k", i))
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for range view.Waiting.All() {
				n++
			}
			if n == ended {
				break
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	for _, wire := range wires {
		wire.cut()
	}
	asks, refused := w.locker(w.store()), 0
	defer func() { // the ended processes close
		for _, wire := range wires {
			wire.mend()
		}
	}()
	for i, lease := range leases {
		if err := lease.Release(ctx); err != nil {
			t.Error(err)
		}
		had, err := asks.TryLock(ctx, fmt.Sprint("k", i))
		switch {
		case errors.Is(err, core.ErrHeld):
			refused++
		case err != nil:
			t.Error(err)
		default:
			if err := had.Release(ctx); err != nil {
				t.Error(err)
			}
		}
	}
	if t.Logf("%d of %d are refused", refused, keys); refused > 0 {
		t.Errorf("%d of %d callers that ask once are refused a lock that ended processes wait for; want none", refused, keys)
	}
}
