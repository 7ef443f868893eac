package otellock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
)

// The attributes; doc.go says what they mean.
const (
	attrRule       = attribute.Key("interlock.rule")
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
)

const (
	// maxRules bounds the names that are told apart. It stays below the limit of
	// 2,000 attribute sets at which an SDK begins to drop them, though not for
	// instruments that also have outcomes: nobody has a thousand rules, this
	// only contains a mistake.
	maxRules = 1000
	// otherRule is the name of all others, as semantic conventions have it for
	// values outside a known set.
	otherRule = "_OTHER"
)

// outcome is how something ended: a bounded set, since it is a label.
type outcome uint8

const (
	granted outcome = iota
	renewed
	released
	held
	queueFull
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
	"granted", "renewed", "released", "held", "queue_full", "principal_limit", "deadline", "canceled", "unavailable",
	"not_replicated", "key_occupied", "closing", "lost", "max_hold", "bad_key", "body_too_large",
	"body_incomplete", "body_timeout", "misconfigured", "internal",
}

func (o outcome) String() string { return outcomeNames[o] }

// ok reports whether it is a success.
func (o outcome) ok() bool { return o <= released }

// fault reports whether it is a span's error: something that somebody who runs
// the service should look at, rather than contention or a client's doing.
func (o outcome) fault() bool {
	switch o {
	case unavailable, notReplicated, keyOccupied, closing, lost, maxHold, misconfigured, internal:
		return true
	}
	return false
}

// byReason are the outcomes of an error, as the guard sorts them.
var byReason = map[core.Reason]outcome{
	core.ReasonBadKey:         badKey,
	core.ReasonBodyTooLarge:   bodyTooLarge,
	core.ReasonBodyIncomplete: bodyIncomplete,
	core.ReasonBodyTimeout:    bodyTimeout,
	core.ReasonHeld:           held,
	core.ReasonQueueFull:      queueFull,
	core.ReasonPrincipalLimit: principalLimit,
	core.ReasonDeadline:       deadline,
	core.ReasonCanceled:       canceled,
	core.ReasonUnavailable:    unavailable,
	core.ReasonNotReplicated:  notReplicated,
	core.ReasonKeyOccupied:    keyOccupied,
	core.ReasonClosing:        closing,
	core.ReasonLost:           lost,
	core.ReasonMaxHold:        maxHold,
	core.ReasonMisconfigured:  misconfigured,
	core.ReasonInternal:       internal,
}

// outcomeOf finds the outcome of an error, and success for nil. The context is
// that of the caller, whose end explains an error that is none of ours.
func outcomeOf(ctx context.Context, err error, success outcome) outcome {
	if err == nil {
		return success
	}
	if o, ok := byReason[core.ReasonOf(ctx, err)]; ok {
		return o
	}
	return internal
}

// storeOutcomeOf is outcomeOf for what no caller waits for: renewals, and
// releases, which do not end with the caller's context. What is not about the
// lease is then about the store.
func storeOutcomeOf(err error, success outcome) outcome {
	switch {
	case err == nil:
		return success
	case errors.Is(err, core.ErrMaxHold):
		return maxHold
	case errors.Is(err, core.ErrLost), errors.Is(err, core.ErrNotOwner):
		return lost
	}
	return unavailable
}

// rule holds what is worked out once for a rule's name, so that a call neither
// joins strings nor sorts attributes. It is immutable but for decided and
// bypasses.
type rule struct {
	acquire, release, renew string // names of spans

	// The options are slices, ready to be passed on without a copy.
	start     []trace.SpanStartOption
	add       []metric.AddOption
	byOutcome [outcomes]struct {
		add    []metric.AddOption
		record []metric.RecordOption
	}
	label []attribute.KeyValue // for the labels of what is rare

	decided  sync.Map // string -> decidedLabel, made when it is first needed
	bypasses thinned
}

func newRule(name string) *rule {
	r := &rule{acquire: "lock acquire", release: "lock release", renew: "lock renew"}
	if name != "" {
		r.acquire += " " + name
		r.release += " " + name
		r.renew += " " + name
		r.label = []attribute.KeyValue{attrRule.String(name)}
		// At the start already, where a sampler sees them.
		r.start = []trace.SpanStartOption{trace.WithAttributes(r.label...)}
	}
	r.add = []metric.AddOption{r.with()}
	for o := range outcomes {
		set := r.with(attrOutcome.String(o.String()))
		r.byOutcome[o].add = []metric.AddOption{set}
		r.byOutcome[o].record = []metric.RecordOption{set}
	}
	return r
}

// with is the option for the rule's label and others.
func (r *rule) with(more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(more, r.label...)...))
}

// decidedLabel is the label of what became of a request to an idempotent
// endpoint: an outcome, or the reason of a refusal, of both of which there are few.
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

// rule finds the rule of a name.
func (o *Observer) rule(name string) *rule {
	if r, ok := o.rules.Load(name); ok {
		return r.(*rule)
	}
	if o.known.Load() >= maxRules {
		return o.other()
	}
	r, loaded := o.rules.LoadOrStore(name, newRule(name))
	if !loaded && o.known.Add(1) == maxRules {
		o.logger().Warn("interlock: too many names of rules, further ones are called _OTHER in telemetry; a name must not hold values of a request",
			"names", maxRules)
	}
	return r.(*rule)
}

// thinned thins out log records of which there may be one for each request.
type thinned struct {
	mu   sync.Mutex
	next time.Time
	n    int
}

// due counts one, and returns for how many a record is to be written now, or 0
// when there was one in the last second.
func (t *thinned) due(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
	if now.Before(t.next) {
		return 0
	}
	n := t.n
	t.n, t.next = 0, now.Add(time.Second)
	return n
}
