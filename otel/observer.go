package otellock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.26.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/version"
)

// scope is the name of the instrumentation that backends show.
const scope = "github.com/interlock-go/interlock/otel"

// Observer is an [observe.Observer] that writes spans, metrics and log records. [New]
// makes one; the zero value does not work. An Observer serves any number of lockers
// and is safe for concurrent use.
type Observer struct {
	tracer      trace.Tracer
	instruments instruments
	log         *slog.Logger // nil: slog.Default(), for lost leases only
	rawKeys     bool

	// rules holds the values computed once for each name of a rule.
	rules sync.Map // string -> *rule
	known atomic.Int64
	// others holds the rules of the names beyond maxRules.
	others sync.Map // kind -> *rule

	gauges *gauges
}

var _ observe.Observer = (*Observer)(nil)

// instruments are made once: the SDK would have to look each up by its name.
type instruments struct {
	acquire, hold, queued                        metric.Float64Histogram
	items                                        metric.Int64Histogram
	waiters, leases                              metric.Int64UpDownCounter
	attempts, renewals, lost, bypassed, rejected metric.Int64Counter
	replays, decided                             metric.Int64Counter
}

// Option configures an [Observer]. Options do not change after construction.
type Option func(*settings)

type settings struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
	log     *slog.Logger
	rawKeys bool
	err     error
}

// WithTracerProvider sets the provider for spans. A nil p makes [New] return an
// error. Default: the global provider ([otel.GetTracerProvider]), also if the
// application sets it after New.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(s *settings) {
		s.tracers = p
		s.refuse(p == nil, "WithTracerProvider(nil); leave it out for the global one")
	}
}

// WithMeterProvider sets the provider for metrics. A nil p makes [New] return an
// error. Default: the global provider ([otel.GetMeterProvider]), also if the
// application sets it after New.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(s *settings) {
		s.meters = p
		s.refuse(p == nil, "WithMeterProvider(nil); leave it out for the global one")
	}
}

// WithLogger sets the logger for lost leases and for requests that ran without their
// lock or record. For the latter the observer writes at most one record a minute for
// each rule. To log nothing, pass slog.New([slog.DiscardHandler]). A nil l makes
// [New] return an error. Default: [slog.Default], and lost leases only, because a
// rule that fails open ([core.FailOpen]) writes its own warning there.
func WithLogger(l *slog.Logger) Option {
	return func(s *settings) {
		s.log = l
		s.refuse(l == nil, "WithLogger(nil); slog.DiscardHandler logs nothing")
	}
}

// WithRawKeys adds the keys themselves to spans and log records, in addition to their
// hashes. It also adds raw principals to log records, and error texts that contain
// keys. Use it only if every reader of the telemetry may see them. Metrics never
// contain keys. Default: hashes only.
func WithRawKeys() Option {
	return func(s *settings) { s.rawKeys = true }
}

func (s *settings) refuse(bad bool, text string) {
	if bad && s.err == nil {
		s.err = fmt.Errorf("%w: otellock: %s", core.ErrConfig, text)
	}
}

// New makes an [Observer]; pass it to [core.WithObserver]. It returns
// [core.ErrConfig] if a provider or the logger of an option is nil, and the meter's
// error if the meter refuses an instrument. New ignores an [Option] that is nil.
func New(opts ...Option) (*Observer, error) {
	s := settings{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider()}
	for _, o := range opts {
		if o != nil {
			o(&s)
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	module := version.Module()
	o := &Observer{
		tracer:  s.tracers.Tracer(scope, trace.WithInstrumentationVersion(module), trace.WithSchemaURL(semconv.SchemaURL)),
		log:     s.log,
		rawKeys: s.rawKeys,
	}
	meter := s.meters.Meter(scope, metric.WithInstrumentationVersion(module), metric.WithSchemaURL(semconv.SchemaURL))
	err := o.instruments.init(meter)
	g, failure := gaugesOf(s.meters, meter)
	if err = errors.Join(err, failure); err != nil {
		return nil, fmt.Errorf("interlock: otellock: %w", err)
	}
	o.gauges = g
	g.mu.Lock()
	defer g.mu.Unlock()
	g.observers = append(g.observers, o)
	return o, nil
}

// buckets are the bounds of both durations, in seconds. A hand-over within the
// process takes less than the first. A quantile is never above the last bound, and an
// alert fires when a quantile of the wait reaches 80 % of core.Wait: it can do so for a
// core.Wait of up to 75 minutes. Each bound is at most three times the one before.
var buckets = []float64{
	0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600,
}

func (i *instruments) init(m metric.Meter) error {
	var errs []error
	histogram := func(name, what string) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithDescription(what), metric.WithUnit("s"),
			metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
		return h
	}
	upDown := func(name, unit, what string) metric.Int64UpDownCounter {
		c, err := m.Int64UpDownCounter(name, metric.WithDescription(what), metric.WithUnit(unit))
		errs = append(errs, err)
		return c
	}
	counter := func(name, unit, what string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithDescription(what), metric.WithUnit(unit))
		errs = append(errs, err)
		return c
	}
	i.acquire = histogram("interlock.acquire.duration", "Time from asking for a lock to the outcome.")
	i.hold = histogram("interlock.hold.duration", "Time from the grant of a lock to its release or loss.")
	i.queued = histogram("interlock.batch.queue.duration", "Time from the first item of a batch to its section.")
	items, err := m.Int64Histogram("interlock.batch.items", metric.WithDescription("Items of a batch that share a section."),
		metric.WithUnit("{item}"), metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000))
	i.items, errs = items, append(errs, err)
	i.waiters = upDown("interlock.waiters", "{caller}", "Callers that have asked for a lock and have no outcome yet.")
	i.leases = upDown("interlock.leases", "{lease}", "Leases that are neither released nor lost.")
	i.attempts = counter("interlock.attempts", "{attempt}", "Requests to the store for a lock.")
	i.renewals = counter("interlock.renewals", "{renewal}", "Renewals of leases.")
	i.lost = counter("interlock.lost", "{lease}", "Leases that were lost while they were held.")
	i.bypassed = counter("interlock.bypassed", "{request}", "Requests that ran without their lock, or idempotency record, because their rule fails open.")
	i.rejected = counter("interlock.rejected", "{request}", "Requests of which no key could be made, or whose principal is over its limit.")
	i.replays = counter("interlock.replays", "{request}", "Requests to idempotent endpoints that were answered with the stored response.")
	i.decided = counter("interlock.idempotent.requests", "{request}", "Requests to idempotent endpoints, by what became of them.")
	return errors.Join(errs...)
}

// logger returns the logger for records that are always written.
func (o *Observer) logger() *slog.Logger {
	if o.log == nil {
		return slog.Default()
	}
	return o.log
}

// Start implements [observe.Observer]. The context that it returns carries the span
// of the acquisition.
func (o *Observer) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	c := &call{observer: o, rule: o.rule(op.Rule, op.Kind), caller: ctx, keys: op.Keys}
	if op.Unlocked {
		// There is no acquisition, so no span or count stays open.
		return ctx, observe.Observation{Bypassed: c.bypassed, Rejected: c.rejected, Decided: c.decided}
	}
	c.rule.asked(op)
	inner := ctx
	if c.standby = op.Standby; !c.standby {
		c.ctx, c.span = o.tracer.Start(ctx, c.rule.acquire, c.rule.linked(ctx)...)
		o.instruments.waiters.Add(c.ctx, 1, c.rule.add...)
		inner = c.ctx
	}
	observation := observe.Observation{
		Acquired: c.acquired, Released: c.released, Renewed: c.renewed, Lost: c.lost, Gathered: c.gathered,
	}
	if core.LeaseFromContext(ctx) != nil { // else there is no order to break
		observation.Disordered = c.disordered
	}
	return inner, observation
}
