package otellock

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/reason"
)

// The attributes; doc.go explains them.
const (
	attrRule       = attribute.Key("interlock.rule")
	attrKind       = attribute.Key("interlock.kind")
	attrOutcome    = attribute.Key("interlock.outcome")
	attrLossReason = attribute.Key("interlock.loss_reason")
	attrKey        = attribute.Key("interlock.key")
	attrKeys       = attribute.Key("interlock.keys")
	attrKeyHash    = attribute.Key("interlock.key_hash")
	attrKeyHashes  = attribute.Key("interlock.key_hashes")
	attrKeyCount   = attribute.Key("interlock.key_count")
	attrContended  = attribute.Key("interlock.contended")
	attrAttempts   = attribute.Key("interlock.attempts")
	attrReentered  = attribute.Key("interlock.reentered")
	attrDisordered = attribute.Key("interlock.disordered")
	attrToken      = attribute.Key("interlock.token")
	attrHandedOver = attribute.Key("interlock.handed_over")
	attrIdempotent = attribute.Key("interlock.idempotent.outcome")
	attrGeneration = attribute.Key("interlock.idempotent.generation")
	attrRecord     = attribute.Key("interlock.idempotent.record")
)

const (
	// maxRules limits the names that telemetry distinguishes. An SDK begins to drop
	// attribute sets at 2,000; this limit is lower. Instruments that also have
	// outcomes can exceed that limit. No real service has a thousand rules: the limit
	// only contains a mistake.
	maxRules = 1000
	// otherRule is the name of all other rules. Semantic conventions use it for
	// values outside a known set.
	otherRule = "_OTHER"
	// unnamedRule is the name of all locks without one, so that every series has the
	// label.
	unnamedRule = "_UNNAMED"
)

// outcome says how an operation ended. The set is bounded, because it is a label.
type outcome uint8

const (
	granted outcome = iota
	renewed
	released
	handedOver // to a ticket
	held
	full
	queueFull
	superseded
	principalLimit
	deadline
	canceled
	unavailable
	notReplicated
	keyOccupied
	closing
	lost
	maxHold
	badKey
	bodyTooLarge
	bodyIncomplete
	bodyTimeout
	misconfigured
	internal
	outcomes // how many there are
)

var outcomeNames = [outcomes]string{
	"granted", "renewed", "released", "handed_over", "held", "full", "queue_full", "superseded", "principal_limit", "deadline", "canceled", "unavailable",
	"not_replicated", "key_occupied", "closing", "lost", "max_hold", "bad_key", "body_too_large",
	"body_incomplete", "body_timeout", "misconfigured", "internal",
}

func (o outcome) String() string { return outcomeNames[o] }

// ok reports whether the outcome is a success.
func (o outcome) ok() bool { return o <= handedOver }

// fault reports whether the outcome is the error of a span: something that the
// operator of the service should look at. Contention and a client's behavior are not.
func (o outcome) fault() bool {
	switch o {
	case unavailable, notReplicated, keyOccupied, closing, lost, maxHold, misconfigured, internal:
		return true
	}
	return false
}

// byReason maps the reason of an error to its outcome.
var byReason = map[reason.Reason]outcome{
	reason.BadKey:         badKey,
	reason.BodyTooLarge:   bodyTooLarge,
	reason.BodyIncomplete: bodyIncomplete,
	reason.BodyTimeout:    bodyTimeout,
	reason.Held:           held,
	reason.Full:           full,
	reason.QueueFull:      queueFull,
	reason.Superseded:     superseded,
	reason.HeldByCaller:   held,
	reason.PrincipalLimit: principalLimit,
	reason.Deadline:       deadline,
	reason.Canceled:       canceled,
	reason.Unavailable:    unavailable,
	reason.NotReplicated:  notReplicated,
	reason.KeyOccupied:    keyOccupied,
	reason.Closing:        closing,
	reason.Lost:           lost,
	reason.MaxHold:        maxHold,
	reason.Misconfigured:  misconfigured,
	reason.Internal:       internal,
}

// outcomeOf returns the outcome of an error, and success for nil. ctx is the caller's
// context: its end explains errors that are not of core.
func outcomeOf(ctx context.Context, err error, success outcome) outcome {
	switch {
	case err == nil:
		return success
	case errors.Is(err, core.ErrTicket):
		return held // a message that is delivered again is no error of the service
	}
	if o, ok := byReason[core.ReasonOf(ctx, err)]; ok {
		return o
	}
	return internal
}

// storeOutcomeOf is outcomeOf for renewals and releases, which do not end with the
// caller's context. An error that does not concern the lease then concerns the
// store.
func storeOutcomeOf(err error, success outcome) outcome {
	switch {
	case err == nil:
		return success
	case errors.Is(err, core.ErrMaxHold):
		return maxHold
	case errors.Is(err, core.ErrLost), errors.Is(err, driver.ErrNotOwner):
		return lost
	}
	return unavailable
}

// rule holds the values computed once for the name of a rule, so that a call neither joins
// strings nor sorts attributes. Only decided, bypasses and the times change.
type rule struct {
	acquire, release, renew string // names of spans

	// The options are slices, so that a call passes them without a copy.
	start     []trace.SpanStartOption
	add       []metric.AddOption
	record    []metric.RecordOption
	observe   []metric.ObserveOption
	byOutcome [outcomes]struct {
		add    []metric.AddOption
		record []metric.RecordOption
	}
	label []attribute.KeyValue // for labels that are rarely needed

	decided  sync.Map // string -> decidedLabel, made at first use
	bypasses thinned

	// The times that callers last asked with, in nanoseconds; 0: none did.
	wait, maxHold atomic.Int64
}

func newRule(name, kind string) *rule {
	r := &rule{
		acquire: "lock acquire " + name, release: "lock release " + name, renew: "lock renew " + name,
		label: []attribute.KeyValue{attrRule.String(name)},
	}
	if kind != "" {
		r.label = append(r.label, attrKind.String(kind))
	}
	// Set at the start, so that a sampler sees them.
	r.start = []trace.SpanStartOption{trace.WithAttributes(r.label...)}
	r.add, r.record = []metric.AddOption{r.with()}, []metric.RecordOption{r.with()}
	r.observe = []metric.ObserveOption{r.with()}
	for o := range outcomes {
		set := r.with(attrOutcome.String(o.String()))
		r.byOutcome[o].add = []metric.AddOption{set}
		r.byOutcome[o].record = []metric.RecordOption{set}
	}
	return r
}

// with returns the option for the rule's label and further ones.
func (r *rule) with(more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(more, r.label...)...))
}

// decidedLabel is the label for the result of a request to an idempotent endpoint:
// an outcome, or the reason of a refusal. There are few of both.
type decidedLabel struct {
	outcome string
	add     []metric.AddOption
}

func (r *rule) decidedAs(how string) decidedLabel {
	l, ok := r.decided.Load(how)
	if !ok {
		outcome := strings.ReplaceAll(how, "-", "_")
		l, _ = r.decided.LoadOrStore(how, decidedLabel{
			outcome, []metric.AddOption{r.with(attrOutcome.String(outcome))},
		})
	}
	return l.(decidedLabel)
}

// rule returns the rule of a name, for a kind of hold. An exclusive lock has no label
// for its kind.
func (o *Observer) rule(name, kind string) *rule {
	name = cmp.Or(name, unnamedRule)
	known := name
	switch kind {
	case "shared", "permit":
		known += "\x00" + kind // only here: the texts are joined
	default:
		kind = ""
	}
	if r, ok := o.rules.Load(known); ok {
		return r.(*rule)
	}
	if o.known.Load() >= maxRules {
		r, _ := o.others.LoadOrStore(kind, newRule(otherRule, kind)) // of three kinds
		return r.(*rule)
	}
	r, loaded := o.rules.LoadOrStore(known, newRule(name, kind))
	if !loaded && o.known.Add(1) == maxRules {
		o.logger().Warn("interlock: too many names of rules, further ones are called _OTHER in telemetry; a name must not hold values of a request",
			"names", maxRules)
	}
	return r.(*rule)
}

// thinned limits log records that could be written for each request.
type thinned struct {
	mu   sync.Mutex
	next time.Time
	n    int
}

// due counts one event. It returns the number of events that a record must report
// now, or 0 if a record was written in the last minute.
func (t *thinned) due(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
	if now.Before(t.next) {
		return 0
	}
	n := t.n
	t.n, t.next = 0, now.Add(time.Minute)
	return n
}
