package idempotency

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
)

// never is a store that must not be asked.
type never struct{ Store }

// The timers may have taken an item out when Close, or the end of a job, comes first.

func TestAClaimThatIsServedAfterCloseEndsItsHandler(t *testing.T) {
	e, err := New(never{}, Global())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	a := &attempt{engine: e, sent: time.Now(), cancel: cancel}
	r := &e.watchdog
	if !r.begin(a) {
		t.Fatal("the engine is closed")
	}
	r.events.Cancel(&a.lease) // it is taken out
	r.close()
	if ctx.Err() != nil {
		t.Fatal("the claim was still scheduled")
	}
	r.serve([]*claimLease{&a.lease}, a.lease.renewAt)
	if cause := context.Cause(ctx); cause != core.ErrClosed { //nolint:errorlint // the sentinel itself
		t.Errorf("the handler's context has the cause %v", cause)
	}
	if r.begin(&attempt{engine: e, sent: time.Now()}) {
		t.Error("a closed watchdog takes a claim")
	}
	e.work.Wait()
}

func TestAJobThatIsServedAfterItsEndIsNotTriedAgain(t *testing.T) {
	e, err := New(never{}, Global())
	if err != nil {
		t.Fatal(err)
	}
	b := &e.background
	j := &job{attempt: &attempt{engine: e}, next: b.now().Add(time.Hour)}
	b.mu.Lock()
	b.add(j)
	b.remove(j)
	b.mu.Unlock()
	b.serve([]*job{j}, j.next)
	if n, left := e.Pending(), e.drain.wait(); n != 0 || b.trying != 0 || left != nil {
		t.Errorf("%d jobs, %d of them tried", n, b.trying)
	}
	if err := e.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
