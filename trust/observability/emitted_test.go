//go:build long

package observability

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
	otellock "github.com/interlock-go/interlock/otel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newObserver returns an observer and the registry of its Prometheus exporter. It watches
// a locker that holds a lock of each kind.
func newObserver(t *testing.T) (*otellock.Observer, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	o, err := otellock.New(
		otellock.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))),
		otellock.WithTracerProvider(tracenoop.NewTracerProvider()), otellock.WithLogger(slog.New(slog.DiscardHandler)),
	)
	if err != nil {
		t.Fatal(err)
	}
	l, err := core.New(memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	o.Watch(l)
	t.Cleanup(o.WatchUnknown(func(context.Context) (int, error) { return 1, nil }))
	for !measured(t, registry, "interlock_idempotent_unknown") { // a collection starts the count
		runtime.Gosched()
	}
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for key, opt := range map[string]core.Option{"a": nil, "b": core.Shared(), "c": core.Permits(1)} {
		lease, err := l.Lock(t.Context(), key, core.Name("rare"), opt)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := lease.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	return o, registry
}

// measured reports whether a registry has a metric.
func measured(t *testing.T, registry *prometheus.Registry, name string) bool {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return true
		}
	}
	return false
}

var (
	// refusals are errors, one for each outcome of an acquisition that fails.
	refusals = []error{
		core.ErrHeld, core.ErrFull, core.ErrQueueFull, core.ErrSuperseded, core.ErrUnavailable, core.ErrNotReplicated, core.ErrKeyOccupied,
		core.ErrClosed, core.ErrLost, core.ErrMaxHold, core.ErrConfig, errors.New("unexpected"),
	}
	// rejections are errors of requests that do not come to ask for the lock.
	rejections = []error{core.ErrKey, core.ErrPrincipalLimit, core.ErrConfig, errors.New("unexpected")}
	losses     = []observe.LossReason{
		observe.LossExpired, observe.LossDeleted, observe.LossTakenOver, observe.LossNotOwner, observe.LossRevoked,
		observe.LossUnavailable, observe.LossMaxHold, observe.LossClosed,
	}
	// lockReasons are why a guard refuses a request.
	lockReasons = []reason.Reason{
		reason.BadKey, reason.BodyTooLarge, reason.BodyIncomplete, reason.BodyTimeout, reason.Held,
		reason.Full, reason.QueueFull, reason.Superseded, reason.PrincipalLimit, reason.Deadline, reason.Canceled,
		reason.Unavailable, reason.NotReplicated, reason.KeyOccupied, reason.Closing, reason.Lost,
		reason.MaxHold, reason.Misconfigured, reason.Internal,
	}
	// keyReasons are the further reasons of an idempotent endpoint to refuse a key.
	keyReasons = []reason.Reason{
		reason.KeyMissing, reason.KeyMalformed, reason.NoPrincipal,
		reason.ContentType, reason.KeyReused, reason.InFlight, reason.OutcomeUnknown,
		reason.ResponseUnavailable, reason.ResponseTooLarge, reason.RolledBack,
		reason.NotAcceptable, reason.KeyExpired, reason.NoRecord,
	}
	decisions = []string{
		observe.DecidedStored, observe.DecidedPending, observe.DecidedReleased,
		observe.DecidedReplayed, observe.DecidedUnknown,
	}
)

// everything tells an observer once of all that can happen to locks and requests.
func everything(ctx context.Context, o *otellock.Observer) {
	over, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancel()
	for _, kind := range []string{"exclusive", "shared", "permit"} {
		start := func(ctx context.Context) observe.Observation {
			_, observation := o.Start(ctx, observe.Operation{
				Rule: "rare", Kind: kind, Keys: []string{"k"}, Wait: time.Second, MaxHold: time.Minute,
			})
			return observation
		}
		for _, err := range refusals {
			start(ctx).Acquired(observe.Acquired{Err: err, Waited: time.Second, Attempts: 1})
		}
		start(over).Acquired(observe.Acquired{Err: over.Err(), Waited: time.Second})
		held := start(ctx)
		held.Acquired(observe.Acquired{Token: 1, Attempts: 1})
		for _, err := range []error{nil, core.ErrUnavailable, core.ErrLost} {
			held.Renewed(observe.Renewed{Key: "k", Err: err})
		}
		held.Released(observe.Released{Held: time.Second})
		for _, reason := range losses {
			lost := start(ctx)
			lost.Acquired(observe.Acquired{Token: 1, Attempts: 1})
			lost.Lost(core.Loss{Key: "k", Rule: "rare", Reason: reason, Held: time.Second})
		}
		_, unlocked := o.Start(ctx, observe.Operation{Rule: "rare", Kind: kind, Unlocked: true})
		for _, err := range rejections {
			unlocked.Rejected(err)
		}
		unlocked.Bypassed(core.ErrUnavailable)
	}
	// An event without a lock has no kind.
	_, endpoint := o.Start(ctx, observe.Operation{Rule: "rare endpoint", Unlocked: true})
	for _, outcome := range decisions {
		endpoint.Decided(observe.Decided{Outcome: outcome})
	}
	for _, why := range slices.Concat(lockReasons, keyReasons) {
		endpoint.Decided(observe.Decided{Outcome: observe.DecidedRefused, Reason: string(why)})
	}
}

// metricLabels are the labels of a metric, and their values.
type metricLabels map[string]map[string]bool

func (m metricLabels) add(label, value string) {
	if m[label] == nil {
		m[label] = make(map[string]bool)
	}
	m[label][value] = true
}

// has reports whether a metric has all labels.
func (m metricLabels) has(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return m[name] == nil })
}

// emitted returns the output of otellock through the Prometheus exporter, by the names of the
// series that Prometheus stores, with the labels that a scrape adds.
func emitted(t *testing.T) map[string]metricLabels {
	t.Helper()
	o, registry := newObserver(t)
	everything(t.Context(), o)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]metricLabels)
	for _, family := range families {
		labels, bounds := metricLabels{}, map[string]bool{"+Inf": true}
		histogram := false
		for _, m := range family.GetMetric() {
			labels.add("job", "")
			labels.add("instance", "")
			for _, l := range m.GetLabel() {
				labels.add(l.GetName(), l.GetValue())
			}
			histogram = histogram || m.GetHistogram() != nil
			for _, b := range m.GetHistogram().GetBucket() {
				bounds[strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)] = true
			}
		}
		name := family.GetName()
		if !histogram {
			all[name] = labels
			continue
		}
		all[name+"_count"], all[name+"_sum"] = labels, labels
		buckets := maps.Clone(labels)
		buckets["le"] = bounds
		all[name+"_bucket"] = buckets
	}
	return all
}

// Users build on the names: they are in dashboards that are not ours.
func TestTheExporterGivesTheMetricsTheseNames(t *testing.T) {
	want := []string{
		"interlock_acquire_duration_seconds_bucket", "interlock_acquire_duration_seconds_count", "interlock_acquire_duration_seconds_sum",
		"interlock_attempts_total", "interlock_bypassed_total",
		"interlock_hold_duration_seconds_bucket", "interlock_hold_duration_seconds_count", "interlock_hold_duration_seconds_sum",
		"interlock_hold_oldest_seconds", "interlock_idempotent_requests_total", "interlock_idempotent_unknown", "interlock_leases", "interlock_lost_total",
		"interlock_queue_longest", "interlock_rejected_total", "interlock_renewals_total", "interlock_replays_total",
		"interlock_rule_max_hold_seconds", "interlock_rule_wait_seconds", "interlock_undelivered_total", "interlock_waiters",
	}
	all := emitted(t)
	got := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool { return name == "target_info" })
	if !slices.Equal(got, want) {
		t.Errorf("emitted\n%q; want\n%q", got, want)
	}
	for name, labels := range map[string][]string{
		"interlock_acquire_duration_seconds_bucket": {"interlock_rule", "interlock_kind", "interlock_outcome", "le"},
		"interlock_lost_total":                      {"interlock_rule", "interlock_kind", "interlock_loss_reason"},
		"interlock_hold_oldest_seconds":             {"interlock_rule", "interlock_kind"},
		"interlock_idempotent_requests_total":       {"interlock_rule", "interlock_outcome"},
	} {
		if !all[name].has(labels...) {
			t.Errorf("%s has the labels %q; want %q among them", name, slices.Sorted(maps.Keys(all[name])), labels)
		}
	}
	for _, endpoint := range []string{"interlock_idempotent_requests_total", "interlock_replays_total"} {
		if all[endpoint].has("interlock_kind") {
			t.Errorf("%s has a kind: no lock is asked for", endpoint)
		}
	}
	if n := len(all["interlock_idempotent_requests_total"]["interlock_outcome"]); n != len(decisions)+len(lockReasons)+len(keyReasons) {
		t.Errorf("%d outcomes of idempotent endpoints", n)
	}
}
