package core

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/timers"
)

// watchdog looks after all tenures of a locker: it renews them when a third of
// their lease has passed, and ends those whose deadline has come, whether or not
// the store answers. What is due together is renewed together.
//
// A tenure enters in the same critical section in which its grant becomes
// visible and leaves in the one in which its release begins, so that no lease is
// ever without its watchdog and no renewal starts after a release. One that is
// on its way then finds nothing: a renewal compares the owner.
//
// Lock order: a shard's mutex, then that of the timers.
type watchdog struct {
	locker *Locker
	timers timers.Scheduler[*tenure]
}

func (d *watchdog) init(l *Locker) {
	d.locker = l
	d.timers.Clock, d.timers.Go, d.timers.Serve = &l.clock, l.work.Go, d.serve
}

// slack is how much earlier than due a renewal may go: fewer, larger batches.
func slack(lease time.Duration) time.Duration { return min(lease/60, 50*time.Millisecond) }

// watch puts a tenure at the time of its next event: the renewal, the holder's
// MaxHold or the deadline. Called with the tenure's shard locked.
func (d *watchdog) watch(ten *tenure) {
	at, early := ten.deadline(), time.Duration(0)
	if !ten.fixed && !ten.stopped && ten.renewAt < at {
		at, early = ten.renewAt, slack(ten.lease)
	}
	if t := ten.cur; t != nil && t.cfg.maxHold > 0 && t.err == nil && t.bound() < at {
		at, early = t.bound(), 0
	}
	d.timers.Schedule(ten, at, early)
}

// renewNow asks for a renewal out of turn. Called with the shard locked.
func (d *watchdog) renewNow(ten *tenure, now clock.Instant) {
	if ten.renewing || ten.fixed || ten.stopped || ten.over {
		return
	}
	ten.renewAt = now
	d.watch(ten)
}

// forget takes a tenure out. Called with the shard locked.
func (d *watchdog) forget(ten *tenure) { d.timers.Cancel(ten) }

// stop ends the goroutine; nothing is watched any more.
func (d *watchdog) stop() { d.timers.Stop() }

// serve does what is due. Renewals go out on goroutines of their own, one for
// each length of lease, since each has its own bound: a store that hangs must
// not delay anything here.
func (d *watchdog) serve(batch []*tenure, now clock.Instant) {
	renew := map[time.Duration][]*tenure{}
	for _, ten := range batch {
		if d.look(ten, now) {
			renew[ten.lease] = append(renew[ten.lease], ten)
		}
	}
	for lease, tenures := range renew {
		d.locker.work.Go(func() { d.renew(lease, tenures) })
	}
}

// look does what a tenure needs at this moment and schedules what comes next.
// It reports whether to renew it.
func (d *watchdog) look(ten *tenure, now clock.Instant) (renew bool) {
	sh := ten.entry.shard
	sh.mu.Lock()
	report := func() {}
	defer func() {
		sh.mu.Unlock()
		report()
	}()
	if ten.over {
		return false // released after the timers took it out
	}
	if now >= ten.deadline() {
		switch {
		case ten.fixed:
			report = d.locker.loseLocked(ten, LossExpired, ErrLost)
		default:
			report = d.locker.loseLocked(ten, LossUnavailable, ErrLost)
		}
		return false
	}
	if t := ten.cur; t != nil && t.cfg.maxHold > 0 && t.err == nil && now >= t.bound() {
		// No more renewals: the key goes by the holder's release, or by its TTL.
		t.err, ten.stopped = ErrMaxHold, true
		report = func() { d.locker.reportLoss(t, LossMaxHold, ErrMaxHold, nil) }
	}
	if !ten.fixed && !ten.stopped && ten.renewAt <= now.Add(slack(ten.lease)) {
		if renew = !ten.renewing; renew {
			// If it succeeds, that is when the next one is due.
			ten.renewing, ten.renewAt = true, now.Add(ten.lease/3)
		} else {
			ten.renewAt = clock.Never // the one under way decides, or the deadline
		}
	}
	d.watch(ten)
	return renew
}

// renew sends one batch. Each try is bounded by a sixth of the lease, so that
// two fit between the third of the lease at which it starts and the deadline,
// and one more.
func (d *watchdog) renew(lease time.Duration, tenures []*tenure) {
	l := d.locker
	batch := make([]driver.Renewal, len(tenures))
	// The owners are parts of one text, which costs less than one text for each.
	names, ends := make([]byte, 0, len(tenures)*(len(l.id)+10)), make([]int, len(tenures))
	for i, ten := range tenures {
		names = l.appendOwner(names, ten.seq)
		ends[i] = len(names)
	}
	owners, from := string(names), 0
	for i, ten := range tenures {
		batch[i] = driver.Renewal{Key: ten.entry.key, Owner: owners[from:ends[i]], TTL: ten.lease}
		from = ends[i]
	}
	ctx, cancel := context.WithTimeout(context.Background(), lease/6)
	defer cancel()
	sent, ahead := l.clock.Read()
	l.store.Renew(ctx, batch, func(i int, contended bool, err error) {
		d.confirm(tenures[i], renewed{sent, ahead, true, contended, err}, true)
	})
}

// renewed is the outcome of a renewal.
type renewed struct {
	sent      clock.Instant
	ahead     time.Duration // of the wall clock, when it was sent
	extended  bool          // it was not only a check
	contended bool          // other processes wait
	err       error
}

// confirm takes the outcome of a renewal; scheduled is one of the watchdog's own.
// What it finds is told after the shard's mutex is free.
func (d *watchdog) confirm(ten *tenure, r renewed, scheduled bool) {
	l, sh := d.locker, ten.entry.shard
	sh.mu.Lock()
	if scheduled {
		ten.renewing = false
	}
	if ten.over {
		sh.mu.Unlock()
		return // it was released meanwhile, or lost: a late success revives nothing
	}
	now := l.clock.Now() // under the mutex: a success that waited for it past the deadline is late
	report := d.applyLocked(ten, r, now)
	var observe func(Renewed)
	if t := ten.cur; t != nil && t.lease.obs != nil {
		observe = t.lease.obs.Renewed
	}
	sh.mu.Unlock()
	if report != nil {
		report() // a loss comes first
	}
	if observe != nil {
		l.told("Observation.Renewed", func() { observe(Renewed{Key: ten.entry.key, Err: r.err, Took: now.Sub(r.sent)}) })
	}
}

// applyLocked does what the outcome of a renewal means for a tenure that is not
// over. A loss is to be reported by what it returns, after the shard's mutex is
// free. Called with the shard locked.
func (d *watchdog) applyLocked(ten *tenure, r renewed, now clock.Instant) (report func()) {
	l, e := d.locker, ten.entry
	switch {
	case errors.Is(r.err, ErrNotOwner):
		ten.lastErr = r.err
		report = l.loseLocked(ten, lossOf(r.err), ErrNotOwner)
	case now >= ten.deadline():
		reason := LossUnavailable
		if ten.fixed {
			reason = LossExpired
		}
		report = l.loseLocked(ten, reason, ErrLost)
	case r.err != nil:
		// Not loss: the lease is good until its deadline. Again soon, but not later
		// than it was to be: who asks again and again must not put it off.
		ten.lastErr = r.err
		ten.renewAt = min(ten.renewAt, now.Add(min(ten.lease/20, time.Second)))
		d.watch(ten)
	default:
		if r.extended && r.sent > ten.sent {
			ten.sent = r.sent
		}
		ten.lastErr, ten.ahead = nil, r.ahead
		ten.contended = r.contended
		if !r.contended {
			// Nobody waits elsewhere: the turn of this process begins anew.
			ten.began, ten.grants = r.sent, 0
		}
		ten.asked = false
		if due := ten.sent.Add(ten.lease / 3); due < ten.renewAt || due > ten.renewAt.Add(slack(ten.lease)) || ten.fixed {
			ten.renewAt = due
			d.watch(ten)
		} // else it is scheduled for about then
		if ten.cur == nil {
			if next, kept := ten.handOver(l.clock.Read()); next != nil {
				wake(next.knock, handed)
				l.turns.Add(1)
			} else if !kept {
				e.giveUp(ten)
			}
		}
	}
	return report
}

// fix makes a tenure a fixed one; the confirmation that follows sets its
// deadline.
func (ten *tenure) fix() {
	ten.entry.shard.mu.Lock()
	defer ten.entry.shard.mu.Unlock()
	ten.fixed = true
}
