package idempotency

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/internal/clock"
)

const (
	// minBackoff and maxBackoff bound the pauses between tries in the
	// background.
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
	// triesAtOnce bounds those under way, so that an outage does not end in a
	// flood.
	triesAtOnce = 16
	// jobCost is what an attempt in the background takes besides its response.
	jobCost = 1 << 10
)

// keeper looks after the claims of an engine: it renews their leases when a third
// has passed, ends the contexts of handlers whose claim can no longer be trusted,
// and does what the store has not confirmed. It is one goroutine with one timer,
// which is there only while there is something to look after; what is due
// together is renewed together.
//
// An attempt is in it from the grant until its record is settled. A renewal that
// is on its way then finds nothing to do: the store compares token and state.
type keeper struct {
	store Store
	room  int64 // for responses that wait

	mu      sync.Mutex
	due     dueHeap
	ready   []*Attempt // jobs that may be tried
	trying  int
	jobs    int
	running int // requests
	bytes   int64
	wakeAt  time.Time     // what the goroutine sleeps for
	poke    chan struct{} // something earlier came
	empty   chan struct{} // made by who waits for the last to be done
	alive   bool          // the goroutine is there
	closing bool          // nothing new
	closed  bool          // nothing at all
	work    sync.WaitGroup

	waiters waiters // with a mutex of its own
}

// watch is what the keeper knows of an attempt; guarded by its mutex.
type watch struct {
	index int // in the heap, from 1; 0: not in it
	at    time.Time
	soon  time.Duration // how much earlier it may be taken

	running  bool      // the handler is
	deadline time.Time // until when the lease is good
	bound    time.Time // of MaxHold
	cause    error     // why it cannot be trusted
	settled  bool      // its record is, while the handler goes on

	renewAt  time.Time
	renewing bool
	stopped  bool // no more renewals

	job *job
}

// job is what is still to be done for an attempt.
type job struct {
	commit  *CommitRequest // nil: abandon
	cost    int64
	at      time.Time // the next try
	backoff time.Duration
	until   time.Time // when to give up
	sweep   time.Time // until when a claim of ours may still turn up
	busy    bool
}

func newKeeper(store Store, room int64) *keeper {
	return &keeper{store: store, room: room, poke: make(chan struct{}, 1)}
}

// enter counts a request, unless the engine is closing.
func (k *keeper) enter() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closing {
		return false
	}
	k.running++
	return true
}

func (k *keeper) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running--
	k.gone()
}

// gone tells who waits for the last. Called with k.mu held.
func (k *keeper) gone() {
	if k.running == 0 && k.jobs == 0 && k.empty != nil {
		close(k.empty)
		k.empty = nil
	}
}

func (k *keeper) pending() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.jobs
}

// start begins to look after an attempt whose handler is about to run.
func (k *keeper) start(a *Attempt) bool {
	c := a.engine.config
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	now := time.Now()
	w := &a.watch
	w.running = true
	w.deadline = a.sent.Add(c.lease - clock.Drift(c.lease))
	w.renewAt = a.sent.Add(c.lease / 3)
	w.bound = now.Add(c.maxHold)
	k.schedule(a)
	return true
}

// lost returns why a claim cannot be trusted at this moment, or nil. It reads the
// clock itself, so it is right also where the goroutine was late.
func (k *keeper) lost(a *Attempt) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := &a.watch
	if w.cause == nil && w.running && !w.settled && !time.Now().Before(w.deadline) {
		return errLapsed
	}
	return w.cause
}

var errLapsed = fmt.Errorf("%w: the claim was not renewed in time", core.ErrLost)

// lose ends the context of an attempt.
func (k *keeper) lose(a *Attempt, cause error) {
	k.mu.Lock()
	first := a.watch.cause == nil && a.watch.running
	if first {
		a.watch.cause, a.watch.stopped = cause, true
		k.schedule(a)
	}
	k.mu.Unlock()
	if first {
		a.cancel(cause)
	}
}

// finish says that there is nothing more to do for the record: it is settled, or
// left to lapse.
// It reports whether a commit of the attempt is still under way in the background.
func (k *keeper) finish(a *Attempt) (pending bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := &a.watch
	pending = w.job != nil
	w.settled, w.stopped = true, w.stopped || !pending
	k.schedule(a)
	return pending
}

// stop says that the handler is not running any more. What is still to be done
// for its record goes on.
func (k *keeper) stop(a *Attempt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a.watch.running = false
	k.schedule(a)
}

// insist goes on with a commit that the store has not confirmed, until it has or
// the retention is over.
func (k *keeper) insist(a *Attempt, req CommitRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	cost := int64(len(req.Response)) + jobCost
	if k.bytes+cost > k.room {
		// That it was carried out is worth more than the answer.
		cost, req.Response = jobCost, nil
	}
	now := time.Now()
	a.watch.settled = true
	k.add(a, &job{commit: &req, cost: cost, at: now.Add(minBackoff), until: now.Add(req.Retention)})
}

// discard gives a claim up in the background. If it is ambiguous, a try of it may
// be executed at any time: it is given up again and again for one lease.
func (k *keeper) discard(a *Attempt, ambiguous bool) {
	c := a.engine.config
	k.mu.Lock()
	defer k.mu.Unlock()
	w := &a.watch
	w.running, w.stopped = false, true
	now := time.Now()
	j := &job{cost: jobCost, at: now, until: now.Add(c.retention)}
	if ambiguous {
		j.sweep = now.Add(c.lease)
	}
	k.add(a, j)
}

// add puts a job in. Called with k.mu held.
func (k *keeper) add(a *Attempt, j *job) {
	if k.closed || a.watch.job != nil {
		return // its lease will do
	}
	a.watch.job = j
	k.jobs++
	k.bytes += j.cost
	k.schedule(a)
}

// over takes a job out. Called with k.mu held.
func (k *keeper) over(a *Attempt) {
	k.bytes -= a.watch.job.cost
	a.watch.job, a.watch.stopped = nil, true
	k.jobs--
	k.gone()
}

// schedule puts an attempt at the time of its next event. Called with k.mu held.
func (k *keeper) schedule(a *Attempt) {
	w, lease := &a.watch, a.engine.config.lease
	var at time.Time
	soon := time.Duration(0)
	earlier := func(t time.Time, tolerance time.Duration) {
		if at.IsZero() || t.Before(at) {
			at, soon = t, tolerance
		}
	}
	if w.running {
		if w.cause == nil && !w.settled {
			earlier(w.deadline, 0)
		}
		if !w.bound.IsZero() {
			earlier(w.bound, 0)
		}
	}
	if (w.running || w.job != nil) && !w.renewing && !w.stopped {
		// What is due a little later goes along: fewer, larger batches.
		earlier(w.renewAt, min(lease/60, 50*time.Millisecond))
	}
	if w.job != nil && !w.job.busy {
		earlier(w.job.at, 0)
	}
	switch {
	case k.closed:
		return
	case at.IsZero():
		if w.index > 0 {
			heap.Remove(&k.due, w.index-1)
		}
		return
	}
	w.at, w.soon = at, soon
	if w.index == 0 {
		heap.Push(&k.due, a)
	} else {
		heap.Fix(&k.due, w.index-1)
	}
	switch {
	case !k.alive:
		k.alive = true
		k.wakeAt = time.Time{}
		k.work.Go(k.run)
	case w.index == 1 && (k.wakeAt.IsZero() || at.Before(k.wakeAt)):
		k.nudge()
	}
}

func (k *keeper) nudge() {
	select {
	case k.poke <- struct{}{}:
	default:
	}
}

// ending is a context that is to be ended, outside the mutex: that calls what
// others have attached to it.
type ending struct {
	attempt *Attempt
	cause   error
}

// run is the goroutine. It ends when it wakes and finds nothing to look after.
func (k *keeper) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var ends []ending // to be told, and renewed, outside the mutex
		var renew map[time.Duration][]*Attempt
		now := time.Now()
		k.mu.Lock()
		for len(k.due) > 0 && !k.due[0].watch.at.After(now.Add(k.due[0].watch.soon)) {
			a := heap.Pop(&k.due).(*Attempt)
			if cause := k.expire(a, now); cause != nil {
				ends = append(ends, ending{a, cause})
			}
			w, lease := &a.watch, a.engine.config.lease
			if (w.running || w.job != nil) && !w.renewing && !w.stopped &&
				!w.renewAt.After(now.Add(min(lease/60, 50*time.Millisecond))) {
				w.renewing = true
				if renew == nil {
					renew = make(map[time.Duration][]*Attempt)
				}
				renew[lease] = append(renew[lease], a)
			}
			if j := w.job; j != nil && !j.busy && !j.at.After(now) {
				j.busy = true
				k.ready = append(k.ready, a)
			}
			k.schedule(a) // its next event is later than now
		}
		k.launch()
		last := len(k.due) == 0 || k.closed
		if last {
			k.alive = false // whoever schedules something starts another
		} else {
			k.wakeAt = k.due[0].watch.at
			timer.Reset(k.wakeAt.Sub(now))
		}
		k.mu.Unlock()

		for _, e := range ends {
			e.attempt.cancel(e.cause)
		}
		for lease, batch := range renew {
			k.work.Go(func() { k.renew(lease, batch) })
		}
		if last {
			return
		}
		select {
		case <-timer.C:
		case <-k.poke:
		}
	}
}

// expire notes that a claim has lapsed or was held too long. Called with k.mu
// held.
func (k *keeper) expire(a *Attempt, now time.Time) (cause error) {
	w := &a.watch
	if !w.running {
		return nil
	}
	if w.cause == nil && !w.settled && !now.Before(w.deadline) {
		// Another may take over from now on. Until one has, renewing goes on:
		// what the handler has begun may still count.
		cause = errLapsed
	}
	if !w.bound.IsZero() && !now.Before(w.bound) {
		w.bound, w.stopped = time.Time{}, true
		if w.cause == nil && cause == nil {
			cause = core.ErrMaxHold
		}
	}
	if cause != nil {
		w.cause = cause
	}
	return cause
}

// renew sends one batch, bounded by a sixth of the lease, so that two tries fit
// between the third of the lease at which it starts and the deadline.
func (k *keeper) renew(lease time.Duration, batch []*Attempt) {
	extensions := make([]Extension, len(batch))
	for i, a := range batch {
		extensions[i] = Extension{ID: a.id, Token: a.token, Lease: lease, Retention: a.engine.config.retention}
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(lease/6, time.Millisecond))
	defer cancel()
	sent := time.Now()
	k.store.Extend(ctx, extensions, func(i int, err error) { k.renewed(batch[i], sent, err) })
}

// renewed takes the outcome of a renewal.
func (k *keeper) renewed(a *Attempt, sent time.Time, err error) {
	k.mu.Lock()
	w, lease := &a.watch, a.engine.config.lease
	w.renewing = false
	var cause error
	switch {
	case errors.Is(err, core.ErrNotOwner):
		// Taken over, or gone. A commit is tried all the same: it finds out.
		w.stopped = true
		if w.running && w.cause == nil && !w.settled {
			cause = fmt.Errorf("%w: another attempt has taken over", core.ErrLost)
			w.cause = cause
		}
	case err != nil:
		w.renewAt = time.Now().Add(max(min(lease/20, time.Second), time.Millisecond))
	default:
		// A late success revives no context, but keeps others away.
		w.deadline = sent.Add(lease - clock.Drift(lease))
		w.renewAt = sent.Add(lease / 3)
	}
	k.schedule(a)
	k.mu.Unlock()
	if cause != nil {
		a.cancel(cause)
	}
}

// launch begins tries of jobs that are ready, as far as that may be under way at
// once. Called with k.mu held.
func (k *keeper) launch() {
	for len(k.ready) > 0 && k.trying < triesAtOnce && !k.closed {
		a := k.ready[0]
		k.ready[0] = nil
		k.ready = k.ready[1:]
		k.trying++
		k.work.Go(func() { k.try(a, a.watch.job) })
	}
}

// try does a job once.
func (k *keeper) try(a *Attempt, j *job) {
	ctx, deadline := context.Background(), time.Now().Add(storeWait)
	var err error
	if j.commit != nil {
		req := *j.commit
		req.Deadline = deadline
		// Stored, or another has taken over: both are the end of it.
		_, err = k.store.Commit(ctx, req)
	} else {
		err = k.store.Abandon(ctx, AbandonRequest{ID: a.id, Token: a.token, Deadline: deadline})
		if errors.Is(err, core.ErrNotOwner) {
			err = nil
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trying--
	j.busy = false
	now := time.Now()
	switch {
	case err == nil && now.Before(j.sweep) && !k.lastTry(a, now):
		j.at = now.Add(max(a.engine.config.lease/3, time.Millisecond))
	case err == nil:
		k.over(a)
	default:
		j.backoff = min(max(2*j.backoff, minBackoff), maxBackoff)
		j.at = now.Add(j.backoff)
		if j.at.After(j.until) {
			k.over(a)
		}
	}
	k.schedule(a)
	k.launch()
}

// lastTry reports whether a claim that may still turn up is given up once more, and
// then left alone: when the engine is closing, since nobody wants to wait a lease
// for that. A claim that turns up even later keeps its key in flight until it
// lapses, and is then taken over; no request is carried out twice for it. Not so
// where a claim that lapsed is an outcome that is unknown for good. Called with k.mu
// held.
func (k *keeper) lastTry(a *Attempt, now time.Time) bool {
	return k.closing && now.Before(a.watch.job.sweep) && !a.engine.config.strict
}

// close waits until nothing is left, or ctx has ended.
func (k *keeper) close(ctx context.Context) error {
	k.mu.Lock()
	k.closing = true
	now := time.Now()
	for _, a := range slices.Clone(k.due) { // schedule moves them
		if j := a.watch.job; j != nil && !j.busy && k.lastTry(a, now) {
			j.at = now
			k.schedule(a)
		}
	}
	var empty chan struct{}
	if k.running > 0 || k.jobs > 0 {
		if k.empty == nil {
			k.empty = make(chan struct{})
		}
		empty = k.empty
	}
	k.mu.Unlock()
	var err error
	if empty != nil {
		select {
		case <-empty:
		case <-ctx.Done():
			err = fmt.Errorf("interlock: closing with requests under way or answers not stored: %w", context.Cause(ctx))
		}
	}
	k.mu.Lock()
	k.closed = true
	var ends []*Attempt
	for _, a := range k.due {
		if a.watch.running && a.watch.cause == nil {
			a.watch.cause = core.ErrClosed
			ends = append(ends, a)
		}
		a.watch.index = 0
	}
	k.due, k.ready = nil, nil
	k.nudge()
	k.mu.Unlock()
	for _, a := range ends {
		a.cancel(core.ErrClosed)
	}
	done := make(chan struct{})
	go func() {
		k.work.Wait() // what is on its way ends by its own deadline
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	return err
}

// dueHeap is a heap of attempts by their next event (container/heap).
type dueHeap []*Attempt

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].watch.at.Before(h[j].watch.at) }

func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].watch.index, h[j].watch.index = i+1, j+1
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	a := x.(*Attempt)
	*h = append(*h, a)
	a.watch.index = len(*h)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	a.watch.index = 0
	return a
}
