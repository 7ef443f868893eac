package core

import (
	"context"
	"sync"
	"time"
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
	alive  bool
	closed bool
}

// void is an owner that must not hold its lock.
type void struct {
	key, owner string
	ttl        time.Duration
	next       time.Time // when to release it again
	until      time.Time // when nothing of it can be on the way any more
}

func (j *janitor) init(l *Locker) {
	j.locker, j.voids, j.poke = l, make(map[string]*void), make(chan struct{}, 1)
}

// void gives an owner to the janitor.
func (j *janitor) void(key, owner string, ttl time.Duration) {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return // its TTL will do
	}
	j.voids[owner] = &void{key: key, owner: owner, ttl: ttl, next: now, until: now.Add(ttl)}
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
	if j.closed {
		return
	}
	if !j.alive {
		j.alive = true
		j.locker.work.Go(j.run)
		return
	}
	select {
	case j.poke <- struct{}{}:
	default:
	}
}

func (j *janitor) stop() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	select {
	case j.poke <- struct{}{}:
	default:
	}
}

// run releases until there is nothing left. The requests of a round go out
// together: one that hangs holds up a round, not the other owners of it.
func (j *janitor) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		var round []*void
		j.mu.Lock()
		var next time.Time
		for _, v := range j.voids {
			if !v.next.After(now) {
				round = append(round, v)
				v.next = now.Add(max(v.ttl/3, time.Millisecond))
			}
			if next.IsZero() || v.next.Before(next) {
				next = v.next
			}
		}
		if len(round) == 0 && (len(j.voids) == 0 || j.closed) {
			j.alive = false
			j.mu.Unlock()
			return
		}
		j.mu.Unlock()
		if len(round) > 0 {
			j.release(round)
			continue
		}
		timer.Reset(next.Sub(now))
		select {
		case <-timer.C:
		case <-j.poke:
		}
	}
}

func (j *janitor) release(round []*void) {
	const atOnce = 16
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, v := range round {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			begin := time.Now()
			_ = j.locker.store.Release(context.Background(), ReleaseRequest{
				Key: v.key, Owner: v.owner, TTL: v.ttl, Deadline: begin.Add(min(v.ttl/3, releaseWait)),
			})
			if begin.Before(v.until) {
				return
			}
			j.mu.Lock()
			delete(j.voids, v.owner)
			j.mu.Unlock()
		})
	}
	wg.Wait()
}
