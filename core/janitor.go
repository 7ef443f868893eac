package core

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// janitorAtOnce bounds the janitor's first releases under way, so that an
	// outage does not end in a flood. Those that have failed before have a bound of
	// their own, so that a server that hangs does not hold up the others.
	janitorAtOnce      = 256
	janitorAgainAtOnce = 64
	// janitorMost bounds how many owners the janitor looks after: some 10 MB.
	janitorMost = 1 << 15
	// janitorPause is the first pause between two releases of an owner, unless a
	// third of its TTL is shorter. Later pauses are a third of the time since the
	// first release, and at most janitorPauseMost.
	janitorPause     = 10 * time.Second
	janitorPauseMost = time.Minute
	// lateMost is for how long a request is taken to be on its way at the most:
	// for about as long Linux sends data again that a peer does not acknowledge
	// (tcp(7), tcp_retries2).
	lateMost = 15 * time.Minute
)

// janitor releases what may still become ours: owners of requests whose outcome
// stayed unknown. A try that was delayed on the way can be executed long after
// its caller has gone, and would then hold the lock for a whole TTL. Such an
// owner is void: never used again, released at once, again after pauses that grow,
// and whenever a try finds it as the holder. Releasing an owner that holds nothing
// does nothing.
//
// That ends after one TTL, or when the store has answered and no request can be on
// its way any more (lateMost), whichever is first.
//
// Lock order: a shard's mutex, then this one, under which nothing is done that
// takes longer the more owners there are.
type janitor struct {
	locker *Locker
	mu     sync.Mutex
	voids  map[string]*void // by owner
	first  releases         // to be released for the first time, or answered the last time
	again  releases         // those whose last release failed
	poke   chan struct{}
	alive  bool
	closed bool
	most   int // how many voids there may be
	full   thinned
}

// releases are owners in the order in which they are to be released.
type releases struct {
	due  []*void // a heap
	busy int     // requests under way
	most int     // how many of these there may be
}

// void is an owner that must not hold its lock.
type void struct {
	key, owner string
	ttl        time.Duration
	token      int64 // the last given out under the owner
	news       bool  // the store may not know the token

	from  time.Time // before it nothing is released; zero is now
	made  time.Time
	next  time.Time // when to release it again
	until time.Time // when to forget it
	queue *releases // nil while its release is under way
	index int       // in the queue
}

func (j *janitor) init(l *Locker) {
	j.locker, j.voids, j.poke = l, make(map[string]*void), make(chan struct{}, 1)
	j.most, j.first.most, j.again.most = janitorMost, janitorAtOnce, janitorAgainAtOnce
}

// void gives an owner to the janitor.
func (j *janitor) void(v void) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return // its TTL will do
	}
	v.made = time.Now()
	if v.from.After(v.made) {
		v.made = v.from
	}
	v.next, v.until = v.made, v.made.Add(v.ttl)
	if old := j.voids[v.owner]; old != nil {
		old.made, old.until = v.made, v.until
		j.hurry(old, v.next)
		return
	}
	if len(j.voids) >= j.most && !j.makeRoom() {
		return
	}
	j.voids[v.owner] = &v
	j.enqueue(&v, &j.first)
	j.wake()
}

// makeRoom forgets an owner whose release has failed, in favour of another. It
// reports whether there was one.
func (j *janitor) makeRoom() bool {
	if n := j.full.due(time.Now()); n > 0 {
		slog.Warn("interlock: too many requests whose outcome is not known: some locks stay until their TTL ends",
			"requests", n, "most", j.most)
	}
	last := len(j.again.due) - 1
	if last < 0 {
		return false
	}
	v := j.again.due[last] // a leaf of the heap: not one of the next
	heap.Remove(&j.again, last)
	delete(j.voids, v.owner)
	return true
}

// sweep reports whether a holder is one of the janitor's, and if so releases it
// now.
func (j *janitor) sweep(key, holder string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := j.voids[holder]
	now := time.Now()
	if v == nil || v.key != key || v.from.After(now) {
		return false
	}
	j.hurry(v, now)
	return true
}

// The methods below are called with j.mu held.

// hurry puts the next release of an owner at another time, and looks.
func (j *janitor) hurry(v *void, next time.Time) {
	v.next = next
	if v.queue != nil {
		heap.Fix(v.queue, v.index)
	}
	j.wake()
}

func (j *janitor) enqueue(v *void, q *releases) {
	v.queue = q
	heap.Push(q, v)
}

// wake starts the goroutine or makes it look again.
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

// send releases what is due, as far as that may be under way at once, and
// returns when the next is.
func (j *janitor) send(now time.Time) (next time.Time) {
	for _, q := range []*releases{&j.first, &j.again} {
		for len(q.due) > 0 {
			v := q.due[0]
			if v.next.After(now) {
				if next.IsZero() || v.next.Before(next) {
					next = v.next
				}
				break
			}
			if now.Before(v.until) && q.busy == q.most {
				break // when one comes back
			}
			heap.Pop(q)
			v.queue = nil
			if !now.Before(v.until) {
				delete(j.voids, v.owner)
				continue
			}
			q.busy++
			v.next = now.Add(max(min(v.ttl/3, janitorPause), min(now.Sub(v.made)/3, janitorPauseMost), time.Millisecond))
			j.locker.work.Go(func() { j.release(v, q) })
		}
	}
	return next
}

// The methods below are called without j.mu.

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
		if next.IsZero() && j.first.busy+j.again.busy == 0 || j.closed {
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

// release sends one release that was due in q. Each is on its own: a server that
// hangs holds up nothing of the others.
func (j *janitor) release(v *void, q *releases) {
	// An error is no news here: it is released again, or its TTL ends.
	err := j.locker.store.Release(context.Background(), driver.ReleaseRequest{
		Key: v.key, Owner: v.owner, TTL: v.ttl, Token: v.token, Remember: v.news,
		Deadline: time.Now().Add(min(v.ttl/3, releaseWait)),
	})
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	q.busy--
	to := &j.again
	if err == nil || errors.Is(err, ErrNotOwner) {
		// What it may have held is free. From here it can only be taken by a
		// request that is late.
		to = &j.first
		if late := now.Add(lateMost); late.Before(v.until) {
			v.until = late
		}
	}
	if v.next.After(v.until) {
		v.next = v.until // to be forgotten
	}
	j.enqueue(v, to)
	j.wake()
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (r *releases) Len() int { return len(r.due) }

func (r *releases) Less(a, b int) bool { return r.due[a].next.Before(r.due[b].next) }

func (r *releases) Swap(a, b int) {
	r.due[a], r.due[b] = r.due[b], r.due[a]
	r.due[a].index, r.due[b].index = a, b
}

func (r *releases) Push(v any) {
	owner := v.(*void) //nolint:forcetypeassert // there is nothing else in it
	owner.index = len(r.due)
	r.due = append(r.due, owner)
}

func (r *releases) Pop() any {
	last := len(r.due) - 1
	v := r.due[last]
	r.due[last] = nil
	r.due = r.due[:last]
	return v
}
