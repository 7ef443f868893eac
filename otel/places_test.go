package otellock_test

import (
	"context"
	"log/slog"
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

// Else a refusal would be in another series than the requests of its rule, and be all of
// that series: an alert about the share of refusals would fire for one.
func TestARefusalBeforeThePermitAndABypassHaveTheKindOfTheRule(t *testing.T) {
	inWorld(t, func(w *world) {
		quiet := slog.Default()
		slog.SetDefault(slog.New(slog.DiscardHandler))
		defer slog.SetDefault(quiet)
		g := core.AtMost(w.locker, 3, "account/{id}", core.FailOpen())
		next := func(context.Context) bool { return true }
		if g.Do(w.ctx, request{"id": ""}, next) == nil {
			w.Error("not refused")
		}
		w.store.Intercept(failing(core.ErrUnavailable))
		if refusal := g.Do(w.ctx, request{"id": "1"}, next); refusal != nil {
			w.Error(refusal)
		}
		w.wantCounts("rejected{permit bad_key account/{id}} 1", "bypassed{permit account/{id}} 1",
			"acquire.duration{permit unavailable account/{id}} 1, 0 s", "attempts{permit account/{id}} 1", "waiters{permit account/{id}} 0")
	})
}
