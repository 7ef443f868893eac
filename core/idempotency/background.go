package idempotency

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/timers"
	"github.com/interlock-go/interlock/core/observe"
)

const (
	// minBackoff and maxBackoff bound the pauses between tries of a job.
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
	// triesAtOnce bounds the tries under way, so that an outage does not end in a
	// flood.
	triesAtOnce = 16
	// jobCost is the memory that a job takes besides its response.
	jobCost = 1 << 10
)

// background repeats commits and abandons that the store has not confirmed, until the
// store has answered.
//
// Lock order: this mutex, then the watchdog's, the drain's or the timers'.
type background struct {
	store    Store
	watchdog *watchdog
	drain    *drain
	room     int64        // in bytes, for responses that wait
	start    func(func()) // runs a try
	log      *logs.Log
	failing  logs.Throttle // of tries
	events   timers.Scheduler[*job]

	mu      sync.Mutex
	jobs    map[*job]struct{}
	bytes   int64  // that they take
	due     []*job // the jobs that may be tried, in order
	trying  int
	closing bool // a claim that may turn up is not waited for
	closed  bool
}

// job is the outstanding work for an attempt; guarded by the mutex of background. It is
// scheduled, due or being tried.
type job struct {
	timers.Slot
	attempt *attempt

	commit  *record.CommitRequest // nil: abandon
	cost    int64
	next    clock.Instant // when to try it
	backoff time.Duration
	until   clock.Instant // when to give up
	late    clock.Instant // until when a claim of ours may still turn up
	tried   bool          // due, or being tried
}

func (b *background) init(store Store, w *watchdog, d *drain, log *logs.Log, room int64, start func(func())) {
	b.store, b.watchdog, b.drain, b.log, b.room, b.start = store, w, d, log, room, start
	b.jobs = make(map[*job]struct{})
	b.events.Clock, b.events.Go, b.events.Serve = &w.clock, start, b.serve
}

func (b *background) now() clock.Instant { return b.watchdog.clock.Now() }

// pending is the number of jobs.
func (b *background) pending() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.jobs)
}

// commit goes on with a commit that the store has not confirmed, until it has or the
// retention has ended.
func (b *background) commit(a *attempt, req record.CommitRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	cost := int64(len(req.Response)) + jobCost
	if b.bytes+cost > b.room {
		// That it was carried out is worth more than the answer.
		cost, req.Response = jobCost, nil
	}
	now := b.now()
	b.watchdog.keep(a)
	b.add(&job{attempt: a, commit: &req, cost: cost, next: now.Add(minBackoff), until: now.Add(req.Retention)})
}

// abandon gives a claim up. If it is ambiguous, a try of it may be executed at any
// time: it is given up again and again for one lease.
func (b *background) abandon(a *attempt, ambiguous bool) {
	c := a.engine.config
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watchdog.abandon(a)
	now := b.now()
	j := &job{attempt: a, cost: jobCost, next: now, until: now.Add(c.retention)}
	if ambiguous {
		j.late = now.Add(c.lease)
	}
	b.add(j)
}

// close drops all jobs, except for tries under way: the leases of their claims end
// by themselves.
func (b *background) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.due = true, nil
	b.events.Stop()
}

// hurry tries at once, for the last time, what would otherwise go on for a lease.
func (b *background) hurry() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closing = true
	now := b.now()
	for j := range b.jobs {
		if !j.tried && b.last(j, now) {
			j.next = now
			b.events.Schedule(j, now, 0)
		}
	}
}

// serve begins tries of the jobs that are due, as far as these may be under way at
// once.
func (b *background) serve(batch []*job, now clock.Instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range batch {
		_, left := b.jobs[j]
		switch {
		case !left || j.tried: // since the timers took it out
		case j.next > now:
			b.events.Schedule(j, j.next, 0)
		default:
			j.tried = true
			b.due = append(b.due, j)
		}
	}
	b.launch()
}

// try does a job once.
func (b *background) try(j *job) {
	err := b.send(j)
	if err != nil {
		if n := b.failing.Count(time.Now()); n > 0 {
			b.log.Warn("interlock: the store of idempotency records fails, so that responses are not stored yet, or keys not freed: "+
				"the engine tries again", "rule", j.attempt.engine.config.name, "tries", n, "error", observe.RootCause(err))
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trying--
	j.tried = false
	now := b.now()
	switch {
	case err == nil && now < j.late && !b.last(j, now):
		j.next = now.Add(max(j.attempt.engine.config.lease/3, time.Millisecond))
		b.events.Schedule(j, j.next, 0)
	case err == nil:
		b.remove(j)
	default:
		j.backoff = min(max(2*j.backoff, minBackoff), maxBackoff)
		j.next = now.Add(j.backoff)
		if j.next > j.until {
			b.remove(j)
		} else {
			b.events.Schedule(j, j.next, 0)
		}
	}
	b.launch()
}

// send sends the request of a job.
func (b *background) send(j *job) error {
	ctx, deadline := context.Background(), time.Now().Add(storeWait)
	if j.commit != nil {
		req := *j.commit
		req.Deadline = deadline
		// Stored, or another has taken over: both are the end of it.
		_, err := b.store.Commit(ctx, req)
		return err
	}
	err := b.store.Abandon(ctx, record.AbandonRequest{ID: j.attempt.id, Token: j.attempt.token, Deadline: deadline})
	if errors.Is(err, driver.ErrNotOwner) {
		return nil
	}
	return err
}

// The methods below are called with b.mu held.

// add puts a job in.
func (b *background) add(j *job) {
	if b.closed {
		return // the lease of the claim ends by itself
	}
	b.jobs[j] = struct{}{}
	b.bytes += j.cost
	b.drain.add()
	b.events.Schedule(j, j.next, 0)
}

// remove takes a job out.
func (b *background) remove(j *job) {
	delete(b.jobs, j)
	b.bytes -= j.cost
	b.watchdog.finish(j.attempt)
	b.drain.done()
}

// launch begins tries of jobs that are due.
func (b *background) launch() {
	for len(b.due) > 0 && b.trying < triesAtOnce && !b.closed {
		j := b.due[0]
		b.due[0] = nil
		b.due = b.due[1:]
		b.trying++
		b.start(func() { b.try(j) })
	}
}

// last reports whether a claim that may still turn up is given up once more, and
// then left alone: when the engine is closing, since no caller waits a lease for
// that. A claim that turns up even later keeps its key in flight until its lease
// ends, and is then taken over; no request is carried out twice for it. It is different
// under Strict: there the end of a lease makes the outcome unknown for good.
func (b *background) last(j *job, now clock.Instant) bool {
	return b.closing && now < j.late && !j.attempt.engine.config.strict
}
