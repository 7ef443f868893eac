//go:build integration

package redisstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
)

// comes has a caller of a process wait for a lock.
func (w *world) comes(l *core.Locker, key string, o core.Option) <-chan error {
	c := make(chan error, 1)
	ctx, cancel := context.WithTimeout(w.t.Context(), w.Patience())
	go func() {
		defer cancel()
		lease, err := l.Lock(ctx, key, o)
		if err == nil {
			err = lease.Release(ctx)
		}
		c <- err
	}()
	return c
}

// The leases are long: no renewal tells it in time. The user has the documented rights.
func TestTheNewestCallerOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.user()
	a, b, c := w.locker(w.store(restricted)), w.locker(w.store(restricted)), w.locker(w.store(restricted))
	for range 3 { // the first waits for the subscription, too
		lease := w.lock(a, "k", core.Watchdog(w.Holds()), core.Newest())
		second := w.comes(b, "k", core.Newest())
		<-lease.Context().Done()
		if cause := context.Cause(lease.Context()); !errors.Is(cause, core.ErrSuperseded) || lease.Err() != nil {
			t.Errorf("the holder: %v, %v", cause, lease.Err())
		}
		third := w.comes(c, "k", core.Newest())
		if err := <-second; !errors.Is(err, core.ErrSuperseded) {
			t.Errorf("the older caller: %v", err)
		}
		fourth := w.comes(a, "k", core.Newest())
		if err := <-third; !errors.Is(err, core.ErrSuperseded) {
			t.Errorf("the caller that a caller of the holder's process follows: %v", err)
		}
		w.release(lease)
		if err := <-fourth; err != nil {
			t.Errorf("the newest caller: %v", err)
		}
	}
	lease := w.lock(a, "one", core.OneWaiter())
	first := w.comes(b, "one", core.OneWaiter())
	w.release(lease)
	if err := <-first; err != nil {
		t.Error(err)
	}
	// The last locker of a list cannot leave it without HDEL, and is called in vain (decline.lua).
	denied := slices.DeleteFunc(w.Denials(w.t), func(entry string) bool { return strings.Contains(entry, "object hdel") })
	if len(denied) != 0 {
		t.Errorf("refused by the server:\n%s", strings.Join(denied, "\n"))
	}
}
