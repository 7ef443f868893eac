package otellock

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
)

// watch is one call of Watch. Each has an entry of its own, so that the end of one
// leaves another of the same locker alone.
type watch struct{ locker *core.Locker }

// Watch reports what only a locker knows, until stop is called: the age of the oldest
// hold of each rule (interlock.hold.oldest), and the longest queue of one key
// (interlock.queue.longest). The observer calls [core.Locker.Held] for that each time
// metrics are collected: acquisitions and releases cost no more than before. The
// collection takes longer with the number of locks that are held.
//
// Several lockers, of one process, may be watched: the gauges are the greatest of all
// of them. The locker need not have this observer. A closed locker has nothing to
// report; stop lets go of it. stop may be called more than once, and may be ignored if
// the locker lives as long as the observer. Watch does nothing with a nil l. It is safe
// for concurrent use.
func (o *Observer) Watch(l *core.Locker) (stop func()) {
	if l == nil {
		return func() {}
	}
	w := &watch{l}
	o.watchMu.Lock()
	defer o.watchMu.Unlock()
	o.watched[w] = struct{}{}
	return func() {
		o.watchMu.Lock()
		defer o.watchMu.Unlock()
		delete(o.watched, w)
	}
}

// initGauges makes the instruments whose values collect observes.
func (i *instruments) initGauges(m metric.Meter, collect metric.Callback) error {
	var errs []error
	seconds := func(name, what string) metric.Float64ObservableGauge {
		g, err := m.Float64ObservableGauge(name, metric.WithDescription(what), metric.WithUnit("s"))
		errs = append(errs, err)
		return g
	}
	i.wait = seconds("interlock.rule.wait", "For how long a caller of the rule waits for a lock, at most.")
	i.maxHold = seconds("interlock.rule.max_hold", "For how long a caller of the rule may hold a lock.")
	i.oldest = seconds("interlock.hold.oldest", "Age of the oldest hold that is neither released nor lost.")
	var err error
	i.longest, err = m.Int64ObservableGauge("interlock.queue.longest", metric.WithUnit("{caller}"),
		metric.WithDescription("Callers of this process that wait for one key, where they are most."))
	if errs = append(errs, err); errors.Join(errs...) != nil {
		return errors.Join(errs...) // no callback for instruments that are not there
	}
	_, err = m.RegisterCallback(collect, i.wait, i.maxHold, i.oldest, i.longest)
	return err
}

// asked notes the times of an acquisition. A call that does not wait, or that waits
// for as long as its context lasts, says nothing about the rule's bound. Most calls ask
// for what the one before asked for: then nothing is written.
func (r *rule) asked(op observe.Operation) {
	if wait := int64(op.Wait); wait > 0 && r.wait.Load() != wait {
		r.wait.Store(wait)
	}
	if most := int64(op.MaxHold); most > 0 && r.maxHold.Load() != most {
		r.maxHold.Store(most)
	}
}

// collect implements [metric.Callback]: the SDK calls it when it collects metrics.
func (o *Observer) collect(_ context.Context, to metric.Observer) error {
	in := &o.instruments
	// The rule _OTHER is not among these: its times would be the times of any name.
	o.rules.Range(func(_, value any) bool {
		r := value.(*rule)
		if wait := r.wait.Load(); wait > 0 {
			to.ObserveFloat64(in.wait, time.Duration(wait).Seconds(), r.observe...)
		}
		if most := r.maxHold.Load(); most > 0 {
			to.ObserveFloat64(in.maxHold, time.Duration(most).Seconds(), r.observe...)
		}
		return true
	})
	o.watchMu.Lock()
	lockers := make([]*core.Locker, 0, len(o.watched))
	for w := range o.watched {
		lockers = append(lockers, w.locker)
	}
	o.watchMu.Unlock()
	if len(lockers) == 0 {
		return nil
	}
	oldest, longest := make(map[*rule]time.Duration), 0
	for _, l := range lockers {
		for _, h := range l.Held() {
			longest = max(longest, h.Waiters)
			if h.Held {
				r := o.rule(h.Rule, h.Kind)
				oldest[r] = max(oldest[r], time.Since(h.Since))
			}
		}
	}
	for r, age := range oldest {
		to.ObserveFloat64(in.oldest, age.Seconds(), r.observe...)
	}
	to.ObserveInt64(in.longest, int64(longest))
	return nil
}
