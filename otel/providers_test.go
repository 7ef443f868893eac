package otellock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/version"
	otellock "github.com/interlock-go/interlock/otel"
)

// secret is a key that may not leave the process, nor a part of it. It is no text: an
// exporter of OTLP would drop the spans of a whole batch because of it.
// Its parts have a "-", which no random ID of a trace can have.
const secret = "customer/47-11-\"ja-ne\"\xff"

func TestKeysLeaveTheProcessOnlyByOption(t *testing.T) {
	for _, raw := range []bool{false, true} {
		t.Run(fmt.Sprintf("raw %v", raw), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var opts []otellock.Option
				if raw {
					opts = append(opts, otellock.WithRawKeys())
				}
				p, s := newProbe(t, opts...), &store{Store: memstore.New()}
				l, err := core.New(s, core.WithObserver(p.observer), core.Name("r"))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close(context.Background())
				leaseOf := func(opts ...core.Option) *core.Lease {
					lease, err := l.Lock(t.Context(), secret, opts...)
					if err != nil {
						t.Fatal(err)
					}
					return lease
				}
				fail := func(r memstore.Request) memstore.Fault {
					text := "redis: no route to " + secret
					if r.Op != memstore.Acquire {
						text = fmt.Sprintf("redis: no route to %q", secret)
					}
					return memstore.Fault{Err: fmt.Errorf("%w: %w", core.ErrUnavailable, errors.New(text))}
				}
				// Every kind of span, metric and record, and each failure with
				// an error that tells the key.
				_ = leaseOf().Release(t.Context())
				lease := leaseOf()
				s.Take(secret, time.Minute)
				_ = lease.Release(t.Context())
				_, _ = l.TryLock(t.Context(), secret)
				time.Sleep(time.Minute)
				lease = leaseOf()
				s.Intercept(fail)
				time.Sleep(time.Minute)
				_ = lease.Release(t.Context())
				_, _ = l.Lock(t.Context(), secret)
				_, _ = l.LockAll(t.Context(), []string{secret, secret + "2"})
				g := core.Serialize(l, "", core.FailOpen(), core.KeyFunc(func(context.Context, core.Request) ([]string, error) {
					return []string{secret}, nil
				}))
				quiet := slog.Default()
				slog.SetDefault(slog.New(slog.DiscardHandler))
				defer slog.SetDefault(quiet)
				g.Do(t.Context(), request{}, func(context.Context) bool { return true })
				g = core.Serialize(l, "", core.KeyFunc(func(context.Context, core.Request) ([]string, error) {
					return nil, fmt.Errorf("who is %s", secret)
				}))
				g.Do(t.Context(), request{}, func(context.Context) bool { return true })
				s.Intercept(nil)
				synctest.Wait()
				p.settled()

				var spans strings.Builder
				for _, stub := range tracetest.SpanStubsFromReadOnlySpans(p.spans.Ended()) {
					fmt.Fprintf(&spans, "%s %v %v %v\n", stub.Name, stub.Attributes, stub.Status, stub.Events)
					for _, kv := range stub.Attributes {
						fmt.Fprintln(&spans, kv.Key, kv.Value.AsInterface())
					}
				}
				metrics, err := json.Marshal(slices.Collect(maps.Values(p.metrics())))
				if err != nil {
					t.Fatal(err)
				}
				for what, c := range map[string]struct {
					text string
					raw  bool
				}{"spans": {spans.String(), raw}, "metrics": {string(metrics), false}, "logs": {p.logs.String(), raw}} {
					if len(c.text) < 500 {
						t.Fatalf("%s: hardly anything recorded: %s", what, c.text)
					}
					if !utf8.ValidString(c.text) {
						t.Errorf("%s are no UTF-8", what)
					}
					if strings.Contains(c.text, "47-11") != c.raw || strings.Contains(c.text, "ja-ne") != c.raw {
						t.Errorf("%s hold the key: %v, want %v:\n%s", what, !c.raw, c.raw, c.text)
					}
				}
				if !strings.Contains(spans.String(), core.Hashed(secret).Hash()) || !strings.Contains(p.logs.String(), core.Hashed(secret).Hash()) {
					t.Error("the hash is not there")
				}
			})
		})
	}
}

func TestAnErrorsTextIsToldWhereItHoldsNoKey(t *testing.T) {
	inWorld(t, func(w *world) {
		w.store.Intercept(failing(fmt.Errorf("%w: %w", core.ErrUnavailable, errors.New("DENIED by the server"))))
		_, err := w.locker.Lock(w.ctx, "account/1", core.Name("r"))
		if err == nil {
			w.Fatal("granted")
		}
		if got := w.span("lock acquire r", 0).Status().Description; got != "DENIED by the server" {
			w.Errorf("description %q of %v", got, err)
		}
	})
}

func TestSlowMeasurementsLeadToTheirTraces(t *testing.T) {
	inWorld(t, func(w *world) {
		lease := w.lock("k", core.Name("r"))
		w.store.Take("k", time.Minute)
		_ = lease.Release(w.ctx)
		all := w.metrics()
		for name, want := range map[string]sdktrace.ReadOnlySpan{
			"interlock.acquire.duration": w.span("lock acquire r", 0),
			"interlock.hold.duration":    w.span("lock release r", 0),
		} {
			ex := all[name].Data.(metricdata.Histogram[float64]).DataPoints[0].Exemplars
			id, tr := want.SpanContext().SpanID(), want.SpanContext().TraceID()
			if len(ex) != 1 || !bytes.Equal(ex[0].SpanID, id[:]) || !bytes.Equal(ex[0].TraceID, tr[:]) {
				w.Errorf("%s: exemplars %+v, want span %v", name, ex, id)
			}
		}
		for _, name := range []string{"interlock.lost", "interlock.attempts", "interlock.leases", "interlock.waiters"} {
			tr := w.caller.SpanContext().TraceID()
			if ex := all[name].Data.(metricdata.Sum[int64]).DataPoints[0].Exemplars; len(ex) == 0 || !bytes.Equal(ex[0].TraceID, tr[:]) {
				w.Errorf("%s: exemplars %+v", name, ex)
			}
		}
	})
}

func TestMetricsHaveTheirUnitsAndBuckets(t *testing.T) {
	inWorld(t, func(w *world) {
		w.release(w.lock("k"))
		units := map[string]string{}
		for name, m := range w.metrics() {
			units[name] = m.Unit
			if m.Description == "" {
				w.Errorf("%s has no description", name)
			}
			if h, ok := m.Data.(metricdata.Histogram[float64]); ok {
				bounds := h.DataPoints[0].Bounds
				if bounds[0] != 0.0001 || bounds[len(bounds)-1] != 3600 || !slices.IsSorted(bounds) {
					w.Errorf("%s: bounds %v", name, bounds)
				}
			}
			if s, ok := m.Data.(metricdata.Sum[int64]); ok && s.IsMonotonic != (name == "interlock.attempts") {
				w.Errorf("%s: monotonic %v", name, s.IsMonotonic)
			}
		}
		want := map[string]string{
			"interlock.acquire.duration": "s", "interlock.hold.duration": "s",
			"interlock.waiters": "{caller}", "interlock.leases": "{lease}", "interlock.attempts": "{attempt}",
		}
		if !maps.Equal(units, want) {
			w.Errorf("units %v, want %v", units, want)
		}
	})
}

func TestNamesMadeOfRequestsDoNotMakeLabelsWithoutEnd(t *testing.T) {
	inWorld(t, func(w *world) {
		for i := range 1100 {
			w.release(w.lock("k", core.Name(fmt.Sprint("order ", i))))
		}
		got := w.counts("interlock.attempts")
		if len(got) != 1001 || !slices.Contains(got, "attempts{_OTHER} 100") {
			w.Errorf("%d labels", len(got))
		}
		w.span("lock acquire _OTHER", 99)
		w.release(w.lock("p", core.Name("order 1101"), core.Permits(1)))
		if got := w.counts("interlock.attempts"); !slices.Contains(got, "attempts{permit _OTHER} 1") {
			w.Errorf("the permit of a further name has no kind: %q", got[len(got)-2:])
		}
		if n := strings.Count(w.logs.String(), "too many names"); n != 1 {
			w.Errorf("%d warnings", n)
		}
	})
}

// global are the providers that the test below makes the global ones. The API hands over
// earlier instruments only once in a process.
var global struct {
	once   sync.Once
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
}

func TestTheGlobalProvidersAreUsedAlsoWhenTheyComeLater(t *testing.T) {
	o, err := otellock.New()
	if err != nil {
		t.Fatal(err)
	}
	global.once.Do(func() {
		global.spans, global.reader = tracetest.NewSpanRecorder(), sdkmetric.NewManualReader()
		otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(global.spans)))
		otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(global.reader)))
	})
	before := len(global.spans.Ended())
	_, observation := o.Start(t.Context(), observe.Operation{Rule: "r", Keys: []string{"k"}})
	observation.Acquired(observe.Acquired{Token: 1})
	observation.Released(observe.Released{})
	p := &probe{tb: t, spans: global.spans, reader: global.reader}
	p.settled()
	s := p.span("lock acquire r", before/2)
	if scope := s.InstrumentationScope(); scope.Name != "github.com/interlock-go/interlock/otel" ||
		!strings.HasPrefix(scope.SchemaURL, "https://opentelemetry.io/schemas/") || scope.Version != version.Module() {
		t.Errorf("scope %+v", scope)
	}
	if got := p.counts("interlock.leases"); !slices.Equal(got, []string{"leases{r} 0"}) {
		t.Errorf("measured %q", got)
	}
}

// stubborn is a MeterProvider that refuses an instrument.
type stubborn struct{ noop.MeterProvider }

func (stubborn) Meter(string, ...metric.MeterOption) metric.Meter { return stubbornMeter{} }

type stubbornMeter struct{ noop.Meter }

var errStubborn = errors.New("no")

func (stubbornMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errStubborn
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for name, c := range map[string]struct {
		opt  otellock.Option
		want error
	}{
		"tracers":    {otellock.WithTracerProvider(nil), core.ErrConfig},
		"meters":     {otellock.WithMeterProvider(nil), core.ErrConfig},
		"logger":     {otellock.WithLogger(nil), core.ErrConfig},
		"instrument": {otellock.WithMeterProvider(stubborn{}), errStubborn},
		"no option":  {nil, nil},
	} {
		if o, err := otellock.New(c.opt); !errors.Is(err, c.want) || (o == nil) == (err == nil) {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
}
