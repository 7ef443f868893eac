package otellock_test

import (
	"testing"

	"go.opentelemetry.io/otel/codes"

	"github.com/interlock-go/interlock/core"
)

// The label kind sorts before the rule's name.
func TestHoldsThatAreNotExclusiveHaveTheirKindAsALabel(t *testing.T) {
	inWorld(t, func(w *world) {
		w.release(w.lock("k", core.Name("r")))
		w.release(w.lock("k", core.Name("r"), core.Shared()))
		lease := w.lock("k", core.Name("r"), core.Permits(1))
		_, err := w.locker.TryPermit(w.ctx, "k", 1, core.Name("r"))
		if err == nil {
			w.Error("two permits of one")
		}
		w.release(lease)
		wantSpan(w, w.span("lock acquire r", 0), w.caller, codes.Unset, "rule=r", "key_hash="+hashOfK, "outcome=granted",
			"contended=false", "attempts=1", "reentered=false", "token=yes")
		wantSpan(w, w.span("lock acquire r", 1), w.caller, codes.Unset, "rule=r", "kind=shared", "key_hash="+hashOfK,
			"outcome=granted", "contended=false", "attempts=1", "reentered=false", "token=yes")
		wantSpan(w, w.span("lock acquire r", 3), w.caller, codes.Unset, "rule=r", "kind=permit", "key_hash="+hashOfK,
			"outcome=full", "contended=true", "attempts=1", "reentered=false", "error.type=full")
		w.wantCounts(
			"acquire.duration{granted r} 1, 0 s", "hold.duration{released r} 1, 0 s",
			"attempts{r} 1", "waiters{r} 0", "leases{r} 0",
			"acquire.duration{shared granted r} 1, 0 s", "hold.duration{shared released r} 1, 0 s",
			"attempts{shared r} 1", "waiters{shared r} 0", "leases{shared r} 0",
			"acquire.duration{permit granted r} 1, 0 s", "acquire.duration{permit full r} 1, 0 s",
			"hold.duration{permit released r} 1, 0 s", "attempts{permit r} 2", "waiters{permit r} 0", "leases{permit r} 0",
		)
	})
}
