//go:build integration

package redisstore_test

import (
	"context"
	"testing"

	"github.com/interlock-go/interlock/core"
)

// Callers of one process that want permits of one key while the server is silent ask at
// the same time, so that their requests meet in few calls of the script.
func TestPermitsThatOneProcessAsksForTogetherShareCalls(t *testing.T) {
	t.Parallel()
	const n = 40
	w := alone(t)
	l := w.process(core.Unlisted(), core.Wait(w.Patience()))
	permit := func() (*core.Lease, error) { return l.Permit(w.bounded(), "k", n) }
	warm, err := permit()
	if err != nil {
		t.Fatal(err)
	}
	w.release(warm) // the server knows the scripts
	leases := make(chan *core.Lease, n)
	_, calls := w.trips(func() {
		w.Pause(t)
		var all []<-chan error
		for range n {
			all = append(all, later(func() error {
				lease, err := permit()
				leases <- lease
				return err
			}))
		}
		w.soon("all callers wait", func(context.Context) bool {
			held := l.Held()
			return len(held) == 1 && held[0].Waiters == n
		})
		w.Resume(t)
		for _, done := range all {
			w.want("a permit", done)
		}
	})
	// The script carries out each request on its own, with one HMGET. EVAL is of the probes of
	// new connections.
	if sent := calls["evalsha"]; sent >= n || calls["hmget"] != n {
		t.Errorf("%d permits took %d calls of a script, want fewer and %d hmget: %v", n, sent, n, calls)
	}
	for range n {
		if lease := <-leases; lease != nil {
			w.release(lease)
		}
	}
}
