package otellock_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
	_ "github.com/interlock-go/interlock/internal/bubble"
	"github.com/interlock-go/interlock/internal/testkit"
	otellock "github.com/interlock-go/interlock/otel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// probe is an Observer and all that it has written.
type probe struct {
	tb       testing.TB
	observer *otellock.Observer
	tracer   trace.Tracer
	spans    *tracetest.SpanRecorder
	reader   *sdkmetric.ManualReader
	meters   *sdkmetric.MeterProvider
	logs     *testkit.Buffer
}

func newProbe(tb testing.TB, opts ...otellock.Option) *probe {
	tb.Helper()
	p := &probe{tb: tb, spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader(), logs: new(testkit.Buffer)}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p.spans))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(p.reader))
	p.tracer, p.meters = tracers.Tracer("test"), meters
	logger := slog.New(slog.NewJSONHandler(p.logs, nil))
	o, err := otellock.New(append([]otellock.Option{
		otellock.WithTracerProvider(tracers), otellock.WithMeterProvider(meters), otellock.WithLogger(logger),
	}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	p.observer = o
	return p
}

// span returns the n-th ended span of a name.
func (p *probe) span(name string, n int) sdktrace.ReadOnlySpan {
	p.tb.Helper()
	for _, s := range p.spans.Ended() {
		if s.Name() == name {
			if n == 0 {
				return s
			}
			n--
		}
	}
	p.tb.Fatalf("no span %q among %v", name, p.names())
	return nil
}

func (p *probe) names() []string {
	var names []string
	for _, s := range p.spans.Ended() {
		names = append(names, s.Name())
	}
	return names
}

// metrics collects the measurements, by name.
func (p *probe) metrics() map[string]metricdata.Metrics {
	p.tb.Helper()
	var rm metricdata.ResourceMetrics
	if err := p.reader.Collect(context.Background(), &rm); err != nil {
		p.tb.Fatal(err)
	}
	all := map[string]metricdata.Metrics{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			all[m.Name] = m
		}
	}
	return all
}

// counts renders the counters, and of the histograms "number, sum", one line for
// each set of labels, sorted. Up-down counters at zero are there too.
func (p *probe) counts(names ...string) []string {
	p.tb.Helper()
	var lines []string
	for _, m := range p.metrics() {
		if len(names) > 0 && !slices.Contains(names, m.Name) {
			continue
		}
		name := strings.TrimPrefix(m.Name, "interlock.")
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, dp := range data.DataPoints {
				lines = append(lines, fmt.Sprintf("%s{%s} %d", name, labels(dp.Attributes), dp.Value))
			}
		case metricdata.Histogram[float64]:
			for _, dp := range data.DataPoints {
				lines = append(lines, fmt.Sprintf("%s{%s} %d, %g s", name, labels(dp.Attributes), dp.Count, dp.Sum))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

func labels(set attribute.Set) string {
	var all []string
	for _, kv := range set.ToSlice() {
		all = append(all, kv.Value.Emit())
	}
	return strings.Join(all, " ") // the names sort outcome and loss reason first
}

// wantCounts compares counts of all metrics.
func (p *probe) wantCounts(want ...string) {
	p.tb.Helper()
	slices.Sort(want)
	if got := p.counts(); !slices.Equal(got, want) {
		p.tb.Errorf("measured\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// settled fails the test if a span was left open, has an event, or an up-down
// counter is not back at zero.
func (p *probe) settled() {
	p.tb.Helper()
	if started, ended := len(p.spans.Started()), len(p.spans.Ended()); started != ended {
		p.tb.Errorf("%d spans started, %d ended", started, ended)
	}
	for _, s := range p.spans.Ended() {
		if len(s.Events()) != 0 {
			p.tb.Errorf("span %q has events", s.Name())
		}
	}
	for _, line := range p.counts("interlock.waiters", "interlock.leases") {
		if !strings.HasSuffix(line, " 0") {
			p.tb.Errorf("left over: %s", line)
		}
	}
}

// wantSpan compares a span's parent, status and attributes. The token is
// replaced by whether it is there.
func wantSpan(tb testing.TB, s sdktrace.ReadOnlySpan, parent trace.Span, status codes.Code, want ...string) {
	tb.Helper()
	if got := s.Parent().SpanID(); got != parent.SpanContext().SpanID() {
		tb.Errorf("%s: parent %v, want the caller's span", s.Name(), got)
	}
	if s.SpanContext().TraceID() != parent.SpanContext().TraceID() {
		tb.Errorf("%s: not in the caller's trace", s.Name())
	}
	if s.Status().Code != status {
		tb.Errorf("%s: status %+v, want %v", s.Name(), s.Status(), status)
	}
	var got []string
	for _, kv := range s.Attributes() {
		value := kv.Value.Emit()
		if kv.Key == "interlock.token" && kv.Value.AsInt64() > 0 {
			value = "yes"
		}
		got = append(got, strings.TrimPrefix(string(kv.Key), "interlock.")+"="+value)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		tb.Errorf("%s:\n has %q\nwant %q", s.Name(), got, want)
	}
}

// store is a store in memory that shows the context of Acquire.
type store struct {
	*memstore.Store
	acquires func(ctx context.Context) // nil: nothing is shown
}

func (s *store) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if s.acquires != nil {
		s.acquires(ctx)
	}
	return s.Store.Acquire(ctx, req)
}

// failing fails each request.
func failing(err error) func(memstore.Request) memstore.Fault {
	return func(memstore.Request) memstore.Fault { return memstore.Fault{Err: err} }
}

// world is a locker on a store in memory with a probe, inside a bubble: time is free
// and exact.
type world struct {
	*testing.T
	*probe
	store  *store
	locker *core.Locker
	ctx    context.Context // with the caller's span
	caller trace.Span
}

func inWorld(t *testing.T, f func(w *world), opts ...core.LockerOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, probe: newProbe(t), store: &store{Store: memstore.New()}}
		var err error
		w.locker, err = core.New(w.store, append(opts, core.WithObserver(w.observer))...)
		if err != nil {
			t.Fatal(err)
		}
		w.ctx, w.caller = w.tracer.Start(t.Context(), "caller")
		f(w)
		w.store.Intercept(nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.locker.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		synctest.Wait()
		w.caller.End()
		w.settled()
	})
}

func (w *world) lock(key string, opts ...core.Option) *core.Lease {
	w.Helper()
	lease, err := w.locker.Lock(w.ctx, key, opts...)
	if err != nil {
		w.Fatal(err)
	}
	return lease
}

func (w *world) release(lease *core.Lease) {
	w.Helper()
	if err := lease.Release(w.ctx); err != nil {
		w.Error(err)
	}
}

const hashOfK = "8254c329a92850f6" // of "k"

// request is a core.Request with the parameters of a map.
type request map[string]string

func (request) Route() (string, bool) { return "/accounts/{id}", true }

func (request) Query(string) []string { return nil }

func (request) Header(string) []string { return nil }

func (request) Body(int64) ([]byte, error) { return nil, nil }

func (request) Native() any { return nil }

func (request) Value(any) any { return nil }

func (q request) Param(name string) (string, error) {
	if v, ok := q[name]; ok {
		return v, nil
	}
	return "", adapter.ErrNoParam
}
