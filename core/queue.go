package core

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	// grace is how long a waiting locker leaves to each one that was named
	// before it in a release: some round trips.
	grace = 5 * time.Millisecond
	// notReadyWait is how long a caller that does not wait gives a store that
	// is not ready.
	notReadyWait = 250 * time.Millisecond
	// courtesy is how long a process that released a lock others wait for does
	// not ask for it again: the time in which the first of them can.
	courtesy = grace / 2
	// answerWait is the least time that a try has for its answer.
	answerWait = time.Second
	// minBackoff and maxBackoff bound the pauses between tries while the store
	// is not ready.
	minBackoff = 10 * time.Millisecond
	maxBackoff = time.Second
	// blindWait is the pause between tries when the holder's TTL is unknown.
	blindWait = time.Second
)

// shard is a part of a locker's keys. Its mutex guards everything of them:
// entries, turns and tenures. It is held for short work in memory only, never
// over a call to the store, an observer or a context.
type shard struct {
	mu      sync.Mutex
	entries map[string]*entry
}

// entry is what the process knows of one key, for as long as somebody here
// holds it or waits for it. Waiting is first in, first out: only the first of
// the queue, its head, talks to the store, on its own goroutine.
type entry struct {
	locker *Locker
	shard  *shard
	key    string

	first, last *turn // those who wait
	n           int
	ten         *tenure // set while the process holds the lock

	// The request on its way. It belongs to the queue and not to the head that
	// sent it: if that one leaves, the next takes the grant.
	flight flight
	lease  time.Duration // of the acquire in flight
	fixed  bool
	waiter bool // it asked to be listed
	sent   time.Time
	late   func(Reply, error)

	// The attempt: tries under one owner.
	owner   string    // empty: the next try takes a fresh one
	next    time.Time // when the head may try
	rest    string    // who waits behind us, from the last signal
	signals int       // how many signals have come
	heard   int       // and how many when the request in flight was sent
	backoff time.Duration
	failed  error // why the last try had no answer

	contended bool   // the last try found another process's lock
	courteous bool   // kept for the courtesy alone
	unwatch   func() // ends the watch
}

// flight says which request of a key is under way.
type flight int

const (
	grounded flight = iota
	acquiring
	releasing
)

// turn is one caller's place in the queue of a key, and then its possession.
type turn struct {
	key   string
	entry *entry
	cfg   *config
	lease *Lease // that took it

	prev, next *turn
	state      turnState
	ch         chan struct{} // made when the turn has to wait
	err        error         // why it failed

	ten      *tenure
	token    int64
	holds    int
	since    time.Time
	bound    time.Time // of MaxHold; zero for none
	lost     error     // ErrLost, ErrMaxHold, ErrNotOwner or ErrClosed once it cannot be trusted
	attempts int
	waited   bool
}

type turnState int

const (
	waiting turnState = iota
	failed
	granted
	gone // released or lost
)

// acquire waits for the lock of t.key. On nil the turn is granted; the lease
// t.lease holds it.
func (l *Locker) acquire(ctx context.Context, t *turn, start, deadline time.Time) error {
	if ctx.Err() != nil {
		return ended(ctx, t.key)
	}
	sh := l.shardOf(t.key)
	now := time.Now() // before the mutex, which many may wait for
	sh.mu.Lock()
	if l.closed.Load() {
		sh.mu.Unlock()
		return fmt.Errorf("%w: %q", ErrClosed, t.key)
	}
	e := sh.entries[t.key]
	if e == nil {
		e = &entry{locker: l, shard: sh, key: t.key}
		e.late = e.settleLate
		sh.entries[t.key] = e
	}
	if e.ten != nil || e.n > 0 || e.flight != grounded {
		t.waited = true
		if t.cfg.wait == 0 {
			sh.mu.Unlock()
			return fmt.Errorf("%w: %q", ErrHeld, t.key)
		}
		if t.cfg.maxWaiters > 0 && e.n >= t.cfg.maxWaiters {
			sh.mu.Unlock()
			return fmt.Errorf("%w: %q has %d: %w", ErrQueueFull, t.key, t.cfg.maxWaiters, ErrHeld)
		}
	}
	e.push(t)
	return e.wait(ctx, t, start, now, deadline)
}

// wait is called with the shard locked, and returns with it unlocked.
func (e *entry) wait(ctx context.Context, t *turn, start, now, deadline time.Time) error {
	sh, store := e.shard, e.locker.store
	if t.cfg.wait == 0 {
		deadline = start.Add(notReadyWait)
	}
	for {
		var alarm time.Time
		switch {
		case t.state == granted:
			sh.mu.Unlock()
			return nil
		case t.state == gone:
			// Granted, and lost again before we woke.
			err := t.lostError()
			sh.mu.Unlock()
			return err
		case t.state == failed:
			sh.mu.Unlock()
			return t.err
		case e.first != t || e.ten != nil || e.flight != grounded:
			// Not ours to try. Whoever changes that pokes us.
		case t.cfg.wait == 0 && t.attempts > 0 && e.failed == nil:
			t.waited = true // for observers: the lock was not free
			sh.mu.Unlock()
			return e.walkAway(t, fmt.Errorf("%w: %q", ErrHeld, t.key))
		case !now.Before(e.next):
			req := e.begin(t, now, deadline)
			sh.mu.Unlock()
			t.attempts++
			rep, err := store.Acquire(ctx, req)
			if errors.Is(err, ErrPending) {
				// The request flies on for the queue; e.late gets its outcome.
				if ctx.Err() != nil {
					return e.walkAway(t, ended(ctx, t.key))
				}
				return e.walkAway(t, fmt.Errorf("%w: %q: no answer within the wait", ErrUnavailable, t.key))
			}
			sh.mu.Lock()
			e.settle(rep, err)
			now = time.Now()
			continue
		case e.contended && e.unwatch == nil:
			// Hear of releases from now on. What happened since the try was
			// sent is the store's to report, so nothing is missed between.
			since := e.sent
			sh.mu.Unlock()
			stop := store.Watch(t.key, since, e.wake)
			sh.mu.Lock()
			if e.unwatch == nil && sh.entries[t.key] == e {
				e.unwatch = stop
			} else {
				stop()
			}
			now = time.Now()
			continue
		default:
			alarm = e.next
		}
		if !deadline.IsZero() && (alarm.IsZero() || deadline.Before(alarm)) {
			alarm = deadline
		}
		if !deadline.IsZero() && !now.Before(deadline) {
			err := e.timedOut(t)
			sh.mu.Unlock()
			return e.walkAway(t, err)
		}
		t.waited = true
		if t.ch == nil {
			t.ch = make(chan struct{}, 1)
		}
		sh.mu.Unlock()
		now = sleep(ctx, t.ch, now, alarm)
		if now.IsZero() {
			return e.walkAway(t, ended(ctx, t.key))
		}
		sh.mu.Lock()
	}
}

// timedOut says why a wait that is over had no success: because the lock was
// held, or because the store could not say.
func (e *entry) timedOut(t *turn) error {
	if e.failed != nil && e.first == t {
		return fmt.Errorf("%w: %q: %w", ErrUnavailable, t.key, e.failed)
	}
	return fmt.Errorf("%w: %q", ErrHeld, t.key)
}

// ended is the error of a caller whose context ended while it waited.
func ended(ctx context.Context, key string) error {
	return fmt.Errorf("interlock: waiting for %q: %w", key, context.Cause(ctx))
}

// sleep waits for a poke or the alarm and returns the time, or the zero time
// when ctx ended first. Its timer is not taken from a pool: what was made inside
// a bubble of testing/synctest must not be used outside.
func sleep(ctx context.Context, poke <-chan struct{}, now, alarm time.Time) time.Time {
	if alarm.IsZero() {
		select {
		case <-poke:
			return time.Now()
		case <-ctx.Done():
			return time.Time{}
		}
	}
	timer := time.NewTimer(alarm.Sub(now))
	defer timer.Stop()
	select {
	case <-poke:
	case <-timer.C:
	case <-ctx.Done():
		return time.Time{}
	}
	return time.Now()
}

// walkAway takes a turn that gives up out of the queue. Of the two that can
// have happened meanwhile, a failure is reported in place of err, and a grant
// is passed on: the caller was told that it holds nothing.
func (e *entry) walkAway(t *turn, err error) error {
	sh := e.shard
	sh.mu.Lock()
	switch t.state {
	case granted:
		sh.mu.Unlock()
		e.locker.work.Go(func() { _, _, _ = e.locker.leave(context.Background(), t) })
		return err
	case failed:
		err = t.err
	case waiting:
		head := e.first == t
		e.remove(t)
		t.state = gone
		if head {
			e.poke()
		}
		e.drop()
	case gone:
		// Granted and lost before we looked: nothing is held.
	}
	sh.mu.Unlock()
	return err
}

// The methods below are called with the shard locked.

func (e *entry) push(t *turn) {
	t.entry, t.prev = e, e.last
	if e.last == nil {
		e.first = t
	} else {
		e.last.next = t
	}
	e.last = t
	e.n++
}

func (e *entry) remove(t *turn) {
	if t.prev == nil {
		e.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		e.last = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.prev, t.next = nil, nil
	e.n--
}

// drop forgets the entry when nobody needs it.
func (e *entry) drop() {
	if e.first != nil || e.ten != nil || e.flight != grounded || e.shard.entries[e.key] != e {
		return
	}
	if e.courteous && !e.locker.closed.Load() {
		return
	}
	delete(e.shard.entries, e.key)
	if e.unwatch != nil {
		e.unwatch() // returns at once, waits for no wake
		e.unwatch = nil
	}
}

// poke makes the head look again.
func (e *entry) poke() {
	if e.first != nil {
		e.first.wakeUp()
	}
}

// wakeUp makes a waiting turn look at its state. One token in the channel is
// enough, since it looks at everything.
func (t *turn) wakeUp() {
	if t.ch == nil {
		return // it has not slept yet, and looks before it does
	}
	select {
	case t.ch <- struct{}{}:
	default:
	}
}

// begin prepares a try of the head.
func (e *entry) begin(t *turn, now, deadline time.Time) AcquireRequest {
	if e.owner == "" {
		e.owner = e.locker.newOwner()
	}
	e.flight, e.sent, e.heard = acquiring, now, e.signals
	e.lease, e.fixed, e.waiter = t.cfg.lease(), t.cfg.fixed(), t.cfg.wait != 0
	e.locker.work.begin()
	req := AcquireRequest{Key: e.key, Owner: e.owner, TTL: e.lease, Rest: e.rest, Late: e.late}
	if e.waiter {
		req.Waiter = e.locker.id
	}
	if !deadline.IsZero() {
		// A short wait for the holder must not become a short wait for the
		// store's answer, or it would never see one.
		req.Deadline = deadline
		if least := now.Add(answerWait); deadline.Before(least) {
			req.Deadline = least
		}
	}
	return req
}

// settleLate takes the outcome of an acquire whose sender has left.
func (e *entry) settleLate(rep Reply, err error) {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if e.fixed && rep.Granted {
		// Part of the lease is over, and who takes it now wants it whole.
		rep.Sent = time.Time{}
	}
	e.settle(rep, err)
}

// settle takes the outcome of an acquire: it belongs to whoever is the head
// now.
func (e *entry) settle(rep Reply, err error) {
	l, owner := e.locker, e.owner
	now := time.Now()
	e.flight = grounded
	defer l.work.done()
	rest := e.rest
	e.rest = ""
	if rep.Ambiguous && !rep.Granted {
		// A try may yet be executed: this owner could become the holder at any
		// time, and must not be anybody.
		e.owner = ""
		l.janitor.void(void{key: e.key, owner: owner, ttl: e.lease})
	}
	switch {
	case errors.Is(err, ErrNotReady):
		e.retry(now, err)
	case err != nil:
		e.failed, e.next = nil, time.Time{}
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNotReplicated) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		e.failAll(err)
	case !rep.Granted:
		e.failed, e.backoff = nil, 0
		e.contended = true
		if l.janitor.sweep(e.key, rep.Holder) {
			// A late try of ours has it. Its release is under way.
			e.retry(now, fmt.Errorf("%w: a late request of this process holds it", ErrNotReady))
			break
		}
		if e.signals != e.heard {
			// A release was announced while the try was on its way; what it
			// saw is older than what the signal said.
			e.rest = rest
			break
		}
		e.next = now.Add(rep.TTL + time.Millisecond)
		switch {
		case !e.waiter:
			// Asked without getting into the list; the next head has to.
			e.next = time.Time{}
		case rep.TTL < 0 || !rep.Listed && rep.TTL > blindWait:
			// The release may not be announced to us.
			e.next = now.Add(blindWait)
		}
	case !now.Before(rep.Sent.Add(e.lease - drift(e.lease))):
		// The grant took longer than the lease lasts.
		e.owner = ""
		l.janitor.void(void{key: e.key, owner: owner, ttl: e.lease})
		e.retry(now, fmt.Errorf("%w: a grant came after the end of its lease", ErrUnavailable))
	default:
		e.failed, e.backoff, e.next = nil, 0, time.Time{}
		e.owner = ""
		ten := &tenure{
			entry: e, owner: owner, lease: e.lease, fixed: e.fixed, ambiguous: rep.Ambiguous,
			sent: rep.Sent, seen: rep.Sent, deadline: rep.Sent.Add(e.lease - drift(e.lease)),
			token: rep.Token, base: rep.Token, replied: now, began: now, contended: rest != "", index: -1,
		}
		e.ten = ten
		if t := e.first; t != nil && ten.suits(t.cfg) {
			ten.grant(t, rep.Token, now)
			l.dog.watch(ten)
		} else {
			// The caller that asked for this lease has left.
			e.giveUp(ten)
		}
	}
	e.poke()
	e.drop()
}

// retry lets the head try again after a pause that doubles.
func (e *entry) retry(now time.Time, why error) {
	e.backoff = min(max(2*e.backoff, minBackoff), maxBackoff)
	e.failed, e.next = why, now.Add(e.backoff)
}

// failAll gives everybody in the queue the same error: what the store did to
// the head it would do to each of them, one after the other.
func (e *entry) failAll(err error) {
	for t := e.first; t != nil; t = e.first {
		e.remove(t)
		t.state = failed
		t.err = fmt.Errorf("%w: %q", err, t.key)
		t.wakeUp()
	}
}

// giveUp releases a tenure that nobody here has a use for, in the background.
func (e *entry) giveUp(ten *tenure) {
	e.retire(ten)
	e.releasing()
	e.locker.work.Go(func() { _ = e.sendRelease(context.Background(), ten, "") })
}

// retire ends a tenure on this side.
func (e *entry) retire(ten *tenure) {
	e.ten, ten.over = nil, true
	e.locker.dog.forget(ten)
}

// releasing marks a release as under way. Called with the shard locked.
func (e *entry) releasing() { e.flight, e.heard = releasing, e.signals }

// sendRelease gives a retired tenure back to the store. The entry is marked as
// releasing, which keeps its head from asking for the lock before it is free;
// it is called with the shard unlocked.
func (e *entry) sendRelease(ctx context.Context, ten *tenure, waiter string) error {
	l := e.locker
	sent := time.Now()
	err := l.store.Release(ctx, ReleaseRequest{
		Key: e.key, Owner: ten.owner, Token: ten.token, TTL: ten.lease, Waiter: waiter,
		Remember: ten.news(sent),
		Deadline: sent.Add(releaseWait),
	})
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if ten.ambiguous || err != nil && !errors.Is(err, ErrNotOwner) {
		// A try of the acquire or of the release may be on its way still.
		l.janitor.void(ten.void())
	}
	e.flight = grounded
	switch {
	case waiter == "" && ten.contended && e.first == nil:
		// It goes to another process. Whoever comes here next must not be
		// faster than that one: it has only just been told.
		e.next, e.courteous = time.Now().Add(courtesy), true
		time.AfterFunc(courtesy, e.endCourtesy)
	case waiter == "":
		e.next = time.Time{}
	case e.signals == e.heard:
		// Others were promised the next turn. Ours will be announced to us, or
		// comes after a pause.
		e.contended, e.sent = true, sent
		e.next = time.Now().Add(4 * grace)
	}
	e.poke()
	e.drop()
	return err
}

// endCourtesy forgets the entry if it was kept for nothing else.
func (e *entry) endCourtesy() {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	e.courteous = false
	e.drop()
}

// wake takes a signal that the lock may be free. The first that is named tries
// at once; the others leave each before them some time, so that a release does
// not cost a try of everybody.
func (e *entry) wake(s Signal) {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if e.ten != nil || e.first == nil && e.flight == grounded {
		return // nobody waits, nor will the request that is under way
	}
	now := time.Now()
	place, rest := placeIn(s.Next, e.locker.id)
	e.signals++
	e.rest = rest
	e.next = now.Add(time.Duration(place) * grace)
	if e.flight == grounded {
		e.poke()
	}
}

// placeIn finds a locker in a list of waiting ones: how many are before it, and
// who remains when those have been passed over. One that is not in the list
// comes after all of them.
func placeIn(list, id string) (place int, rest string) {
	if list == "" {
		return 0, ""
	}
	for rest = list; rest != ""; place++ {
		var name string
		name, rest, _ = strings.Cut(rest, ",")
		if name == id {
			return place, rest
		}
	}
	return place, ""
}
