package core

import (
	"context"

	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/observe"
)

// observe starts the observation of an acquisition.
func (lease *Lease) observe(ctx context.Context, locker *Locker, c *config, keys []string) context.Context {
	op := observe.Operation{
		Rule: c.name, Kind: kinds[c.terms.Kind], AtMost: c.terms.AtMost, Keys: keys,
		Wait: c.terms.Wait, MaxHold: c.terms.MaxHold, Waiters: locker.locks.Waiters(keys[0]), Standby: c.standby,
	}
	ctx, o := locker.base.observer.Start(ctx, op)
	m := lease.needMore()
	m.observed, m.obs = true, o
	return ctx
}

// observed ends the observation of an acquisition.
func (lease *Lease) observed(locker *Locker, err error, start clock.Instant) {
	obs := lease.observation()
	if obs == nil || obs.Acquired == nil {
		return
	}
	a := observe.Acquired{Err: err, Waited: locker.locks.Clock.Now().Sub(start), Reentered: true}
	for _, w := range lease.locks() {
		if lease.took(w) { // what another lease spent on a lock is not spent again
			a.Attempts += w.Attempts()
			a.Contended = a.Contended || w.Contended()
			a.Reentered = false
		}
	}
	if err == nil {
		a.Token = lease.Token()
	}
	obs.Acquired(a)
}

// observedOne ends the observation of the acquisition of one lock, which is given
// up if the observer panics.
func (lease *Lease) observedOne(locker *Locker, err error, start clock.Instant) {
	told := false
	defer func() {
		if !told && err == nil {
			lease.giveUp()
		}
	}()
	lease.observed(locker, err, start)
	told = true
}

// giveUp releases the locks of a lease that no caller got.
func (lease *Lease) giveUp() {
	_, _, _ = lease.releaseAll(context.WithoutCancel(lease.parent), nil)
	lease.end(ErrReleased) // where nothing was held, nothing else ends it
}
