package core

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
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
	locker  *Locker
	mu      sync.Mutex
	entries map[string]*entry
	spare   []*attempt // for the next keys
}

// entry is what the process knows of one key, for as long as somebody here
// holds it or waits for it. Waiting is first in, first out: only the first of
// the queue, its head, talks to the store, on its own goroutine.
type entry struct {
	shard *shard
	key   string

	first, last *turn // those who wait
	ten         *tenure
	try         *attempt // nil while the store is not asked for anything
	n           int32    // how many wait
	flight      flight   // what of the key is under way
	courteous   bool     // kept for the courtesy alone
}

// flight says which request of a key is under way.
type flight int8

const (
	grounded flight = iota
	acquiring
	releasing
)

// attempt is what an entry needs while it asks the store: one request after the
// other, under one owner. It is apart from the entry, which for most of its life
// only holds.
type attempt struct {
	// The request on its way. It belongs to the queue and not to the head that
	// sent it: if that one leaves, the next takes the grant.
	lease  time.Duration
	fixed  bool
	waiter bool // it asked to be listed
	sent   clock.Instant

	seq  uint64        // of the owner; zero: the next try takes a fresh one
	next clock.Instant // when the head may try
	rest string        // who waits behind us, from the last signal
	// restUntil is when those in rest have had their time and did not come;
	// zero: rest has nothing to wait for.
	restUntil clock.Instant
	signals   int32 // how many signals have come
	heard     int32 // and how many when the request in flight was sent
	backoff   time.Duration
	failed    error // why the last try had no answer

	passed    bool   // next was set by a signal that does not name us
	releases  int32  // a full list left us out: how many releases until we ask
	contended bool   // the last try found another process's lock
	unwatch   func() // ends the watch
}

// turn is one caller's place in the queue of a key, and then its possession.
type turn struct {
	entry *entry
	cfg   *config
	lease *Lease // that took it

	prev, next *turn
	knock      chan knock // made when the turn has to wait

	ten   *tenure
	token int64
	since clock.Instant
	// err is why it failed; of a possession ErrLost, ErrMaxHold, ErrNotOwner or
	// ErrClosed once it cannot be trusted.
	err      error
	holds    int32
	attempts uint16 // as far as it goes
	state    turnState
	waited   bool
}

func (t *turn) key() string { return t.entry.key }

// bound is when a hold that has a MaxHold is over.
func (t *turn) bound() clock.Instant { return t.since.Add(t.cfg.maxHold) }

type turnState int8

const (
	waiting turnState = iota
	failed
	granted
	gone // released or lost
)

// knock is what wakes a waiting turn.
type knock int8

const (
	// look: something has changed that concerns it.
	look knock = iota
	// handed: it holds the lock. It is the last knock that a turn gets.
	handed
)

// acquire waits for the lock of a key. On nil the turn is granted; the lease
// t.lease holds it. A now of zero was not read, since there is no deadline.
func (l *Locker) acquire(ctx context.Context, t *turn, key string, now, deadline clock.Instant) error {
	if ctx.Err() != nil {
		return ended(ctx, key)
	}
	sh := l.shardOf(key)
	sh.mu.Lock()
	if e := sh.entries[key]; t.cfg.wait == 0 && e != nil && e.ten != nil {
		// Who does not wait must not be refused because of a lease that is over,
		// and that the watchdog was only too late to end: in a process that was
		// stopped, others may have had the lock since.
		if now == 0 {
			now = l.clock.Now()
		}
		if ten := e.ten; now >= ten.deadline() {
			sh.mu.Unlock()
			l.dog.look(ten, now)
			sh.mu.Lock()
		}
	}
	if l.closed.Load() {
		sh.mu.Unlock()
		return closedFor(key)
	}
	e := sh.entries[key]
	if e == nil {
		e = &entry{shard: sh, key: key}
		sh.entries[key] = e
	}
	if e.ten == nil && e.n == 0 && e.flight == grounded {
		e.push(t)
		return e.wait(ctx, t, now, deadline)
	}
	t.waited = true
	if t.cfg.wait == 0 || t.cfg.maxWaiters > 0 && e.waiters() >= t.cfg.maxWaiters {
		sh.mu.Unlock()
		return turnedAway(t.cfg, key)
	}
	e.push(t)
	if deadline != 0 {
		return e.wait(ctx, t, now, deadline)
	}
	return e.queue(ctx, t)
}

// waiters is how many wait for a holder. The head does not as long as it asks the
// store for a lock that may be free. Called with the shard locked.
func (e *entry) waiters() int {
	n := int(e.n)
	if n > 0 && e.ten == nil && e.flight == acquiring && !e.try.contended {
		n--
	}
	return n
}

func closedFor(key string) error { return fmt.Errorf("%w: %q", ErrClosed, key) }

// turnedAway is the error of a caller who does not get into the queue.
func turnedAway(c *config, key string) error {
	if c.wait == 0 {
		return fmt.Errorf("%w: %q", ErrHeld, key)
	}
	return fmt.Errorf("%w: %q has %d: %w", ErrQueueFull, key, c.maxWaiters, ErrHeld)
}

// queue waits behind others, without a deadline, until the lock is handed over or
// there is more to do. It is apart from wait because most turns of a hot key see
// nothing else, and what a goroutine has on its stack while it sleeps has to come
// back into the cache when it wakes. It is called with the shard locked, and
// returns with it unlocked.
func (e *entry) queue(ctx context.Context, t *turn) error {
	l := e.shard.locker
	t.knock = l.newKnock()
	e.shard.mu.Unlock()
	select {
	case k := <-t.knock:
		if k == handed {
			l.knocks.Put(t.knock)
			t.knock = nil
			return nil
		}
	case <-ctx.Done():
		return e.walkAway(t, ended(ctx, e.key))
	}
	now := l.clock.Now()
	e.shard.mu.Lock()
	return e.wait(ctx, t, now, 0)
}

// wait is called with the shard locked, and returns with it unlocked.
func (e *entry) wait(ctx context.Context, t *turn, now, deadline clock.Instant) error {
	sh, l := e.shard, e.shard.locker
	if now == 0 {
		now = l.clock.Now()
	}
	if t.cfg.wait == 0 {
		deadline = now.Add(notReadyWait)
	}
	for {
		var alarm clock.Instant
		switch try := e.try; {
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
		case t.cfg.wait == 0 && t.attempts > 0 && (try == nil || try.failed == nil):
			t.waited = true // for observers: the lock was not free
			sh.mu.Unlock()
			return e.walkAway(t, fmt.Errorf("%w: %q", ErrHeld, e.key))
		case try == nil || now >= try.next:
			req := e.begin(t, now, deadline)
			sh.mu.Unlock()
			t.attempts = max(t.attempts, t.attempts+1)
			rep, err := l.store.Acquire(ctx, req)
			if errors.Is(err, driver.ErrPending) {
				// The request flies on for the queue; settleLate gets its outcome.
				if ctx.Err() != nil {
					return e.walkAway(t, ended(ctx, e.key))
				}
				return e.walkAway(t, fmt.Errorf("%w: %q: no answer within the wait", ErrUnavailable, e.key))
			}
			now = l.clock.Now()
			sh.mu.Lock()
			e.settle(now, rep, err)
			continue
		case try.contended && try.unwatch == nil:
			// Hear of releases from now on. What happened since the try was
			// sent is the store's to report, so nothing is missed between.
			since := l.clock.Time(try.sent)
			sh.mu.Unlock()
			stop := l.store.Watch(e.key, since, e.wake)
			now = l.clock.Now()
			sh.mu.Lock()
			// The entry may have been dropped and may be another's by now: of
			// one that still has its attempt it is sure.
			if sh.entries[e.key] == e && e.try != nil && e.try.unwatch == nil {
				e.try.unwatch = stop
			} else {
				stop()
			}
			continue
		default:
			alarm = try.next
		}
		if deadline != 0 && (alarm == 0 || deadline < alarm) {
			alarm = deadline
		}
		if deadline != 0 && now >= deadline {
			err := e.timedOut(t)
			sh.mu.Unlock()
			return e.walkAway(t, err)
		}
		t.waited = true
		if t.knock == nil {
			t.knock = l.newKnock()
		}
		sh.mu.Unlock()
		switch how := sleep(ctx, t.knock, alarm.Sub(now), alarm != 0); how {
		case granting:
			// Ours since before the knock, which was the last: the channel is
			// empty, and nobody else has it any more.
			l.knocks.Put(t.knock)
			t.knock = nil
			return nil
		case ending:
			return e.walkAway(t, ended(ctx, e.key))
		}
		now = l.clock.Now()
		sh.mu.Lock()
	}
}

// newKnock returns a channel to wait on.
func (l *Locker) newKnock() chan knock {
	if c, ok := l.knocks.Get().(chan knock); ok {
		return c
	}
	return make(chan knock, 1)
}

// timedOut says why a wait that is over had no success: because the lock was
// held, or because the store could not say.
func (e *entry) timedOut(t *turn) error {
	if try := e.try; try != nil && try.failed != nil && e.first == t {
		return fmt.Errorf("%w: %q: %w", ErrUnavailable, e.key, try.failed)
	}
	return fmt.Errorf("%w: %q", ErrHeld, e.key)
}

// ended is the error of a caller whose context ended while it waited.
func ended(ctx context.Context, key string) error {
	return fmt.Errorf("interlock: waiting for %q: %w", key, context.Cause(ctx))
}

// waking says why a sleep was over.
type waking int8

const (
	looking waking = iota // a knock, or the alarm
	granting
	ending // of the context
)

// sleep waits for a knock, for as long as limit where it is limited. Its timer is
// not taken from a pool: what was made inside a bubble of testing/synctest must
// not be used outside.
func sleep(ctx context.Context, knocks <-chan knock, limit time.Duration, limited bool) waking {
	var alarm <-chan time.Time
	if limited {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		alarm = timer.C
	}
	select {
	case k := <-knocks:
		if k == handed {
			return granting
		}
	case <-alarm:
	case <-ctx.Done():
		return ending
	}
	return looking
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
		e.shard.locker.work.Go(func() { _, _, _ = e.shard.locker.leave(context.Background(), t) })
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
	if e.courteous && !e.shard.locker.closed.Load() {
		return
	}
	delete(e.shard.entries, e.key)
	if e.try != nil {
		if e.try.unwatch != nil {
			e.try.unwatch() // returns at once, waits for no wake
		}
		e.forgetTry()
	}
}

// attempt returns the entry's attempt, a new one if it has none.
func (e *entry) attempt() *attempt {
	if e.try != nil {
		return e.try
	}
	sh := e.shard
	if n := len(sh.spare); n > 0 {
		e.try = sh.spare[n-1]
		sh.spare = sh.spare[:n-1]
	} else {
		e.try = new(attempt)
	}
	return e.try
}

// maxSpare is how many attempts a shard keeps for its next keys.
const maxSpare = 16

// forgetTry gives up the attempt.
func (e *entry) forgetTry() {
	if sh := e.shard; len(sh.spare) < maxSpare {
		*e.try = attempt{}
		sh.spare = append(sh.spare, e.try)
	}
	e.try = nil
}

// poke makes the head look again.
func (e *entry) poke() {
	if e.first != nil {
		wake(e.first.knock, look)
	}
}

// wake knocks at a waiting turn. One knock in the channel is enough, since after
// it the turn looks at everything; one that has not slept yet, and has no channel,
// looks before it does.
func wake(c chan knock, k knock) {
	if c == nil {
		return
	}
	select {
	case c <- k:
	default:
	}
}

// begin prepares a try of the head.
func (e *entry) begin(t *turn, now, deadline clock.Instant) driver.AcquireRequest {
	l, try := e.shard.locker, e.attempt()
	if try.seq == 0 {
		try.seq = l.seq.Add(1)
	}
	e.flight, try.sent, try.heard = acquiring, now, try.signals
	try.lease, try.fixed, try.waiter = t.cfg.lease(), t.cfg.fixed(), t.cfg.wait != 0
	try.releases = 0
	if try.restUntil != 0 && now >= try.restUntil {
		try.rest = ""
	}
	l.work.begin()
	req := driver.AcquireRequest{Key: e.key, Owner: l.owner(try.seq), TTL: try.lease, Rest: try.rest, Late: e.settleLate}
	if try.waiter {
		req.Waiter = l.id
	}
	if deadline != 0 {
		// A short wait for the holder must not become a short wait for the
		// store's answer, or it would never see one.
		req.Deadline = l.clock.Time(max(deadline, now.Add(answerWait)))
	}
	return req
}

// settleLate takes the outcome of an acquire whose sender has left.
func (e *entry) settleLate(rep driver.Reply, err error) {
	now := e.shard.locker.clock.Now()
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if e.try.fixed && rep.Granted {
		// Part of the lease is over, and who takes it now wants it whole.
		rep.Sent = time.Time{}
	}
	e.settle(now, rep, err)
}

// settle takes the outcome of an acquire: it belongs to whoever is the head
// now.
func (e *entry) settle(now clock.Instant, rep driver.Reply, err error) {
	l, try := e.shard.locker, e.try
	e.flight = grounded
	defer l.work.done()
	rest := try.rest
	try.rest = ""
	orphan := func() {
		l.reaper.add(orphan{key: e.key, owner: l.owner(try.seq), ttl: try.lease})
		try.seq = 0
	}
	if rep.Ambiguous && !rep.Granted {
		// A try may yet be executed: this owner could become the holder at any
		// time, and must not be anybody.
		orphan()
	}
	switch sent := l.clock.Of(rep.Sent); {
	case errors.Is(err, ErrNotReady):
		try.retry(now, err)
	case err != nil:
		try.failed, try.next = nil, 0
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNotReplicated) && !errors.Is(err, ErrKeyOccupied) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		e.failAll(err)
	case !rep.Granted:
		try.failed, try.backoff = nil, 0
		try.contended = true
		if l.reaper.reap(e.key, rep.Holder) {
			// A late try of ours has it. Its release is under way.
			try.retry(now, fmt.Errorf("%w: a late request of this process holds it", ErrNotReady))
			break
		}
		if try.signals != try.heard {
			// A release was announced while the try was on its way; what it
			// saw is older than what the signal said.
			try.rest = rest
			break
		}
		try.next, try.passed = now.Add(rep.TTL+time.Millisecond), false
		switch {
		case !try.waiter:
			// Asked without getting into the list; the next head has to.
			try.next = 0
		case rep.TTL < 0 || !rep.Listed && rep.TTL > blindWait:
			// The release may not be announced to us.
			try.next = now.Add(blindWait)
		}
	case now >= sent.Add(try.lease-clock.Drift(try.lease)):
		// The grant took longer than the lease lasts.
		orphan()
		try.retry(now, fmt.Errorf("%w: a grant came after the end of its lease", ErrUnavailable))
	default:
		ten := &tenure{
			entry: e, seq: try.seq, lease: try.lease, fixed: try.fixed, ambiguous: rep.Ambiguous,
			sent: sent, ahead: l.clock.Ahead(rep.Sent, sent), renewAt: sent.Add(try.lease / 3),
			token: rep.Token, base: rep.Token, replied: now, began: now, contended: rest != "",
		}
		if try.unwatch == nil {
			e.forgetTry()
		} else {
			*try = attempt{contended: true, unwatch: try.unwatch}
		}
		e.ten = ten
		if t := e.first; t != nil && ten.suits(t.cfg) {
			wake(ten.grant(rep.Token, now).knock, handed)
			l.turns.Add(1)
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
func (try *attempt) retry(now clock.Instant, why error) {
	try.backoff = min(max(2*try.backoff, minBackoff), maxBackoff)
	try.failed, try.next = why, now.Add(try.backoff)
}

// failAll gives everybody in the queue the same error: what the store did to
// the head it would do to each of them, one after the other.
func (e *entry) failAll(err error) {
	for t := e.first; t != nil; t = e.first {
		e.remove(t)
		t.state = failed
		t.err = fmt.Errorf("%w: %q", err, e.key)
		wake(t.knock, look)
	}
}

// giveUp releases a tenure that nobody here has a use for, in the background.
func (e *entry) giveUp(ten *tenure) {
	e.retire(ten)
	e.releasing()
	e.shard.locker.work.Go(func() { _ = e.sendRelease(context.Background(), ten, "") })
}

// retire ends a tenure on this side.
func (e *entry) retire(ten *tenure) {
	e.ten, ten.over = nil, true
	e.shard.locker.dog.forget(ten)
}

// releasing marks a release as under way.
func (e *entry) releasing() {
	e.flight = releasing
	if e.try != nil {
		e.try.heard = e.try.signals
	}
}

// sendRelease gives a retired tenure back to the store. The entry is marked as
// releasing, which keeps its head from asking for the lock before it is free;
// it is called with the shard unlocked.
func (e *entry) sendRelease(ctx context.Context, ten *tenure, waiter string) error {
	l := e.shard.locker
	sent := l.clock.Now()
	err := l.store.Release(ctx, driver.ReleaseRequest{
		Key: e.key, Owner: ten.owner(), Token: ten.token, TTL: ten.lease, Waiter: waiter,
		Remember: ten.news(sent),
		Deadline: l.clock.Time(sent.Add(releaseWait)),
	})
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if ten.ambiguous || err != nil && !errors.Is(err, ErrNotOwner) {
		// A try of the acquire or of the release may be on its way still.
		l.reaper.add(ten.orphan())
	}
	e.flight = grounded
	switch {
	case waiter == "" && ten.contended && e.first == nil:
		// It goes to another process. Whoever comes here next must not be
		// faster than that one: it has only just been told.
		e.attempt().next, e.courteous = l.clock.Now().Add(courtesy), true
		time.AfterFunc(courtesy, e.endCourtesy)
	case waiter == "":
		if e.try != nil {
			e.try.next = 0
		}
	case e.try == nil || e.try.signals == e.try.heard:
		// Others were promised the next turn. Ours will be announced to us, or
		// comes after a pause.
		try := e.attempt()
		try.contended, try.sent, try.next = true, sent, l.clock.Now().Add(4*grace)
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
func (e *entry) wake(s driver.Signal) {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if e.ten != nil || e.first == nil && e.flight == grounded {
		return // nobody waits, nor will the request that is under way
	}
	l, try := e.shard.locker, e.attempt()
	now := l.clock.Now()
	place, rest, named := placeIn(s.Next, l.id)
	try.signals++
	try.rest, try.restUntil = rest, 0
	// One that is not named comes last, but it does come: if every release put
	// it off anew, those of a busy key would do so for ever.
	switch next := now.Add(time.Duration(place) * grace); {
	case !named && place >= fullList:
		e.leftOut(now, next, s.Next, place)
	case named || !try.passed || next < try.next:
		try.next = next
	}
	try.passed = !named
	if e.flight == grounded {
		e.poke()
	}
}

// placeIn finds a locker in a list of waiting ones: how many are before it, who
// remains when those have been passed over, and whether it is in the list at all.
// One that is not comes after all of them. An empty list says nothing of anybody.
func placeIn(list, id string) (place int, rest string, named bool) {
	if list == "" {
		return 0, "", true
	}
	for rest = list; rest != ""; place++ {
		var name string
		name, rest, _ = strings.Cut(rest, ",")
		if name == id {
			return place, rest, true
		}
	}
	return place, "", false
}
