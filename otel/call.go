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
	semconv "go.opentelemetry.io/otel/semconv/v1.26.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
)

// maxKeys limits the keys of one span; a LockAll may have any number.
const maxKeys = 16

// call is one observation: an acquisition, and the lease that it yields.
//
// core calls acquired first, with two exceptions. It can call lost before acquired,
// or in parallel with it: the lock was granted in a queue and lost before its
// waiter woke. It can call lost in parallel with released: a loss ends the
// handler's context before core reports it. Therefore state alone decides which
// steps each of them undoes.
type call struct {
	observer *Observer
	rule     *rule
	caller   context.Context // of the acquisition
	keys     []string

	// For the acquisition only: used on its goroutine until acquired.
	ctx      context.Context // with the span, for exemplars
	span     trace.Span
	disorder bool
	standby  bool // its wait is neither a span nor measured

	token     atomic.Int64
	reentered atomic.Bool
	reason    atomic.Pointer[observe.LossReason]
	state     atomic.Uint32
}

// The bits of call.state. Each is set once. The goroutine that sets a bit does the
// work that belongs to it.
const (
	counted uint32 = 1 << iota // the lease is in interlock.leases
	over                       // released or lost, and no longer in interlock.leases
	mourned                    // counted and logged as lost
)

// disordered implements observe.Observation. core calls it during the acquisition.
func (c *call) disordered(string, string) { c.disorder = true }

// acquired implements observe.Observation.
func (c *call) acquired(a observe.Acquired) {
	o, in := c.observer, &c.observer.instruments
	how := outcomeOf(c.caller, a.Err, granted)
	if c.standby {
		c.ctx, c.span = c.past(c.rule.acquire, 0)
	} else {
		in.waiters.Add(c.ctx, -1, c.rule.add...)
	}
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
	if a.Attempts > 0 {
		in.attempts.Add(c.ctx, int64(a.Attempts), c.rule.add...)
	}
	if reentered := a.Reentered && a.Err == nil; reentered {
		c.reentered.Store(true) // it did not wait, and is not a separate lease
	} else {
		if !c.standby || how.fault() && how != closing { // a store that fails says so at once
			in.acquire.Record(c.ctx, a.Waited.Seconds(), c.rule.byOutcome[how].record...)
		}
		if a.Err == nil {
			// Count up first, then set the bit that lets end count down: so the
			// counter is never below zero. If the lease has ended already, end left
			// the counter alone, and this goroutine counts down.
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

// released implements observe.Observation.
func (c *call) released(r observe.Released) {
	o := c.observer
	success := released
	if r.Ticket {
		success = handedOver
	}
	how := storeOutcomeOf(r.Err, success)
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

// gathered implements observe.Observation.
func (c *call) gathered(g observe.Gathered) {
	in, ctx := &c.observer.instruments, context.WithoutCancel(c.caller)
	in.queued.Record(ctx, g.Queued.Seconds(), c.rule.record...)
	in.items.Record(ctx, int64(g.Items), c.rule.record...)
}

// renewed implements observe.Observation.
func (c *call) renewed(r observe.Renewed) {
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

// lost implements observe.Observation.
func (c *call) lost(l core.Loss) {
	c.loss(c.caller, l, l.Err)
	how := lost
	if l.Reason == observe.LossMaxHold {
		how = maxHold
	}
	c.end(c.caller, l.Held, how)
}

// past starts a span below the caller's span, for an operation that began some time
// ago and has just ended.
func (c *call) past(name string, took time.Duration) (context.Context, trace.Span) {
	start := c.rule.linked(c.caller)
	return c.observer.tracer.Start(c.caller, name, append(slices.Clip(start), trace.WithTimestamp(time.Now().Add(-took)))...)
}

// end removes the lease from interlock.leases, unless it was removed before or was
// never counted.
func (c *call) end(ctx context.Context, after time.Duration, how outcome) {
	if c.state.Or(over)&(counted|over) != counted {
		return
	}
	in := &c.observer.instruments
	in.leases.Add(ctx, -1, c.rule.add...)
	in.hold.Record(ctx, after.Seconds(), c.rule.byOutcome[how].record...)
}

// loss counts and logs a lost lease, the first time only: core may report each lock
// of a lease of several locks.
func (c *call) loss(ctx context.Context, l core.Loss, err error) {
	if c.state.Or(mourned)&mourned != 0 {
		return
	}
	c.reason.Store(&l.Reason)
	o := c.observer
	o.instruments.lost.Add(ctx, 1, c.rule.with(attrLossReason.String(string(l.Reason))))
	// If the lease ended at its own limit, the holder learned of it in time, and a
	// release by an operator is no fault of the store. If the store forgot the lease or
	// was unreachable, another holder may have had the lock.
	level := slog.LevelError
	switch l.Reason {
	case observe.LossExpired, observe.LossMaxHold, observe.LossClosed, observe.LossRevoked:
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
	more("answered", l.Answered)
	if token := c.token.Load(); token != 0 {
		attrs = append(attrs, slog.Int64("token", token))
	}
	more("error", o.text(err, c.keys))
	log.LogAttrs(ctx, level, "interlock: lease lost", attrs...)
}

// bypassed implements observe.Observation.
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

// rejected implements observe.Observation. The span has no duration: its purpose is
// to show in the trace why the handler did not run.
func (c *call) rejected(err error) {
	o := c.observer
	how := outcomeOf(c.caller, err, internal)
	ctx, span := o.tracer.Start(c.caller, c.rule.acquire, c.rule.linked(c.caller)...)
	o.instruments.rejected.Add(ctx, 1, c.rule.byOutcome[how].add...)
	if span.IsRecording() {
		// The error's text is left out: it may come from a function of the
		// application and contain a value that was meant for the key.
		c.finish(span, []attribute.KeyValue{attrOutcome.String(how.String())}, how, nil)
	}
	span.End()
}

// decided implements observe.Observation. It adds attributes to the request's own
// span: there is no span of the observer, because the request did not wait, or only
// for its handler.
func (c *call) decided(d observe.Decided) {
	in, how := &c.observer.instruments, d.Outcome
	// A release with a reason: the transaction of the handler was rolled back.
	if d.Outcome == observe.DecidedRefused || d.Outcome == observe.DecidedReleased && d.Reason != "" {
		how = d.Reason
	}
	label := c.rule.decidedAs(how)
	in.decided.Add(c.caller, 1, label.add...)
	if d.Outcome == observe.DecidedReplayed {
		in.replays.Add(c.caller, 1, c.rule.add...)
	}
	if span := trace.SpanFromContext(c.caller); span.IsRecording() {
		span.SetAttributes(attrIdempotent.String(label.outcome), attrGeneration.Int64(d.Generation))
		if d.Record != "" {
			span.SetAttributes(attrRecord.String(d.Record))
		}
	}
}

// finish writes a span's attributes and, for a fault, its status.
func (c *call) finish(span trace.Span, attrs []attribute.KeyValue, how outcome, err error) {
	if !how.ok() {
		attrs = append(attrs, semconv.ErrorTypeKey.String(how.String()))
	}
	span.SetAttributes(attrs...)
	if how.fault() {
		span.SetStatus(codes.Error, c.observer.text(err, c.keys))
	}
}

// appendKeys adds the attributes of keys, for a span that is recorded.
func (o *Observer) appendKeys(attrs []attribute.KeyValue, keys []string) []attribute.KeyValue {
	if len(keys) == 1 {
		attrs = append(attrs, attrKeyHash.String(core.Hashed(keys[0]).Hash()))
		if o.rawKeys {
			attrs = append(attrs, attrKey.String(valid(keys[0])))
		}
		return attrs
	}
	attrs = append(attrs, attrKeyCount.Int(len(keys)))
	keys = keys[:min(len(keys), maxKeys)]
	hashes, texts := make([]string, len(keys)), make([]string, len(keys))
	for i, key := range keys {
		hashes[i], texts[i] = core.Hashed(key).Hash(), valid(key)
	}
	attrs = append(attrs, attrKeyHashes.StringSlice(hashes))
	if o.rawKeys {
		attrs = append(attrs, attrKeys.StringSlice(texts))
	}
	return attrs
}

// valid returns a text as UTF-8. An exporter of OTLP drops a whole batch for one span that
// has another text. The hash tells keys apart.
func valid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

// logKeys returns the attributes of a record's rule and keys.
func (c *call) logKeys() []slog.Attr {
	var attrs []slog.Attr
	for _, a := range c.observer.appendKeys(slices.Clone(c.rule.label), c.keys) {
		name := strings.TrimPrefix(string(a.Key), "interlock.")
		attrs = append(attrs, slog.Any(name, a.Value.AsInterface()))
	}
	return attrs
}

// text returns the text of an error without the keys. The keys are in the errors that
// wrap the innermost error. If the innermost error contains a key too, as the message
// of a server may, text returns "".
func (o *Observer) text(err error, keys []string) string {
	if err == nil {
		return ""
	}
	if o.rawKeys {
		return valid(err.Error())
	}
	text := observe.RootCause(err).Error()
	for _, key := range keys {
		if quoted := strconv.Quote(key); strings.Contains(text, key) || strings.Contains(text, quoted[1:len(quoted)-1]) {
			return ""
		}
	}
	return text
}
