package core

import (
	"context"

	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/observe"
)

// observe starts the observation of an acquisition.
func (l *Lease) observe(ctx context.Context, locker *Locker, c *config, keys []string) context.Context {
	op := observe.Operation{
		Rule: c.name, Kind: kinds[c.terms.Kind], AtMost: c.terms.AtMost, Keys: keys,
		Wait: c.terms.Wait, MaxHold: c.terms.MaxHold, Waiters: locker.locks.Waiters(keys[0]), Standby: c.standby,
	}
	ctx, o := locker.base.observer.Start(ctx, op)
	m := l.needMore()
	m.observed, m.obs = true, o
	return ctx
}

// observed ends the observation of an acquisition.
func (l *Lease) observed(locker *Locker, err error, start clock.Instant) {
	obs := l.observation()
	if obs == nil || obs.Acquired == nil {
		return
	}
	a := observe.Acquired{Err: err, Waited: locker.locks.Clock.Now().Sub(start), Reentered: true}
	for _, w := range l.locks() {
		if l.took(w) { // what another lease spent on a lock is not spent again
			a.Attempts += w.Attempts()
			a.Contended = a.Contended || w.Contended()
			a.Reentered = false
		}
	}
	if err == nil {
		a.Token = l.Token()
	}
	obs.Acquired(a)
}

// observedOne ends the observation of the acquisition of one lock, which is given
// up if the observer panics.
func (l *Lease) observedOne(locker *Locker, err error, start clock.Instant) {
	told := false
	defer func() {
		if !told && err == nil {
			l.giveUp()
		}
	}()
	l.observed(locker, err, start)
	told = true
}

// giveUp releases the locks of a lease that no caller got.
func (l *Lease) giveUp() {
	_, _, _ = l.leave(context.WithoutCancel(l.parent))
	l.end(ErrReleased) // where nothing was held, nothing else ends it
}
