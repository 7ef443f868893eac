package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// wakeup is what wakes a waiter.
type wakeup int8

const (
	// lookAgain: something has changed that concerns it.
	lookAgain wakeup = iota
	// handedOff: it holds the lock. It is the last wakeup that a waiter gets.
	handedOff
)

// wake wakes a waiter. One wakeup in the channel is enough, since after it the waiter
// looks at everything; one that has not slept yet, and has no channel, looks before
// it does.
func wake(c chan wakeup, how wakeup) {
	if c == nil {
		return
	}
	select {
	case c <- how:
	default:
	}
}

// newWakeup returns a channel to sleep on.
func (t *Table) newWakeup() chan wakeup {
	if c, ok := t.wakeups.Get().(chan wakeup); ok {
		return c
	}
	return make(chan wakeup, 1)
}

// awake gives the channel of a waiter that was handed the lock back. That was the
// last wakeup for it: the channel is empty, and no other goroutine has it any more.
func (t *Table) awake(w *Waiter) {
	t.wakeups.Put(w.wakeup)
	w.wakeup = nil
}

// ended is the error of a caller whose context ended while it waited.
func ended(ctx context.Context, key string) error {
	return fmt.Errorf("interlock: waiting for %q: %w", key, context.Cause(ctx))
}

// Acquire waits for the lock of a key, until the deadline if that is not zero. On
// nil w holds the lock. now is the present instant; zero says that it was not read.
func (t *Table) Acquire(ctx context.Context, w *Waiter, key string, now, deadline clock.Instant) error {
	if ctx.Err() != nil {
		return ended(ctx, key)
	}
	if w.Terms.Wait == 0 {
		if now == 0 {
			now = t.Clock.Now()
		}
		deadline = now.Add(notReadyWait)
	}
	sh := t.shardOf(key)
	s, err := sh.join(w, key, now, deadline)
	if err != nil {
		return err
	}
	t.registry.use()
	if s.action == sleep && s.until == 0 {
		// Most waiters of a hot key see nothing but this. It is apart from wait
		// because what a goroutine has on its stack while it sleeps has to come back
		// into the cache when it wakes.
		select {
		case how := <-w.wakeup:
			if how == handedOff {
				t.awake(w)
				return nil
			}
		case <-ctx.Done():
			return sh.leave(ctx, w)
		}
		s = sh.look(w, deadline)
	}
	return sh.wait(ctx, w, s, deadline)
}

// join puts a caller into the queue of a key, and returns what it has to do.
func (sh *shard) join(w *Waiter, key string, now, deadline clock.Instant) (s step, err error) {
	var fx effects
	sh.mu.Lock()
	l := sh.locks[key]
	if l == nil {
		l = &lock{shard: sh, key: key}
		sh.locks[key] = l
	}
	w.lock = l
	var ahead time.Duration
	if w.Terms.Kind.Place() {
		now, ahead = sh.table.Clock.Read() // an exclusive caller that waits needs neither
	}
	err = l.join(w, now, ahead, &fx)
	if err != nil || w.Terms.Wait == 0 || w.state == granted {
		sh.apply(l, &fx)
	}
	switch {
	case err != nil:
	case w.state == granted:
		s.action = finish
	case deadline == 0 && (l.phase != acquiring || l.first != w && l.nextToAsk() != w):
		w.wakeup = sh.table.newWakeup() // it sleeps; the clock need not be read
	default:
		if now == 0 {
			now = sh.table.Clock.Now()
		}
		s = sh.step(l, w, now, deadline)
	}
	sh.mu.Unlock()
	if w.Terms.Wait == 0 {
		sh.table.run(l, &fx)
	}
	return s, err
}

// step looks at a lock for a waiter. Called with the mutex held.
func (sh *shard) step(l *lock, w *Waiter, now, deadline clock.Instant) step {
	s := l.look(w, now, deadline)
	switch {
	case s.action == sleep && w.wakeup == nil:
		w.wakeup = sh.table.newWakeup()
	case s.action == ask:
		sh.table.work.begin()
		if s.next != nil {
			wake(s.next.wakeup, lookAgain)
		}
	}
	return s
}

// look looks at the lock for a waiter.
func (sh *shard) look(w *Waiter, deadline clock.Instant) step {
	now := sh.table.Clock.Now() // before the mutex, which many may wait for
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.step(w.lock, w, now, deadline)
}

// wait does what a waiter has to do until it has the lock or gives up.
func (sh *shard) wait(ctx context.Context, w *Waiter, s step, deadline clock.Instant) error {
	t, l := sh.table, w.lock
	for {
		switch s.action {
		case finish:
			return s.err
		case leave:
			return sh.abandon(w, s.err)
		case ask:
			rep, err := t.store.Acquire(ctx, s.try.request)
			if errors.Is(err, driver.ErrPending) {
				// The request goes on for the queue; late gets its outcome.
				if ctx.Err() != nil {
					return sh.leave(ctx, w)
				}
				return sh.abandon(w, fmt.Errorf("%w: %q: no answer within the wait", driver.ErrUnavailable, l.key))
			}
			s = sh.answered(s.try, w, answer{Reply: rep, err: err}, deadline)
			continue
		case watch:
			stop := t.store.Watch(l.key, t.Clock.Time(s.since), l.signalled)
			s = sh.watching(w, stop, deadline)
			continue
		case sleep:
		}
		switch how := doze(ctx, w.wakeup, s.until.Sub(t.Clock.Now()), s.until != 0); how {
		case awakeHolder:
			t.awake(w)
			return nil
		case contextEnded:
			return sh.leave(ctx, w)
		case awake:
		}
		s = sh.look(w, deadline)
	}
}

// answered takes the outcome of a try, and looks at the lock for w, which sent it, unless
// w has left.
func (sh *shard) answered(try *try, w *Waiter, a answer, deadline clock.Instant) (s step) {
	t, l := sh.table, try.lock
	if a.err == nil && !a.Granted {
		// A try of ours may be late: its release is under way.
		a.orphaned = t.reaper.reap(l.key, a.Holder)
	}
	now := t.Clock.Now()
	var fx effects
	sh.mu.Lock()
	l.answered(now, try, w, a, &fx)
	sh.apply(l, &fx)
	if w != nil {
		s = sh.step(l, w, now, deadline)
	}
	sh.mu.Unlock()
	if fx.handed == w {
		fx.handed = nil // it is awake
	}
	t.run(l, &fx)
	t.work.done()
	return s
}

// late takes the outcome of a try whose waiter has left.
func (t *try) late(rep driver.Reply, err error) {
	t.lock.shard.answered(t, nil, answer{Reply: rep, err: err}, 0)
}

// watching notes a watch, and looks at the lock for its waiter.
func (sh *shard) watching(w *Waiter, stop func(), deadline clock.Instant) step {
	now := sh.table.Clock.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	// The lock may be forgotten, and its acquisition another's by now: of one that
	// still has an acquisition it is sure.
	if l := w.lock; sh.locks[l.key] == l && l.acq != nil && l.acq.unwatch == nil {
		l.acq.unwatch = stop
	} else {
		stop() // returns at once, waits for no signal
	}
	return sh.step(w.lock, w, now, deadline)
}

// signalled takes a signal that the lock may be free.
func (l *lock) signalled(s driver.Signal) {
	sh := l.shard
	var fx effects
	now := sh.table.Clock.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l.signal(now, s, &fx)
	sh.apply(l, &fx)
}

// leave takes a waiter whose context has ended out of the queue. Its error also says if the
// store did not serve it: the lock may be free.
func (sh *shard) leave(ctx context.Context, w *Waiter) error {
	err := ended(ctx, w.lock.key)
	sh.mu.Lock()
	if acq := w.lock.acq; acq != nil && acq.failed != nil {
		err = fmt.Errorf("%w; the last try: %w", err, acq.failed)
	}
	sh.mu.Unlock()
	return sh.abandon(w, err)
}

// abandon takes a waiter that gives up out of the queue. Of the two that can have
// happened meanwhile, a failure is reported in place of err, and a grant is passed
// on: the caller was told that it holds nothing.
func (sh *shard) abandon(w *Waiter, err error) error {
	t, l := sh.table, w.lock
	var fx effects
	sh.mu.Lock()
	hasIt, err := l.abandon(w, err, &fx)
	sh.apply(l, &fx)
	sh.mu.Unlock()
	t.run(l, &fx)
	if hasIt {
		t.work.Go(func() { t.Release(context.Background(), w) })
	}
	return err
}

// waking says why a sleep was over.
type waking int8

const (
	awake waking = iota // a wakeup, or the time is over
	awakeHolder
	contextEnded
)

// doze waits for a wakeup, for as long as limit where it is limited. Its timer is not
// taken from a pool: what was made inside a bubble of testing/synctest must not be
// used outside.
func doze(ctx context.Context, wakeups <-chan wakeup, limit time.Duration, limited bool) waking {
	var alarm <-chan time.Time
	if limited {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		alarm = timer.C
	}
	select {
	case how := <-wakeups:
		if how == handedOff {
			return awakeHolder
		}
	case <-alarm:
	case <-ctx.Done():
		return contextEnded
	}
	return awake
}
