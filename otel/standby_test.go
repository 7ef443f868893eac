package otellock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

// A process may wait to lead for weeks. A span for that long would never be exported, and
// the wait would be the longest of all locks.
func TestAProcessThatWaitsToLeadHasNoOpenSpanAndNoWait(t *testing.T) {
	inWorld(t, func(w *world) {
		w.store.Take("leader", 24*time.Hour)
		ctx, cancel := context.WithCancel(w.ctx)
		led := make(chan error, 1)
		go func() {
			led <- core.Lead(ctx, w.locker, "leader", func(context.Context) error { return nil }, core.Name("lead"))
		}()
		time.Sleep(12 * time.Hour)
		if begun := w.spans.Started(); len(begun) != 1 { // of the caller
			w.Errorf("%d spans begun, %q ended", len(begun), w.names())
		}
		w.wantCounts()
		if err := <-led; err != nil { // the other leader ends
			w.Error(err)
		}
		span := w.span("lock acquire lead", 0)
		wantSpan(w, span, w.caller, codes.Unset, "rule=lead", "key_hash="+core.Hashed("leader").Hash(), "outcome=granted",
			"contended=true", "attempts=8642", "reentered=false", "token=yes") // one each 10 s of the day, and one when the calls begin
		if took := span.EndTime().Sub(span.StartTime()); took != 0 {
			w.Errorf("the span is %v long", took)
		}
		if got := w.counts("interlock.acquire.duration", "interlock.waiters"); len(got) != 0 {
			w.Errorf("%q", got)
		}
		if got := w.counts("interlock.leases", "interlock.hold.duration"); len(got) != 2 {
			w.Errorf("%q; want the lease and its hold", got)
		}

		// The end of the process is not the end of a wait.
		w.store.Take("leader", 24*time.Hour)
		go func() {
			led <- core.Lead(ctx, w.locker, "leader", func(context.Context) error { return nil }, core.Name("lead"))
		}()
		time.Sleep(time.Hour)
		cancel()
		if err := <-led; !errors.Is(err, context.Canceled) {
			w.Error(err)
		}
		if got := w.counts("interlock.acquire.duration", "interlock.waiters"); len(got) != 0 {
			w.Errorf("%q", got)
		}
	})
}

// Without it no alert would say that no process can lead.
func TestAProcessThatCannotLeadSinceTheStoreFailsIsCounted(t *testing.T) {
	inWorld(t, func(w *world) {
		w.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		ctx, cancel := context.WithCancel(w.ctx)
		led := make(chan error, 1)
		go func() {
			led <- core.Lead(ctx, w.locker, "leader", func(context.Context) error { return nil }, core.Name("lead"))
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		cancel()
		if err := <-led; !errors.Is(err, context.Canceled) {
			w.Error(err)
		}
		if got := w.counts("interlock.acquire.duration"); len(got) != 1 || !strings.HasPrefix(got[0], "acquire.duration{unavailable lead} ") {
			w.Errorf("%q", got)
		}
	})
}
