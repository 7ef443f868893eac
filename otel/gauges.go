package otellock

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
)

// gauges are the sources that the observers of one provider of meters look up when metrics are
// collected. Their gauges are the same time series there, so that a callback for each observer
// would hide the values of the others.
type gauges struct {
	wait, maxHold, oldest metric.Float64ObservableGauge
	longest, unknown      metric.Int64ObservableGauge
	undelivered           metric.Int64ObservableCounter

	mu        sync.Mutex
	observers []*Observer
	watched   map[*watch]struct{}
	unknowns  map[*unknown]struct{}
}

// shared has the gauges of all providers.
var shared = struct {
	sync.Mutex
	of map[any]*gauges
}{of: map[any]*gauges{}}

// gaugesOf returns the gauges of a provider, and makes them if the observer is its first. The
// global provider is one before and after the application has set it.
func gaugesOf(p metric.MeterProvider, m metric.Meter) (*gauges, error) {
	var key any = p
	switch {
	case !reflect.TypeOf(p).Comparable():
		key = new(int) // its observers cannot be found
	case otel.GetMeterProvider() == p:
		key = scope
	}
	shared.Lock()
	defer shared.Unlock()
	if g := shared.of[key]; g != nil {
		return g, nil
	}
	g := &gauges{watched: map[*watch]struct{}{}, unknowns: map[*unknown]struct{}{}}
	if err := g.init(m); err != nil {
		return nil, err
	}
	shared.of[key] = g
	return g, nil
}

// watch is one call of Watch. Each has its own entry, so that the end of one leaves another
// of the same locker alone.
type watch struct {
	observer *Observer
	locker   *core.Locker
}

// Watch reports the values that only a locker knows, until stop is called: the age of the
// oldest hold of each rule (interlock.hold.oldest), the longest queue of one key
// (interlock.queue.longest), and the calls and lines that it could not deliver to
// observers and logs (interlock.undelivered, see [core.Locker.Undelivered]). The observer
// calls [core.Locker.Held] for that each time metrics are collected: acquisitions and
// releases cost no more than before. The collection takes longer with the number of locks
// that are held.
//
// Several lockers, of one process, may be watched, also by several observers of one provider of
// meters: the gauges are the greatest of all of them, and the counter is their sum. The locker
// need not have this observer. A closed locker has nothing to report; stop lets go of it. stop
// may be called more than once, and may be ignored if the locker lives as long as the observer.
// Watch does nothing with a nil l. It is safe for concurrent use.
func (o *Observer) Watch(l *core.Locker) (stop func()) {
	if l == nil {
		return func() {}
	}
	w, g := &watch{o, l}, o.gauges
	g.mu.Lock()
	defer g.mu.Unlock()
	g.watched[w] = struct{}{}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.watched, w)
	}
}

// init makes the instruments.
func (g *gauges) init(m metric.Meter) error {
	var errs []error
	seconds := func(name, what string) metric.Float64ObservableGauge {
		i, err := m.Float64ObservableGauge(name, metric.WithDescription(what), metric.WithUnit("s"))
		errs = append(errs, err)
		return i
	}
	g.wait = seconds("interlock.rule.wait", "For how long a caller of the rule waits for a lock, at most.")
	g.maxHold = seconds("interlock.rule.max_hold", "For how long a caller of the rule may hold a lock.")
	g.oldest = seconds("interlock.hold.oldest", "Age of the oldest hold that is neither released nor lost.")
	var err error
	g.longest, err = m.Int64ObservableGauge("interlock.queue.longest", metric.WithUnit("{caller}"),
		metric.WithDescription("Callers of this process that wait for one key, where they are most."))
	errs = append(errs, err)
	g.unknown, err = m.Int64ObservableGauge("interlock.idempotent.unknown", metric.WithUnit("{request}"),
		metric.WithDescription("Requests to idempotent endpoints of which the store does not know the outcome."))
	errs = append(errs, err)
	g.undelivered, err = m.Int64ObservableCounter("interlock.undelivered", metric.WithUnit("{call}"),
		metric.WithDescription("Calls of observers, and lines of the log, that were dropped since earlier ones did not return."))
	if errs = append(errs, err); errors.Join(errs...) != nil {
		return errors.Join(errs...) // no callback for instruments that are not there
	}
	_, err = m.RegisterCallback(g.collect, g.wait, g.maxHold, g.oldest, g.longest, g.unknown, g.undelivered)
	return err
}

// asked notes the times of an acquisition. A call that does not wait, or that waits for
// as long as its context lasts, says nothing about the rule's bound. Most calls ask for
// the same as the call before: then nothing is written.
func (r *rule) asked(op observe.Operation) {
	if wait := int64(op.Wait); wait > 0 && r.wait.Load() != wait {
		r.wait.Store(wait)
	}
	if most := int64(op.MaxHold); most > 0 && r.maxHold.Load() != most {
		r.maxHold.Store(most)
	}
}

// longest keeps the longest time of each rule, of which several observers may know.
type longest map[attribute.Distinct]struct {
	rule *rule
	time time.Duration
}

func (all longest) add(r *rule, d time.Duration) {
	labels := attribute.NewSet(r.label...)
	key := labels.Equivalent()
	if of := all[key]; of.rule == nil || d > of.time {
		of.rule, of.time = r, d
		all[key] = of
	}
}

func (all longest) report(to metric.Observer, as metric.Float64ObservableGauge) {
	for _, of := range all {
		to.ObserveFloat64(as, of.time.Seconds(), of.rule.observe...)
	}
}

// collect implements [metric.Callback]: the SDK calls it when it collects metrics.
func (g *gauges) collect(_ context.Context, to metric.Observer) error {
	g.mu.Lock()
	observers, lockers := slices.Clone(g.observers), make(map[*core.Locker]*Observer, len(g.watched))
	for w := range g.watched {
		lockers[w.locker] = w.observer
	}
	unknowns := slices.Collect(maps.Keys(g.unknowns))
	g.mu.Unlock()
	waits, holds, oldest := longest{}, longest{}, longest{}
	for _, o := range observers {
		// The rule _OTHER is not among these: its times would be the times of any name.
		o.rules.Range(func(_, value any) bool {
			r := value.(*rule)
			if wait := r.wait.Load(); wait > 0 {
				waits.add(r, time.Duration(wait))
			}
			if most := r.maxHold.Load(); most > 0 {
				holds.add(r, time.Duration(most))
			}
			return true
		})
	}
	queue, undelivered := 0, int64(0)
	for l, o := range lockers {
		undelivered += l.Undelivered()
		for _, h := range l.Held() {
			queue = max(queue, h.Waiters)
			if h.Held {
				oldest.add(o.rule(h.Rule, h.Kind), time.Since(h.Since))
			}
		}
	}
	waits.report(to, g.wait)
	holds.report(to, g.maxHold)
	oldest.report(to, g.oldest)
	if len(lockers) > 0 {
		to.ObserveInt64(g.longest, int64(queue))
		to.ObserveInt64(g.undelivered, undelivered)
	}
	reportUnknown(to, g.unknown, unknowns)
	return nil
}
