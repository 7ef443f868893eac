package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// newWakeup returns a channel to sleep on.
func (t *Table) newWakeup() chan wakeup {
	if c, ok := t.pools.wakeups.Get().(chan wakeup); ok {
		return c
	}
	return make(chan wakeup, 1)
}

// awake gives the channel of a waiter that was handed the lock back. That was the
// last wakeup for it: the channel is empty, and no other goroutine has it any more.
func (t *Table) awake(w *Waiter) {
	t.pools.wakeups.Put(w.wakeup)
	w.wakeup = nil
}

// silent is after how long a request without an answer is a fault of the store, also where the
// caller has no more patience. Callers often give up before the store's own time limits end: without
// this, an outage would look like callers that leave.
const silent = 250 * time.Millisecond

// ended is the error of a caller after its context ended while it waited.
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
	if w.Terms.Attentive {
		t.listen()
	}
	var s step
	var err error
	sh := t.shardOf(key)
	sh.event(nil, func(fx *effects) {
		l := sh.locks[key]
		if l == nil {
			l = &lock{shard: sh, key: key}
			sh.locks[key] = l
		}
		w.lock, fx.lock = l, l
		var ahead time.Duration
		if w.Terms.Kind.Place() {
			now, ahead = t.Clock.Read() // an exclusive caller that waits needs neither
		}
		err = l.join(w, now, ahead, fx)
		switch {
		case err != nil:
		case w.state == granted:
			s.action = finish
		case deadline == 0 && w.Terms.Line == driver.InTurn && (l.phase != acquiring || l.waiters.first != w && l.nextToAsk() != w):
			w.wakeup = t.newWakeup() // it sleeps; the clock need not be read
		default:
			if now == 0 {
				now = t.Clock.Now()
			}
			s = l.look(w, now, deadline, fx)
		}
	})
	if err != nil {
		return err
	}
	if !t.registry.running.Load() {
		t.registry.use()
	}
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
			return t.leave(ctx, w, nil)
		}
		s = t.lookAgain(w, deadline)
	}
	return t.wait(ctx, w, s, deadline)
}

// lookAgain has a waiter look at its lock.
func (t *Table) lookAgain(w *Waiter, deadline clock.Instant) (s step) {
	now := t.Clock.Now() // before the mutex, which many may wait for
	w.lock.shard.event(w.lock, func(fx *effects) { s = w.lock.look(w, now, deadline, fx) })
	return s
}

// wait does what a waiter has to do until it has the lock or gives up.
func (t *Table) wait(ctx context.Context, w *Waiter, s step, deadline clock.Instant) error {
	l := w.lock
	for {
		switch s.action {
		case finish:
			return s.err
		case leave:
			return t.leave(ctx, w, s.err)
		case ask:
			rep, err := t.store.Acquire(ctx, s.try.request)
			if errors.Is(err, driver.ErrPending) {
				// The request goes on for the queue; late gets its outcome.
				if ctx.Err() != nil {
					return t.leave(ctx, w, nil)
				}
				return t.leave(ctx, w, fmt.Errorf("%w: %q: %w", driver.ErrUnavailable, l.key, errNoAnswer))
			}
			s = s.try.done(w, answer{Reply: rep, err: err}, deadline)
			continue
		case stand:
			s = t.stand(ctx, w, s.line, deadline)
			continue
		case sleep:
		}
		switch how := t.doze(ctx, w.wakeup, s.until.Sub(t.Clock.Now()), s.until != 0); how {
		case awakeHolder:
			t.awake(w)
			return nil
		case contextEnded:
			return t.leave(ctx, w, nil)
		case awake:
		}
		s = t.lookAgain(w, deadline)
	}
}

// leave takes a waiter that gives up out of the queue: with err, or because its context has
// ended. Of the two that can have happened meanwhile, a failure is reported in place of err,
// and a grant is passed on: the caller got an error and holds nothing.
func (t *Table) leave(ctx context.Context, w *Waiter, err error) error {
	var hasIt bool
	now := t.Clock.Now()
	w.lock.shard.event(w.lock, func(fx *effects) {
		if err == nil {
			err = ended(ctx, w.lock.key)
			switch acq := w.lock.acq; {
			case acq == nil:
			case acq.outage.why != nil:
				err = fmt.Errorf("%w; the last try: %w", err, acq.outage.why) // the lock may be free
			case w.lock.asking() > 0 && now.Sub(acq.tries.asked) >= silent:
				err = fmt.Errorf("%w; the last try: %w: %w", err, driver.ErrUnavailable, errSilent)
			}
		}
		hasIt, err = w.lock.abandon(w, err, fx)
	})
	if hasIt {
		t.life.work.Go(func() { t.Release(context.Background(), w) })
	}
	return err
}

// waking says why a sleep ended.
type waking int8

const (
	awake waking = iota // a wakeup, or the time has passed
	awakeHolder
	contextEnded
)

// doze waits for a wakeup, for as long as limit where it is limited. Its timer is of a pool
// of the table, as the channels are: timers that were made inside a bubble of testing/synctest
// must not be used outside.
func (t *Table) doze(ctx context.Context, wakeups <-chan wakeup, limit time.Duration, limited bool) waking {
	var alarm <-chan time.Time
	if limited {
		timer, ok := t.pools.alarms.Get().(*time.Timer)
		if ok {
			timer.Reset(limit) // it was stopped, so nothing is in its channel
		} else {
			timer = time.NewTimer(limit)
		}
		defer func() {
			timer.Stop()
			t.pools.alarms.Put(timer)
		}()
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
