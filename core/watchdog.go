package core

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"
)

// watchdog looks after all tenures of a locker: it renews them when a third of
// their lease has passed, and ends those whose deadline has come, whether or not
// the store answers. It is one goroutine with one timer, which is there only
// while there is something to watch; what is due together is renewed together.
//
// A tenure enters in the same critical section in which its grant becomes
// visible and leaves in the one in which its release begins, so that no lease is
// ever without its watchdog and no renewal starts after a release. One that is
// on its way then finds nothing: a renewal compares the owner.
//
// Lock order: a shard's mutex, then this one.
type watchdog struct {
	locker *Locker
	mu     sync.Mutex
	due    dueHeap
	wakeAt time.Time     // what the goroutine sleeps for
	poke   chan struct{} // something earlier came
	alive  bool          // the goroutine is there
	closed bool
}

func (d *watchdog) init(l *Locker) {
	d.locker, d.poke = l, make(chan struct{}, 1)
}

// watch puts a tenure at the time of its next event: the renewal, the holder's
// MaxHold or the deadline. Called with the tenure's shard locked.
func (d *watchdog) watch(ten *tenure) {
	at, soon := ten.deadline, time.Duration(0)
	if !ten.fixed && !ten.stopped && !ten.renewing {
		if ten.renewAt.IsZero() {
			ten.renewAt = ten.sent.Add(ten.lease / 3)
		}
		if ten.renewAt.Before(at) {
			// What is due a little later goes along: fewer, larger batches. An
			// end comes at its time.
			at, soon = ten.renewAt, min(ten.lease/60, 50*time.Millisecond)
		}
	}
	if t := ten.cur; t != nil && !t.bound.IsZero() && t.lost == nil && t.bound.Before(at) {
		at, soon = t.bound, 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	ten.at, ten.soon = at, soon
	if ten.index < 0 {
		heap.Push(&d.due, ten)
	} else {
		heap.Fix(&d.due, ten.index)
	}
	if !d.alive {
		d.alive = true
		d.wakeAt = time.Time{}
		d.locker.work.Go(d.run)
		return
	}
	if ten.index == 0 && (d.wakeAt.IsZero() || at.Before(d.wakeAt)) {
		d.nudge()
	}
}

// nudge makes the goroutine look again.
func (d *watchdog) nudge() {
	select {
	case d.poke <- struct{}{}:
	default:
	}
}

// renewNow asks for a renewal out of turn. Called with the shard locked.
func (d *watchdog) renewNow(ten *tenure, now time.Time) {
	if ten.renewing || ten.fixed || ten.stopped || ten.over {
		return
	}
	ten.renewAt = now
	d.watch(ten)
}

// forget takes a tenure out. Called with the shard locked.
func (d *watchdog) forget(ten *tenure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ten.index >= 0 {
		heap.Remove(&d.due, ten.index)
	}
}

// stop ends the goroutine; nothing is watched any more.
func (d *watchdog) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.due = nil
	d.nudge()
}

// watchdogLinger is how long the goroutine stays when there is nothing to watch:
// the next lock should not have to start it, nor to wake it.
const watchdogLinger = time.Second

// run is the goroutine. It ends when there was nothing to watch for a while.
func (d *watchdog) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var batch []*tenure
	idle := false
	for {
		now := time.Now()
		d.mu.Lock()
		switch {
		case d.closed, len(d.due) == 0 && idle:
			d.alive = false
			d.mu.Unlock()
			return
		case len(d.due) == 0:
			idle = true
			d.wakeAt = now.Add(watchdogLinger)
			d.mu.Unlock()
			timer.Reset(watchdogLinger)
			select {
			case <-timer.C:
			case <-d.poke:
			}
			continue
		}
		idle = false
		batch = batch[:0]
		for len(d.due) > 0 {
			ten := d.due[0]
			if ten.at.After(now.Add(ten.soon)) {
				break
			}
			heap.Pop(&d.due)
			batch = append(batch, ten)
		}
		if len(batch) == 0 {
			d.wakeAt = d.due[0].at
			timer.Reset(d.wakeAt.Sub(now))
			d.mu.Unlock()
			select {
			case <-timer.C:
			case <-d.poke:
			}
			continue
		}
		d.mu.Unlock()
		d.serve(batch, now)
	}
}

// serve does what is due. Renewals go out on goroutines of their own, one for
// each length of lease, since each has its own bound: a store that hangs must
// not delay anything here.
func (d *watchdog) serve(batch []*tenure, now time.Time) {
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
func (d *watchdog) look(ten *tenure, now time.Time) (renew bool) {
	sh := ten.entry.shard
	sh.mu.Lock()
	report := func() {}
	defer func() {
		sh.mu.Unlock()
		report()
	}()
	if ten.over {
		return false // released between the heap and here
	}
	if !now.Before(ten.deadline) {
		switch {
		case ten.fixed:
			report = d.locker.loseLocked(ten, LossExpired, ErrLost)
		default:
			report = d.locker.loseLocked(ten, LossUnavailable, ErrLost)
		}
		return false
	}
	if t := ten.cur; t != nil && !t.bound.IsZero() && t.lost == nil && !now.Before(t.bound) {
		// No more renewals: the key goes by the holder's release, or by its TTL.
		t.lost, ten.stopped = ErrMaxHold, true
		report = func() { d.locker.reportLoss(t, LossMaxHold, ErrMaxHold, nil) }
	}
	renew = !ten.fixed && !ten.stopped && !ten.renewing &&
		!ten.renewAt.After(now.Add(min(ten.lease/60, 50*time.Millisecond)))
	if renew {
		ten.renewing = true
	}
	d.watch(ten)
	return renew
}

// renew sends one batch. Each try is bounded by a sixth of the lease, so that
// two fit between the third of the lease at which it starts and the deadline,
// and one more.
func (d *watchdog) renew(lease time.Duration, tenures []*tenure) {
	batch := make([]Renewal, len(tenures))
	for i, ten := range tenures {
		batch[i] = Renewal{Key: ten.entry.key, Owner: ten.owner, TTL: ten.lease}
	}
	ctx, cancel := context.WithTimeout(context.Background(), lease/6)
	defer cancel()
	sent := time.Now()
	d.locker.store.Renew(ctx, batch, func(i int, contended bool, err error) {
		ten := tenures[i]
		sh := ten.entry.shard
		sh.mu.Lock()
		ten.renewing = false
		sh.mu.Unlock()
		d.confirmed(ten, sent, true, contended, err)
	})
}

// confirmed takes the outcome of a renewal that was sent at some time. extended
// says that it was not only a check.
func (d *watchdog) confirmed(ten *tenure, sent time.Time, extended, contended bool, err error) {
	l, e := d.locker, ten.entry
	e.shard.mu.Lock()
	if ten.over {
		e.shard.mu.Unlock()
		return // it was released meanwhile, or lost: a late success revives nothing
	}
	now := time.Now()
	report := func() {}
	switch {
	case errors.Is(err, ErrNotOwner):
		ten.lastErr = err
		report = l.loseLocked(ten, lossOf(err), ErrNotOwner)
	case !now.Before(ten.deadline):
		reason := LossUnavailable
		if ten.fixed {
			reason = LossExpired
		}
		report = l.loseLocked(ten, reason, ErrLost)
	case err != nil:
		// Not loss: the lease is good until its deadline. Again soon.
		ten.lastErr = err
		ten.renewAt = now.Add(min(ten.lease/20, time.Second))
		d.watch(ten)
	default:
		if extended && sent.After(ten.sent) {
			ten.sent = sent
			ten.deadline = sent.Add(ten.lease - drift(ten.lease))
		}
		ten.lastErr, ten.seen = nil, sent
		ten.renewAt = ten.sent.Add(ten.lease / 3)
		ten.contended = contended
		if !contended {
			// Nobody waits elsewhere: the turn of this process begins anew.
			ten.began, ten.grants = sent, 0
		}
		ten.asked = time.Time{}
		d.watch(ten)
		if ten.cur == nil && !ten.handOver(now) {
			e.giveUp(ten)
		}
	}
	var observe func(Renewed)
	if t := ten.cur; t != nil && t.lease.obs != nil {
		observe = t.lease.obs.Renewed
	}
	e.shard.mu.Unlock()
	report() // a loss comes first
	if observe != nil {
		observe(Renewed{Key: e.key, Err: err, Took: now.Sub(sent)})
	}
}

// fixAt makes a renewed tenure a fixed one; the confirmation that follows sets
// its deadline.
func (ten *tenure) fixAt(time.Time) {
	ten.entry.shard.mu.Lock()
	defer ten.entry.shard.mu.Unlock()
	ten.fixed = true
}

// dueHeap is a heap of tenures by their next event (container/heap).
type dueHeap []*tenure

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	ten := x.(*tenure)
	ten.index = len(*h)
	*h = append(*h, ten)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	ten := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	ten.index = -1
	return ten
}
