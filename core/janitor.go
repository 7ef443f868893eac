package core

import (
	"context"
	"sync"
	"time"
)

const (
	// janitorAtOnce bounds the janitor's requests under way, so that an outage
	// does not end in a flood.
	janitorAtOnce = 64
)

// janitor releases what may still become ours: owners of requests whose outcome
// stayed unknown. A try that was delayed on the way can be executed long after
// its caller has gone, and would then hold the lock for a whole TTL. Such an
// owner is void: never used again, released at once, once more in each third of
// the TTL for one TTL, and whenever a try finds it as the holder. Releasing an
// owner that holds nothing does nothing.
//
// Lock order: a shard's mutex, then this one.
type janitor struct {
	locker *Locker
	mu     sync.Mutex
	voids  map[string]*void // by owner
	poke   chan struct{}
	busy   int // requests under way
	alive  bool
	closed bool
}

// void is an owner that must not hold its lock.
type void struct {
	key, owner string
	ttl        time.Duration
	token      int64 // the last given out under the owner
	news       bool  // the store may not know the token

	next  time.Time // when to release it again
	until time.Time // when nothing of it can be on the way any more
	busy  bool      // its release is under way
}

func (j *janitor) init(l *Locker) {
	j.locker, j.voids, j.poke = l, make(map[string]*void), make(chan struct{}, 1)
}

// void gives an owner to the janitor.
func (j *janitor) void(v void) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return // its TTL will do
	}
	v.next = time.Now()
	v.until = v.next.Add(v.ttl)
	if old := j.voids[v.owner]; old != nil {
		old.next, old.until = v.next, v.until
	} else {
		j.voids[v.owner] = &v
	}
	j.wake()
}

// sweep reports whether a holder is one of the janitor's, and if so releases it
// now.
func (j *janitor) sweep(key, holder string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := j.voids[holder]
	if v == nil || v.key != key {
		return false
	}
	v.next = time.Now()
	j.wake()
	return true
}

// wake starts the goroutine or makes it look again. Called with j.mu held.
func (j *janitor) wake() {
	if !j.alive && !j.closed {
		j.alive = true
		j.locker.work.Go(j.run)
		return
	}
	select {
	case j.poke <- struct{}{}:
	default:
	}
}

// stop lets the janitor end when its requests under way have.
func (j *janitor) stop() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	j.wake()
}

// run sends out what is due until there is nothing left.
func (j *janitor) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		j.mu.Lock()
		next := j.send(now)
		if next.IsZero() && j.busy == 0 || j.closed {
			j.alive = false
			j.mu.Unlock()
			return
		}
		j.mu.Unlock()
		if next.IsZero() {
			<-j.poke // one that is under way will come back
			continue
		}
		timer.Reset(next.Sub(now))
		select {
		case <-timer.C:
		case <-j.poke:
		}
	}
}

// send releases what is due, as far as that may be under way at once, and
// returns when the next is. Each is on its own: a server that hangs holds up
// nothing of the others. Called with j.mu held.
func (j *janitor) send(now time.Time) (next time.Time) {
	for _, v := range j.voids {
		switch {
		case v.busy:
			continue
		case !now.Before(v.until):
			delete(j.voids, v.owner)
			continue
		case !v.next.After(now) && j.busy < janitorAtOnce:
			j.busy++
			v.busy = true
			v.next = now.Add(max(v.ttl/3, time.Millisecond))
			j.locker.work.Go(func() { j.release(v) })
			continue
		case !v.next.After(now):
			continue // when one comes back
		}
		if next.IsZero() || v.next.Before(next) {
			next = v.next
		}
	}
	return next
}

func (j *janitor) release(v *void) {
	// An error is no news here: it is released again, or its TTL ends.
	_ = j.locker.store.Release(context.Background(), ReleaseRequest{
		Key: v.key, Owner: v.owner, TTL: v.ttl, Token: v.token, Remember: v.news,
		Deadline: time.Now().Add(min(v.ttl/3, releaseWait)),
	})
	j.mu.Lock()
	defer j.mu.Unlock()
	j.busy--
	v.busy = false
	if j.busy <= janitorAtOnce/2 { // not for each: looking costs a pass over all
		j.wake()
	}
}
