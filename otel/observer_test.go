package otellock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
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
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/adaptertest"
	_ "github.com/interlock-go/interlock/internal/bubble"
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
	logs     *adaptertest.Buffer
}

func newProbe(tb testing.TB, opts ...otellock.Option) *probe {
	tb.Helper()
	p := &probe{tb: tb, spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader(), logs: new(adaptertest.Buffer)}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p.spans))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(p.reader))
	p.tracer = tracers.Tracer("test")
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

// metrics collects what was measured, by name.
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
		all = append(all, kv.Value.String())
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
		value := kv.Value.String()
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

// store is one in memory whose Acquire shows its context.
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

func TestALockIsTwoSpansUnderTheCallersAndTheStoresCommandsAreBelow(t *testing.T) {
	inWorld(t, func(w *world) {
		var inStore trace.SpanContext
		w.store.acquires = func(ctx context.Context) { inStore = trace.SpanContextFromContext(ctx) }
		w.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Fault{Before: 2 * time.Second} })
		begin := time.Now()
		lease := w.lock("k", core.Name("debit"))
		if got := trace.SpanFromContext(lease.Context()); got != w.caller {
			w.Error("the handler runs under another span than the caller's")
		}
		time.Sleep(3 * time.Second)
		w.release(lease)

		acquire, release := w.span("lock acquire debit", 0), w.span("lock release debit", 0)
		wantSpan(w, acquire, w.caller, codes.Unset, "rule=debit", "key_hash="+hashOfK, "outcome=granted",
			"contended=false", "attempts=1", "reentered=false", "token=yes")
		wantSpan(w, release, w.caller, codes.Unset, "rule=debit", "key_hash="+hashOfK, "outcome=released",
			"handed_over=false", "reentered=false", "token=yes")
		if !inStore.Equal(acquire.SpanContext()) {
			w.Error("the store was asked under another span than the acquire's")
		}
		for s, want := range map[sdktrace.ReadOnlySpan][2]time.Duration{
			acquire: {0, 2 * time.Second}, release: {5 * time.Second, 7 * time.Second},
		} {
			if from, to := s.StartTime().Sub(begin), s.EndTime().Sub(begin); from != want[0] || to != want[1] {
				w.Errorf("%s from %v to %v, want %v", s.Name(), from, to, want)
			}
		}
		w.wantCounts("acquire.duration{granted debit} 1, 2 s", "hold.duration{released debit} 1, 3 s",
			"attempts{debit} 1", "waiters{debit} 0", "leases{debit} 0")
		if core.Hashed("k").Hash() != hashOfK {
			w.Error("the hash of a key has changed: what was recorded is not found by it any more")
		}
	})
}

func TestALockWithoutANameHasSpansAndMetricsWithoutOne(t *testing.T) {
	inWorld(t, func(w *world) {
		w.release(w.lock("k"))
		wantSpan(w, w.span("lock acquire", 0), w.caller, codes.Unset, "key_hash="+hashOfK, "outcome=granted",
			"contended=false", "attempts=1", "reentered=false", "token=yes")
		w.span("lock release", 0)
		w.wantCounts("acquire.duration{granted} 1, 0 s", "hold.duration{released} 1, 0 s",
			"attempts{} 1", "waiters{} 0", "leases{} 0")
	})
}

func TestAWaiterIsCountedWhileItWaitsAndAHolderWhileItHolds(t *testing.T) {
	inWorld(t, func(w *world) {
		first := w.lock("k", core.Name("r"))
		done := make(chan struct{})
		go func() {
			defer close(done)
			second := w.lock("k", core.Name("r"))
			time.Sleep(time.Second)
			w.release(second)
		}()
		time.Sleep(3 * time.Second)
		w.wantCounts("acquire.duration{granted r} 1, 0 s", "attempts{r} 1", "waiters{r} 1", "leases{r} 1")
		w.release(first)
		<-done
		w.wantCounts("acquire.duration{granted r} 2, 3 s", "hold.duration{released r} 2, 4 s",
			"attempts{r} 1", "renewals{renewed r} 1", "waiters{r} 0", "leases{r} 0") // renewed to ask whether others wait
		wantSpan(w, w.span("lock acquire r", 1), w.caller, codes.Unset, "rule=r", "key_hash="+hashOfK,
			"outcome=granted", "contended=true", "attempts=0", "reentered=false", "token=yes")
		wantSpan(w, w.span("lock release r", 0), w.caller, codes.Unset, "rule=r", "key_hash="+hashOfK,
			"outcome=released", "handed_over=true", "reentered=false", "token=yes")
	})
}

func TestEveryWayNotToGetALockHasItsOutcome(t *testing.T) {
	fails := func(err error) func(w *world) error {
		return func(w *world) error {
			w.store.Intercept(failing(err))
			_, err := w.locker.Lock(w.ctx, "k", core.Name("r"))
			return err
		}
	}
	for name, c := range map[string]struct {
		do     func(w *world) error
		want   string
		status codes.Code
		waits  time.Duration
	}{
		"held elsewhere": {func(w *world) error {
			w.store.Take("k", time.Minute)
			_, err := w.locker.TryLock(w.ctx, "k", core.Name("r"))
			return err
		}, "held", codes.Unset, 0},
		"held for the whole wait": {func(w *world) error {
			w.store.Take("k", time.Minute)
			_, err := w.locker.Lock(w.ctx, "k", core.Name("r"), core.Wait(2*time.Second))
			return err
		}, "held", codes.Unset, 2 * time.Second},
		"too many wait": {func(w *world) error {
			w.store.Take("k", 5*time.Second)
			done := make(chan struct{})
			go func() { defer close(done); w.release(w.lock("k", core.Name("other"))) }()
			synctest.Wait()
			_, err := w.locker.Lock(w.ctx, "k", core.Name("r"), core.MaxWaiters(1))
			<-done
			return err
		}, "queue_full", codes.Unset, 0},
		"the caller left": {func(w *world) error {
			w.store.Take("k", time.Minute)
			gone := errors.New("connection closed")
			ctx, cancel := context.WithCancelCause(w.ctx)
			time.AfterFunc(time.Second, func() { cancel(gone) })
			_, err := w.locker.Lock(ctx, "k", core.Name("r"))
			return err
		}, "canceled", codes.Unset, time.Second},
		"the caller's time was over": {func(w *world) error {
			w.store.Take("k", time.Minute)
			ctx, cancel := context.WithTimeout(w.ctx, time.Second)
			defer cancel()
			_, err := w.locker.Lock(ctx, "k", core.Name("r"))
			return err
		}, "deadline", codes.Unset, time.Second},
		"the store is down":    {fails(core.ErrUnavailable), "unavailable", codes.Error, 0},
		"the store says so":    {fails(errors.New("ERR")), "unavailable", codes.Error, 0},
		"too few replicas":     {fails(core.ErrNotReplicated), "not_replicated", codes.Error, 0},
		"the lease above lost": {doUnderALostLease, "lost", codes.Error, 0},
		"the process closes": {func(w *world) error {
			w.store.Take("k", time.Minute)
			time.AfterFunc(time.Second, func() { _ = w.locker.Close(w.ctx) })
			_, err := w.locker.Lock(w.ctx, "k", core.Name("r"))
			return err
		}, "closing", codes.Error, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				if err := c.do(w); err == nil {
					w.Fatal("the lock was granted")
				}
				s := w.span("lock acquire r", 0)
				attrs := map[attribute.Key]string{}
				for _, kv := range s.Attributes() {
					attrs[kv.Key] = kv.Value.String()
				}
				if attrs["interlock.outcome"] != c.want || attrs["error.type"] != c.want || s.Status().Code != c.status {
					w.Errorf("attributes %v, status %v; want %s, %v", attrs, s.Status(), c.want, c.status)
				}
				if _, ok := attrs["interlock.token"]; ok {
					w.Error("a token without a grant")
				}
				if got := w.counts("interlock.acquire.duration"); !slices.Contains(got, fmt.Sprintf("acquire.duration{%s r} 1, %g s", c.want, c.waits.Seconds())) {
					w.Errorf("measured %q", got)
				}
			})
		})
	}
}

// doUnderALostLease re-enters a lock that was lost.
func doUnderALostLease(w *world) error {
	outer := w.lock("k", core.Name("outer"), core.TTL(time.Second))
	<-outer.Context().Done()
	_, err := w.locker.Lock(outer.Context(), "k", core.Name("r"))
	return err
}

func TestAReenteredLockIsSeenInTheTraceAndIsNoSecondLease(t *testing.T) {
	inWorld(t, func(w *world) {
		outer := w.lock("k", core.Name("outer"))
		inner, err := w.locker.Lock(outer.Context(), "k", core.Name("inner"))
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Second)
		w.wantCounts("acquire.duration{granted outer} 1, 0 s", "attempts{outer} 1",
			"waiters{outer} 0", "waiters{inner} 0", "leases{outer} 1")
		w.release(outer) // the inner hold goes on, and with it the lock
		w.release(inner)
		wantSpan(w, w.span("lock acquire inner", 0), w.caller, codes.Unset, "rule=inner", "key_hash="+hashOfK,
			"outcome=granted", "contended=false", "attempts=0", "reentered=true", "token=yes")
		wantSpan(w, w.span("lock release inner", 0), w.caller, codes.Unset, "rule=inner", "key_hash="+hashOfK,
			"outcome=released", "handed_over=false", "reentered=true", "token=yes")
		w.wantCounts("acquire.duration{granted outer} 1, 0 s", "attempts{outer} 1", "hold.duration{released outer} 1, 1 s",
			"waiters{outer} 0", "waiters{inner} 0", "leases{outer} 0")
	})
}

func TestALeaseOfSeveralLocksIsOneLease(t *testing.T) {
	inWorld(t, func(w *world) {
		lease, err := w.locker.LockAll(w.ctx, []string{"m", "k"}, core.Name("transfer"))
		if err != nil {
			w.Fatal(err)
		}
		w.wantCounts("acquire.duration{granted transfer} 1, 0 s", "attempts{transfer} 2",
			"waiters{transfer} 0", "leases{transfer} 1")
		w.release(lease)
		both := `["` + hashOfK + `","` + core.Hashed("m").Hash() + `"]`
		wantSpan(w, w.span("lock acquire transfer", 0), w.caller, codes.Unset, "rule=transfer", "key_count=2", "key_hashes="+both,
			"outcome=granted", "contended=false", "attempts=2", "reentered=false", "token=yes")
		wantSpan(w, w.span("lock release transfer", 0), w.caller, codes.Unset, "rule=transfer", "key_count=2", "key_hashes="+both,
			"outcome=released", "handed_over=false", "reentered=false", "token=yes")

		// All or none: what was taken and given back is no lease.
		w.store.Take("m", time.Minute)
		if _, err := w.locker.LockAll(w.ctx, []string{"k", "m"}, core.Name("transfer"), core.Wait(time.Second)); !errors.Is(err, core.ErrHeld) {
			w.Fatal(err)
		}
		w.wantCounts("acquire.duration{granted transfer} 1, 0 s", "acquire.duration{held transfer} 1, 1 s",
			"hold.duration{released transfer} 1, 0 s", "attempts{transfer} 4", "waiters{transfer} 0", "leases{transfer} 0")
		if n := strings.Count(fmt.Sprint(w.names()), "release"); n != 1 {
			w.Errorf("%d release spans: %v", n, w.names())
		}
	})
}

func TestManyKeysAreCountedAndTheFirstOfThemNamed(t *testing.T) {
	inWorld(t, func(w *world) {
		var keys []string
		for i := range 40 {
			keys = append(keys, fmt.Sprintf("k%02d", i))
		}
		lease, err := w.locker.LockAll(w.ctx, keys)
		if err != nil {
			w.Fatal(err)
		}
		w.release(lease)
		for _, kv := range w.span("lock acquire", 0).Attributes() {
			if kv.Key == "interlock.key_hashes" && len(kv.Value.AsStringSlice()) != 16 ||
				kv.Key == "interlock.key_count" && kv.Value.AsInt64() != 40 {
				w.Errorf("%v", kv)
			}
		}
	})
}

func TestALockThatSortsBeforeAHeldOneIsMarked(t *testing.T) {
	inWorld(t, func(w *world) {
		outer := w.lock("k", core.Name("outer"))
		for _, key := range []string{"a", "z"} {
			lease, err := w.locker.Lock(outer.Context(), key, core.Name(key))
			if err != nil {
				w.Fatal(err)
			}
			w.release(lease)
		}
		w.release(outer)
		for key, want := range map[string]bool{"a": true, "z": false} {
			marked := slices.ContainsFunc(w.span("lock acquire "+key, 0).Attributes(), func(kv attribute.KeyValue) bool {
				return kv.Key == "interlock.disordered" && kv.Value.AsBool()
			})
			if marked != want {
				w.Errorf("%s marked: %v", key, marked)
			}
		}
	})
}

func TestRenewalsAreCountedAndOnlyFailuresAreSpans(t *testing.T) {
	inWorld(t, func(w *world) {
		lease := w.lock("k", core.Name("r"), core.Watchdog(30*time.Second))
		time.Sleep(25 * time.Second) // renewed at 10 and 20
		w.store.Intercept(func(r memstore.Request) memstore.Fault {
			w.store.Intercept(nil)
			err := fmt.Errorf("%w: %s: connection reset", core.ErrUnavailable, r.Op)
			return memstore.Fault{Before: 100 * time.Millisecond, Err: err}
		})
		time.Sleep(10 * time.Second) // fails at 30, succeeds at 31.1
		w.release(lease)
		w.wantCounts("acquire.duration{granted r} 1, 0 s", "hold.duration{released r} 1, 35 s", "attempts{r} 1",
			"renewals{renewed r} 3", "renewals{unavailable r} 1", "waiters{r} 0", "leases{r} 0")
		s := w.span("lock renew r", 0)
		wantSpan(w, s, w.caller, codes.Error, "rule=r", "key_hash="+hashOfK, "outcome=unavailable", "error.type=unavailable")
		if took := s.EndTime().Sub(s.StartTime()); took != 100*time.Millisecond {
			w.Errorf("the renewal's span took %v", took)
		}
		if len(w.spans.Ended()) != 3 {
			w.Errorf("spans: %v", w.names())
		}
	})
}

func TestALostLeaseIsCountedAndLoggedOnceAndIsNoLongerHeld(t *testing.T) {
	for reason, c := range map[observe.LossReason]struct {
		opts  []core.Option
		keys  []string
		lose  func(w *world)
		how   string // of the hold
		level string
		err   error // of the release
	}{
		observe.LossExpired: {
			opts: []core.Option{core.TTL(time.Second)}, lose: func(*world) { time.Sleep(time.Second) },
			how: "lost", level: "WARN", err: core.ErrLost,
		},
		observe.LossMaxHold: {
			opts: []core.Option{core.MaxHold(time.Second)}, lose: func(*world) { time.Sleep(time.Second) },
			how: "max_hold", level: "WARN", err: core.ErrMaxHold,
		},
		observe.LossTakenOver: { // both locks at once, in one batch
			keys: []string{"k", "m"},
			lose: func(w *world) {
				w.store.Take("k", time.Minute)
				w.store.Take("m", time.Minute)
				time.Sleep(11 * time.Second)
			},
			how: "lost", level: "ERROR", err: core.ErrLost,
		},
		observe.LossUnavailable: {
			lose: func(w *world) {
				w.store.Intercept(failing(core.ErrUnavailable))
				time.Sleep(30 * time.Second)
				w.store.Intercept(nil)
			},
			how: "lost", level: "ERROR", err: core.ErrLost,
		},
		observe.LossClosed: {
			lose: func(w *world) {
				ctx, cancel := context.WithTimeout(w.ctx, time.Second)
				defer cancel()
				if err := w.locker.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
					w.Error(err)
				}
			},
			how: "lost", level: "WARN", err: core.ErrLost,
		},
	} {
		for _, release := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, released %v", reason, release), func(t *testing.T) {
				inWorld(t, func(w *world) {
					keys := c.keys
					if keys == nil {
						keys = []string{"k"}
					}
					lease, err := w.locker.LockAll(w.ctx, keys, append(c.opts, core.Name("r"))...)
					if err != nil {
						w.Fatal(err)
					}
					begin := time.Now()
					c.lose(w)
					synctest.Wait()
					lostAt := time.Since(begin)
					if got, want := w.counts("interlock.lost", "interlock.leases"), []string{"leases{r} 0", fmt.Sprintf("lost{%s r} 1", reason)}; !slices.Equal(got, want) {
						w.Errorf("measured %q, want %q", got, want)
					}
					if release {
						time.Sleep(time.Hour) // not a part of the hold any more
						if err := lease.Release(w.ctx); !errors.Is(err, c.err) {
							w.Errorf("Release: %v", err)
						}
						found := slices.ContainsFunc(w.span("lock release r", 0).Attributes(), func(kv attribute.KeyValue) bool {
							return kv.Key == "interlock.loss_reason" && kv.Value.AsString() == string(reason)
						})
						if !found {
							w.Errorf("release span has %v", w.span("lock release r", 0).Attributes())
						}
					}
					hold := w.counts("interlock.hold.duration")
					if len(hold) != 1 || !strings.HasPrefix(hold[0], "hold.duration{"+c.how+" r} 1, ") {
						w.Errorf("held %q", hold)
					}
					if m := w.metrics()["interlock.hold.duration"].Data.(metricdata.Histogram[float64]).DataPoints[0]; m.Sum > lostAt.Seconds() {
						w.Errorf("held for %v s, lost after %v", m.Sum, lostAt)
					}
					var record struct {
						Level, Msg, Rule, Reason string
						Hash                     string `json:"key_hash"`
						Hashes                   []string
						Token, Held              int64
						Owner                    string
					}
					if err := json.Unmarshal([]byte(w.logs.String()), &record); err != nil {
						w.Fatalf("want one record: %v in %s", err, w.logs)
					}
					if record.Level != c.level || record.Rule != "r" || record.Reason != string(reason) || record.Token == 0 ||
						record.Owner == "" || record.Held != lostAt.Nanoseconds() && reason == observe.LossMaxHold ||
						len(keys) == 1 && record.Hash != hashOfK {
						w.Errorf("logged %s", w.logs)
					}
				})
			})
		}
	}
}

func TestALossThatOnlyTheReleaseFindsIsCountedAndLogged(t *testing.T) {
	inWorld(t, func(w *world) {
		lease := w.lock("k", core.Name("r"))
		w.store.Take("k", time.Minute)
		if err := lease.Release(w.ctx); !errors.Is(err, core.ErrLost) {
			w.Fatal(err)
		}
		w.wantCounts("acquire.duration{granted r} 1, 0 s", "hold.duration{lost r} 1, 0 s", "attempts{r} 1",
			"lost{taken_over r} 1", "waiters{r} 0", "leases{r} 0")
		wantSpan(w, w.span("lock release r", 0), w.caller, codes.Error, "rule=r", "key_hash="+hashOfK, "outcome=lost",
			"handed_over=false", "reentered=false", "token=yes", "loss_reason=taken_over", "error.type=lost")
		if n := strings.Count(w.logs.String(), "lease lost"); n != 1 {
			w.Errorf("logged %s", w.logs)
		}
	})
}

func TestAReleaseThatDoesNotReachTheStoreIsAnErrorAndEndsTheHold(t *testing.T) {
	inWorld(t, func(w *world) {
		lease := w.lock("k", core.Name("r"))
		w.store.Intercept(failing(driver.ErrNotReady))
		ctx, cancel := context.WithCancel(w.ctx)
		cancel() // a client that has gone has nothing to do with it
		if err := lease.Release(ctx); !errors.Is(err, driver.ErrNotReady) {
			w.Fatal(err)
		}
		wantSpan(w, w.span("lock release r", 0), w.caller, codes.Error, "rule=r", "key_hash="+hashOfK, "outcome=unavailable",
			"handed_over=false", "reentered=false", "token=yes", "error.type=unavailable")
		if got := w.counts("interlock.hold.duration", "interlock.leases"); !slices.Equal(got, []string{"hold.duration{unavailable r} 1, 0 s", "leases{r} 0"}) {
			w.Errorf("measured %q", got)
		}
	})
}

// request is a core.Request with the parameters of a map.
type request map[string]string

func (request) Route() (string, bool)      { return "/accounts/{id}", true }
func (request) Query(string) []string      { return nil }
func (request) Header(string) []string     { return nil }
func (request) Body(int64) ([]byte, error) { return nil, nil }
func (request) Native() any                { return nil }
func (request) Value(any) any              { return nil }
func (q request) Param(name string) (string, error) {
	if v, ok := q[name]; ok {
		return v, nil
	}
	return "", adapter.ErrNoParam
}

func TestARequestThatRunsWithoutItsLockIsCountedAndLoggedOnceASecond(t *testing.T) {
	inWorld(t, func(w *world) {
		quiet := slog.Default()
		slog.SetDefault(slog.New(slog.DiscardHandler)) // where the guard itself warns
		defer slog.SetDefault(quiet)
		g := core.Serialize(w.locker, "account/{id}", core.FailOpen())
		w.store.Intercept(failing(core.ErrUnavailable))
		for range 5 {
			if refusal := g.Do(w.ctx, request{"id": "1"}, func(context.Context) bool { return true }); refusal != nil {
				w.Fatal(refusal.Err)
			}
		}
		time.Sleep(time.Second)
		g.Do(w.ctx, request{"id": "1"}, func(context.Context) bool { return true })
		w.wantCounts("acquire.duration{unavailable account/{id}} 6, 0 s", "attempts{account/{id}} 6",
			"bypassed{account/{id}} 6", "waiters{account/{id}} 0")
		if got := w.names(); len(got) != 6 {
			w.Errorf("one span for each acquisition, got %v", got)
		}
		var numbers []float64
		for line := range strings.Lines(w.logs.String()) {
			var record map[string]any
			if err := json.Unmarshal([]byte(line), &record); err != nil {
				w.Fatal(err)
			}
			numbers = append(numbers, record["requests"].(float64))
		}
		if !slices.Equal(numbers, []float64{1, 5}) {
			w.Errorf("logged %s", w.logs)
		}
	})
}

func TestARequestWithoutAKeyHasAnAcquireSpanThatSaysWhy(t *testing.T) {
	inWorld(t, func(w *world) {
		quiet := slog.Default()
		slog.SetDefault(slog.New(slog.DiscardHandler))
		defer slog.SetDefault(quiet)
		g := core.Serialize(w.locker, "account/{id}")
		for _, req := range []request{{"id": ""}, {}} {
			if g.Do(w.ctx, req, func(context.Context) bool { return true }) == nil {
				w.Error("not refused")
			}
		}
		wantSpan(w, w.span("lock acquire account/{id}", 0), w.caller, codes.Unset, "rule=account/{id}", "outcome=bad_key", "error.type=bad_key")
		wantSpan(w, w.span("lock acquire account/{id}", 1), w.caller, codes.Error, "rule=account/{id}", "outcome=misconfigured", "error.type=misconfigured")
		w.wantCounts("rejected{bad_key account/{id}} 1", "rejected{misconfigured account/{id}} 1")
	})
}

func TestALossUnderAGuardSaysWhoseRequestItWas(t *testing.T) {
	inWorld(t, func(w *world) {
		jane := func(context.Context, core.Request) (string, error) { return "jane", nil }
		g := core.Serialize(w.locker, "account/{id}", core.PerPrincipal(jane, 1, 1))
		g.Do(w.ctx, request{"id": "1"}, func(ctx context.Context) bool {
			if refusal := g.Do(ctx, request{"id": "2"}, func(context.Context) bool { return true }); refusal == nil {
				w.Error("not refused")
			}
			w.store.Take("account/1", time.Minute)
			return true
		})
		w.wantCounts("acquire.duration{granted account/{id}} 1, 0 s", "attempts{account/{id}} 1",
			"hold.duration{lost account/{id}} 1, 0 s", "leases{account/{id}} 0", "lost{taken_over account/{id}} 1",
			"rejected{principal_limit account/{id}} 1", "waiters{account/{id}} 0")
		var record map[string]any
		if err := json.Unmarshal([]byte(w.logs.String()), &record); err != nil {
			w.Fatalf("want one record: %v in %s", err, w.logs)
		}
		for name, want := range map[string]string{
			"route": "/accounts/{id}", "principal_hash": core.Hashed("jane").Hash(), "answered": "yes", "reason": "taken_over",
			"key_hash": core.Hashed("account/1").Hash(),
		} {
			if record[name] != want {
				w.Errorf("%s is %v; want %s", name, record[name], want)
			}
		}
		if strings.Contains(w.logs.String(), "jane") {
			w.Errorf("logged %s", w.logs)
		}
	})
}

// secret is a key of which nothing may leave the process.
const secret = "customer/4711-\"jane\""

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
					if strings.Contains(c.text, "4711") != c.raw || strings.Contains(c.text, "jane") != c.raw {
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
				if bounds[0] != 0.0001 || bounds[len(bounds)-1] != 60 || !slices.IsSorted(bounds) {
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
		if n := strings.Count(w.logs.String(), "too many names"); n != 1 {
			w.Errorf("%d warnings", n)
		}
	})
}

// Whatever becomes of calls and leases, and in whatever order their ends meet:
// what was counted up is counted down.
func TestNothingIsLeftInTheCountersNorOpenWhateverHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := newProbe(t), &store{Store: memstore.New()}
		s.Intercept(func(memstore.Request) (f memstore.Fault) {
			switch rand.IntN(20) {
			case 0:
				f.Err = core.ErrUnavailable
			case 1:
				f.Err = driver.ErrNotReady
			case 2:
				f.Before = rand.N(20 * time.Millisecond)
			}
			return f
		})
		l, err := core.New(s, core.WithObserver(p.observer), core.Name("r"), core.MaxWaiters(6))
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		keys := []string{"a", "b", "c"}
		for range 8 {
			wg.Go(func() {
				for range 150 {
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(20*time.Millisecond))
					opts := []core.Option{core.Watchdog(15 * time.Millisecond)}
					switch rand.IntN(4) {
					case 0:
						opts = []core.Option{core.TTL(10 * time.Millisecond)}
					case 1:
						opts = append(opts, core.MaxHold(rand.N(2*time.Millisecond)+1))
					case 2:
						opts = append(opts, core.Wait(rand.N(3*time.Millisecond)))
					}
					key := keys[rand.IntN(3)]
					var lease *core.Lease
					var err error
					if rand.IntN(3) == 0 {
						lease, err = l.LockAll(ctx, []string{"a", "b", "c"}[rand.IntN(2):], opts...)
					} else {
						lease, err = l.Lock(ctx, key, opts...)
					}
					if err == nil {
						switch rand.IntN(6) {
						case 0:
							if inner, err := l.Lock(lease.Context(), key, core.Name("inner")); err == nil {
								_ = lease.Release(ctx)
								_ = inner.Release(ctx)
							}
						case 1:
							select {
							case <-lease.Context().Done(): // its loss, or MaxHold
							case <-ctx.Done():
							}
						case 2:
							s.Take(key, time.Millisecond)
						case 3:
							time.Sleep(rand.N(3 * time.Millisecond))
						}
						if rand.IntN(20) > 0 { // else Close ends it
							_ = lease.Release(ctx)
						}
					}
					cancel()
				}
			})
		}
		wg.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_ = l.Close(ctx)
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_ = l.Close(ctx) // and now until what is on its way has ended
		p.settled()
		t.Logf("%s", strings.Join(p.counts(), "\n"))
	})
}

func TestAWaiterOfAnotherProcessAsksTheStoreAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		other, err := core.New(w.store, core.WithObserver(w.observer))
		if err != nil {
			w.Fatal(err)
		}
		first := w.lock("k", core.Name("first"))
		done := make(chan struct{})
		go func() {
			defer close(done)
			second, err := other.Lock(w.ctx, "k", core.Name("second"))
			if err != nil {
				w.Error(err)
				return
			}
			w.release(second)
		}()
		synctest.Wait()
		w.release(first)
		<-done
		wantSpan(w, w.span("lock acquire second", 0), w.caller, codes.Unset, "rule=second", "key_hash="+hashOfK, "outcome=granted",
			"contended=true", "attempts=2", "reentered=false", "token=yes")
		if err := other.Close(w.ctx); err != nil {
			w.Error(err)
		}
	})
}

// global are the providers that the test below makes the global ones. The API
// hands over what was made before only once in a process.
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
		!strings.HasPrefix(scope.SchemaURL, "https://opentelemetry.io/schemas/") {
		t.Errorf("scope %+v", scope)
	}
	if got := p.counts("interlock.leases"); !slices.Equal(got, []string{"leases{r} 0"}) {
		t.Errorf("measured %q", got)
	}
}

// A waiter may be granted the lock and lose it before it wakes: then it is told
// of the loss first.
func TestALossBeforeTheGrantIsReportedLeavesNothingBehind(t *testing.T) {
	p := newProbe(t)
	_, observation := p.observer.Start(t.Context(), observe.Operation{Rule: "r", Keys: []string{"k"}})
	observation.Lost(core.Loss{Key: "k", Rule: "r", Reason: observe.LossNotOwner})
	observation.Acquired(observe.Acquired{Token: 1})
	observation.Released(observe.Released{Err: core.ErrLost})
	p.settled()
	if got := p.counts("interlock.lost"); !slices.Equal(got, []string{"lost{not_owner r} 1"}) {
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
