package otellock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	otellock "github.com/interlock-go/interlock/otel"
)

// gauges renders the gauges, one line for each set of labels, sorted.
func (p *probe) gauges() []string {
	p.tb.Helper()
	var lines []string
	for _, m := range p.metrics() {
		name := strings.TrimPrefix(m.Name, "interlock.")
		switch data := m.Data.(type) {
		case metricdata.Gauge[float64]:
			for _, dp := range data.DataPoints {
				lines = append(lines, fmt.Sprintf("%s{%s} %g %s", name, labels(dp.Attributes), dp.Value, m.Unit))
			}
		case metricdata.Gauge[int64]:
			for _, dp := range data.DataPoints {
				lines = append(lines, fmt.Sprintf("%s{%s} %d %s", name, labels(dp.Attributes), dp.Value, m.Unit))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// wantGauges compares all gauges.
func (p *probe) wantGauges(want ...string) {
	p.tb.Helper()
	if got := p.gauges(); !slices.Equal(got, want) {
		p.tb.Errorf("measured\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestTheTimesOfARuleAreThoseThatACallerLastAskedWith(t *testing.T) {
	inWorld(t, func(w *world) {
		w.release(w.lock("k", core.Name("unbounded")))
		w.wantGauges()
		w.release(w.lock("k", core.Name("r"), core.Wait(3*time.Second), core.MaxHold(90*time.Second)))
		w.wantGauges("rule.max_hold{r} 90 s", "rule.wait{r} 3 s")
		// A try does not wait, and a call without a bound has none: neither says how long the
		// others of the rule may wait.
		lease, err := w.locker.TryLock(w.ctx, "k", core.Name("r"))
		if err != nil {
			w.Fatal(err)
		}
		w.release(lease)
		w.release(w.lock("k", core.Name("r")))
		w.wantGauges("rule.max_hold{r} 90 s", "rule.wait{r} 3 s")
		w.release(w.lock("k", core.Name("r"), core.Wait(500*time.Millisecond)))
		w.release(w.lock("k", core.Name("r"), core.Shared(), core.Wait(time.Second)))
		w.wantGauges("rule.max_hold{r} 90 s", "rule.wait{r} 0.5 s", "rule.wait{shared r} 1 s")
	})
}

func TestALockerThatIsWatchedShowsItsOldestHoldsAndItsLongestQueue(t *testing.T) {
	inWorld(t, func(w *world) {
		stop := w.observer.Watch(w.locker)
		w.wantGauges("queue.longest{} 0 {caller}")
		first := w.lock("k", core.Name("r"))
		time.Sleep(2 * time.Second)
		second, shared := w.lock("k2", core.Name("r")), w.lock("k3", core.Shared())
		var waiting sync.WaitGroup
		for range 2 {
			waiting.Go(func() { w.release(w.lock("k", core.Name("r"))) })
		}
		waiting.Go(func() { w.release(w.lock("k2", core.Name("r"))) })
		time.Sleep(3 * time.Second)
		w.wantGauges("hold.oldest{r} 5 s", "hold.oldest{shared _UNNAMED} 3 s", "queue.longest{} 2 {caller}")
		w.release(first)
		w.release(second)
		waiting.Wait()
		time.Sleep(time.Second)
		w.wantGauges("hold.oldest{shared _UNNAMED} 4 s", "queue.longest{} 0 {caller}")
		stop()
		stop()
		w.wantGauges()
		w.release(shared)
	})
}

func TestOfSeveralLockersTheOldestHoldOfAllIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbe(t)
		var stops []func()
		for i := range 2 {
			l, err := core.New(memstore.New())
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close(context.Background())
			stops = append(stops, p.observer.Watch(l))
			lease, err := l.Lock(t.Context(), "k", core.Name("r"))
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release(t.Context())
			time.Sleep(time.Duration(2-i) * time.Second)
		}
		p.observer.Watch(nil)()
		p.wantGauges("hold.oldest{r} 3 s", "queue.longest{} 0 {caller}")
		stops[0]()
		p.wantGauges("hold.oldest{r} 1 s", "queue.longest{} 0 {caller}")
		stops[1]()
		p.wantGauges()
	})
}

// Metrics are collected while locks come and go, and lockers too.
func TestMetricsAreCollectedBesideRunningLocks(t *testing.T) {
	p := newProbe(t)
	l, err := core.New(memstore.New(), core.WithObserver(p.observer))
	if err != nil {
		t.Fatal(err)
	}
	defer p.observer.Watch(l)()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 200 {
				key := fmt.Sprint("k", (i+n)%3)
				wait := time.Duration(n+1) * time.Second
				if err := l.Do(t.Context(), key, func(context.Context) error { return nil }, core.Name(key), core.Wait(wait)); err != nil {
					t.Error(err)
				}
				p.observer.Watch(l)()
			}
		})
	}
	done := make(chan struct{})
	go func() { defer close(done); wg.Wait() }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		p.metrics()
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
	got := strings.Join(p.gauges(), "\n")
	for _, want := range []string{"rule.wait{k0}", "rule.wait{k1}", "rule.wait{k2}", "queue.longest{} 0"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

// blind is a MeterProvider that refuses a gauge, or the callback of the gauges.
type blind struct {
	noop.MeterProvider
	gauge string
}

func (b blind) Meter(string, ...metric.MeterOption) metric.Meter { return blindMeter{gauge: b.gauge} }

type blindMeter struct {
	noop.Meter
	gauge string
}

var errBlind = errors.New("blind")

func (m blindMeter) Float64ObservableGauge(name string, _ ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	if name == m.gauge {
		return nil, errBlind
	}
	return noop.Float64ObservableGauge{}, nil
}

func (m blindMeter) Int64ObservableGauge(name string, _ ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge, error) {
	if name == m.gauge {
		return nil, errBlind
	}
	return noop.Int64ObservableGauge{}, nil
}

func (m blindMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	if m.gauge == "" {
		return nil, errBlind
	}
	return noop.Registration{}, nil
}

func TestNewFailsIfTheMeterRefusesAGauge(t *testing.T) {
	for _, gauge := range []string{"interlock.rule.wait", "interlock.hold.oldest", "interlock.queue.longest", ""} {
		if o, err := otellock.New(otellock.WithMeterProvider(blind{gauge: gauge})); o != nil || !errors.Is(err, errBlind) {
			t.Errorf("gauge %q refused: %v, %v", gauge, o, err)
		}
	}
	if _, err := otellock.New(otellock.WithMeterProvider(blind{gauge: "another"})); err != nil {
		t.Error(err)
	}
}

// Two observers of one provider had a callback each, and the values of the last one hid the
// values of the first.
func TestObserversOfOneProviderAddUp(t *testing.T) {
	inWorld(t, func(w *world) {
		second, err := otellock.New(otellock.WithMeterProvider(w.meters))
		if err != nil {
			w.Fatal(err)
		}
		other, err := core.New(memstore.New(), core.WithObserver(second))
		if err != nil {
			w.Fatal(err)
		}
		defer other.Close(w.ctx)
		defer w.observer.Watch(w.locker)()
		defer second.Watch(other)()
		defer second.Watch(w.locker)() // once more: it counts once
		lease := w.lock("k", core.Name("r"), core.Wait(3*time.Second))
		short, err := other.Lock(w.ctx, "k", core.Name("r"), core.Wait(time.Second))
		if err != nil {
			w.Fatal(err)
		}
		alone, err := other.Lock(w.ctx, "k2", core.Name("alone"), core.MaxHold(time.Minute))
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		w.wantGauges("hold.oldest{alone} 2 s", "hold.oldest{r} 2 s", "queue.longest{} 0 {caller}",
			"rule.max_hold{alone} 60 s", "rule.wait{r} 3 s")
		w.release(lease)
		w.release(short)
		w.release(alone)
	})
}
