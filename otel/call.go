package otellock

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
)

// maxKeys bounds the keys of one span; there may be any number in a LockAll.
const maxKeys = 16

// call is one observation: an acquisition, and the lease that comes of it.
//
// acquired comes first, but lost can be called beside or even before it (the
// lock was granted in a queue and lost before its waiter woke), and beside
// released (a loss ends the handler's context before it is reported). What each
// of them undoes is therefore decided by state alone.
type call struct {
	observer *Observer
	rule     *rule
	caller   context.Context // what the lock was asked for under
	keys     []string

	// For the acquisition alone: used on its goroutine, until acquired.
	ctx      context.Context // with the span, for exemplars
	span     trace.Span
	disorder bool

	token     atomic.Int64
	reentered atomic.Bool
	reason    atomic.Pointer[core.LossReason]
	state     atomic.Uint32
}

// The bits of call.state. Each is set once, and whoever sets it does what goes
// with it.
const (
	counted uint32 = 1 << iota // the lease is in interlock.leases
	over                       // released or lost, and out of it again
	mourned                    // counted and logged as lost
)

// disordered implements core.Observation. It is called while the lock is asked
// for.
func (c *call) disordered(string, string) { c.disorder = true }

// acquired implements core.Observation.
func (c *call) acquired(a core.Acquired) {
	o, in := c.observer, &c.observer.instruments
	how := outcomeOf(c.caller, a.Err, granted)
	if c.span.IsRecording() {
		attrs := make([]attribute.KeyValue, 0, 10)
		attrs = append(attrs,
			attrOutcome.String(how.String()),
			attrContended.Bool(a.Contended),
			attrAttempts.Int(a.Attempts),
			attrReentered.Bool(a.Reentered && a.Err == nil),
		)
		if a.Err == nil {
			attrs = append(attrs, attrToken.Int64(a.Token))
		}
		if c.disorder {
			attrs = append(attrs, attrDisordered.Bool(true))
		}
		c.finish(c.span, o.appendKeys(attrs, c.keys), how, a.Err)
	}
	in.waiters.Add(c.ctx, -1, c.rule.add...)
	if a.Attempts > 0 {
		in.attempts.Add(c.ctx, int64(a.Attempts), c.rule.add...)
	}
	if reentered := a.Reentered && a.Err == nil; reentered {
		c.reentered.Store(true) // waited for nothing, and is no lease of its own
	} else {
		in.acquire.Record(c.ctx, a.Waited.Seconds(), c.rule.byOutcome[how].record...)
		if a.Err == nil {
			// First up, then the mark that makes somebody count it down: so it
			// is never below zero. If it was lost already, that is our part.
			in.leases.Add(c.ctx, 1, c.rule.add...)
			if c.state.Or(counted)&over != 0 {
				in.leases.Add(c.ctx, -1, c.rule.add...)
			}
		}
	}
	c.token.Store(a.Token)
	c.span.End()
	c.ctx, c.span = nil, nil // a lease may be held for long
}

// released implements core.Observation.
func (c *call) released(r core.Released) {
	o := c.observer
	how := storeOutcomeOf(r.Err, released)
	ctx, span := c.past(c.rule.release, r.Took)
	if r.Lost != nil {
		c.loss(ctx, *r.Lost, r.Err)
	}
	c.end(ctx, r.Held, how)
	if span.IsRecording() {
		attrs := make([]attribute.KeyValue, 0, 10)
		attrs = append(attrs,
			attrOutcome.String(how.String()),
			attrHandedOver.Bool(r.HandedOver),
			attrReentered.Bool(c.reentered.Load()),
			attrToken.Int64(c.token.Load()),
		)
		if reason := c.reason.Load(); reason != nil {
			attrs = append(attrs, attrLossReason.String(string(*reason)))
		}
		c.finish(span, o.appendKeys(attrs, c.keys), how, r.Err)
	}
	span.End()
}

// renewed implements core.Observation.
func (c *call) renewed(r core.Renewed) {
	o := c.observer
	how := storeOutcomeOf(r.Err, renewed)
	ctx := c.caller
	if r.Err != nil {
		var span trace.Span
		ctx, span = c.past(c.rule.renew, r.Took)
		if span.IsRecording() {
			attrs := []attribute.KeyValue{attrOutcome.String(how.String())}
			c.finish(span, o.appendKeys(attrs, []string{r.Key}), how, r.Err)
		}
		span.End()
	}
	o.instruments.renewals.Add(ctx, 1, c.rule.byOutcome[how].add...)
}

// lost implements core.Observation.
func (c *call) lost(l core.Loss) {
	c.loss(c.caller, l, l.Err)
	how := lost
	if l.Reason == core.LossMaxHold {
		how = maxHold
	}
	c.end(c.caller, l.Held, how)
}

// past starts a span, below the caller's, for what began some time ago and has
// just ended.
func (c *call) past(name string, took time.Duration) (context.Context, trace.Span) {
	start := c.rule.start[:len(c.rule.start):len(c.rule.start)] // shared: append copies
	return c.observer.tracer.Start(c.caller, name, append(start, trace.WithTimestamp(time.Now().Add(-took)))...)
}

// end takes the lease out of the count of those that are held, unless it is out
// or was never in it.
func (c *call) end(ctx context.Context, after time.Duration, how outcome) {
	if c.state.Or(over)&(counted|over) != counted {
		return
	}
	in := &c.observer.instruments
	in.leases.Add(ctx, -1, c.rule.add...)
	in.hold.Record(ctx, after.Seconds(), c.rule.byOutcome[how].record...)
}

// loss counts and logs a lost lease, the first time. The lease of several locks
// may hear of each.
func (c *call) loss(ctx context.Context, l core.Loss, err error) {
	if c.state.Or(mourned)&mourned != 0 {
		return
	}
	c.reason.Store(&l.Reason)
	o := c.observer
	o.instruments.lost.Add(ctx, 1, c.rule.with(attrLossReason.String(string(l.Reason))))
	// Where the lease ran out by agreement, the holder was told in time. Where
	// the store forgot it or was out of reach, somebody else may have had it.
	level := slog.LevelError
	switch l.Reason {
	case core.LossExpired, core.LossMaxHold, core.LossClosed:
		level = slog.LevelWarn
	}
	log := o.logger()
	if !log.Enabled(ctx, level) {
		return
	}
	attrs := append(c.logKeys(), slog.String("reason", string(l.Reason)), slog.Duration("held", l.Held))
	more := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	more("owner", l.Owner)
	more("route", l.Route)
	more("principal_hash", l.Principal.Hash())
	if o.rawKeys {
		more("principal", string(l.Principal))
	}
	more("answered", string(l.Answered))
	if token := c.token.Load(); token != 0 {
		attrs = append(attrs, slog.Int64("token", token))
	}
	more("error", o.text(err, c.keys))
	log.LogAttrs(ctx, level, "interlock: lease lost", attrs...)
}

// bypassed implements core.Observation.
func (c *call) bypassed(err error) {
	o := c.observer
	o.instruments.bypassed.Add(c.caller, 1, c.rule.add...)
	if o.log == nil {
		return
	}
	if n := c.rule.bypasses.due(time.Now()); n > 0 {
		attrs := append(c.logKeys(), slog.Int("requests", n))
		if text := o.text(err, c.keys); text != "" {
			attrs = append(attrs, slog.String("error", text))
		}
		o.log.LogAttrs(c.caller, slog.LevelWarn, "interlock: handler runs without its lock or record", attrs...)
	}
}

// rejected implements core.Observation. The span has no duration: it is there so
// that a trace shows why the handler did not run.
func (c *call) rejected(err error) {
	o := c.observer
	how := outcomeOf(c.caller, err, internal)
	ctx, span := o.tracer.Start(c.caller, c.rule.acquire, c.rule.start...)
	o.instruments.rejected.Add(ctx, 1, c.rule.byOutcome[how].add...)
	if span.IsRecording() {
		// Without the error's text: it may be that of a function of the user's,
		// and tell a value that would have become a part of the key.
		c.finish(span, []attribute.KeyValue{attrOutcome.String(how.String())}, how, nil)
	}
	span.End()
}

// decided implements core.Observation. The request's own span says it too: there
// is none of ours, since nothing was waited for, or the handler was.
func (c *call) decided(d core.Decided) {
	in, how := &c.observer.instruments, string(d.Outcome)
	if d.Outcome == core.DecidedRefused {
		how = string(d.Reason)
	}
	label := c.rule.decidedAs(how)
	in.decided.Add(c.caller, 1, label.add...)
	if d.Outcome == core.DecidedReplayed {
		in.replays.Add(c.caller, 1, c.rule.add...)
	}
	if span := trace.SpanFromContext(c.caller); span.IsRecording() {
		span.SetAttributes(attrIdempotent.String(label.outcome), attrGeneration.Int64(d.Generation))
	}
}

// finish writes a span's attributes and, for what is out of order, its status.
func (c *call) finish(span trace.Span, attrs []attribute.KeyValue, how outcome, err error) {
	if !how.ok() {
		attrs = append(attrs, semconv.ErrorTypeKey.String(how.String()))
	}
	span.SetAttributes(attrs...)
	if how.fault() {
		span.SetStatus(codes.Error, c.observer.text(err, c.keys))
	}
}

// appendKeys names keys, for a span that is recorded.
func (o *Observer) appendKeys(attrs []attribute.KeyValue, keys []string) []attribute.KeyValue {
	if len(keys) == 1 {
		attrs = append(attrs, attrKeyHash.String(core.KeyHash(keys[0])))
		if o.rawKeys {
			attrs = append(attrs, attrKey.String(keys[0]))
		}
		return attrs
	}
	attrs = append(attrs, attrKeyCount.Int(len(keys)))
	keys = keys[:min(len(keys), maxKeys)]
	hashes := make([]string, len(keys))
	for i, key := range keys {
		hashes[i] = core.KeyHash(key)
	}
	attrs = append(attrs, attrKeyHashes.StringSlice(hashes))
	if o.rawKeys {
		attrs = append(attrs, attrKeys.StringSlice(keys))
	}
	return attrs
}

// logKeys says of whose lock a record is.
func (c *call) logKeys() []slog.Attr {
	var attrs []slog.Attr
	for _, a := range c.observer.appendKeys(slices.Clone(c.rule.label), c.keys) {
		name := strings.TrimPrefix(string(a.Key), "interlock.")
		attrs = append(attrs, slog.Any(name, a.Value.AsInterface()))
	}
	return attrs
}

// text is what an error says, without the keys: those are in what wraps the
// innermost error, and where that one has them too (a server's message can), it
// is not told at all.
func (o *Observer) text(err error, keys []string) string {
	if err == nil {
		return ""
	}
	if o.rawKeys {
		return err.Error()
	}
	text := innermost(err).Error()
	for _, key := range keys {
		if quoted := strconv.Quote(key); strings.Contains(text, key) || strings.Contains(text, quoted[1:len(quoted)-1]) {
			return ""
		}
	}
	return text
}

// innermost descends to the error that all the others explain, the last where
// one wraps several.
func innermost(err error) error {
	for {
		var inner error
		switch e := err.(type) { //nolint:errorlint // this walks the tree itself
		case interface{ Unwrap() error }:
			inner = e.Unwrap()
		case interface{ Unwrap() []error }:
			if all := e.Unwrap(); len(all) > 0 {
				inner = all[len(all)-1]
			}
		}
		if inner == nil {
			return err
		}
		err = inner
	}
}
