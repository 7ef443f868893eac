package memstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// remember is how long the token of a key is kept after its lock has ended. A
// token follows the clock, so that one which is forgotten later is still smaller
// than the next.
const remember = time.Minute

// Store is a [driver.Store] in memory. Make it with [New]. It is safe for
// concurrent use, and has nothing to close.
type Store struct {
	mu        sync.Mutex
	records   map[string]*record
	sweepAt   int // the number of records at which the old ones are removed
	watchers  map[string][]*watcher
	intercept func(Request) Fault
	requests  map[Op]int
	taken     int // how many owners Take has made
}

// record is what the store knows of a key.
type record struct {
	owner   string    // the exclusive holder; empty: there is none
	places  []place   // of the other holders
	token   int64     // the last that was given out
	expires time.Time // when the last lease ends
	waiting []waiting
	barrier time.Time // until when an exclusive request keeps new places out
	freed   time.Time // when the lock or a place was last released
}

// free reports whether there is no holder.
func (r *record) free() bool { return r.owner == "" && len(r.places) == 0 }

type watcher struct{ wake func(driver.Signal) }

// New makes an empty store.
func New() *Store {
	return &Store{
		records: map[string]*record{}, watchers: map[string][]*watcher{}, requests: map[Op]int{}, sweepAt: 1024,
	}
}

var _ driver.Store = (*Store)(nil)

// Acquire implements [driver.Store].
func (s *Store) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if err := checkKind(&req); err != nil {
		return driver.Reply{}, err
	}
	sent := time.Now()
	fault := s.arrive(Request{Op: Acquire, Key: req.Key, Owner: req.Owner, TTL: req.TTL})
	if fault == (Fault{}) {
		rep := s.acquire(req)
		rep.Sent = sent
		return rep, nil
	}
	under := &underway{answer: make(chan outcome, 1)}
	go func() {
		out := outcome{err: fault.Err}
		time.Sleep(fault.Before)
		if fault.executed() {
			out.rep = s.acquire(req)
		}
		time.Sleep(fault.After)
		if out.err != nil {
			out.rep = driver.Reply{Ambiguous: fault.Executed}
		}
		out.rep.Sent = sent
		if !under.deliver(out) {
			req.Late(out.rep, out.err)
		}
	}()
	var deadline <-chan time.Time
	if !req.Deadline.IsZero() {
		timer := time.NewTimer(time.Until(req.Deadline))
		defer timer.Stop()
		deadline = timer.C
	}
	select {
	case out := <-under.answer:
		return out.rep, out.err
	case <-ctx.Done():
	case <-deadline:
	}
	if out, came := under.leave(); came {
		return out.rep, out.err
	}
	return driver.Reply{}, fmt.Errorf("%w: %w", driver.ErrPending, context.Cause(ctx))
}

type outcome struct {
	rep driver.Reply
	err error
}

// underway is a request that takes time. Either its caller gets the outcome, or
// it has left before: the mutex makes that one or the other.
type underway struct {
	mu     sync.Mutex
	left   bool
	answer chan outcome // has room for the only one
}

// deliver hands over the outcome. It returns false if the caller has left.
func (u *underway) deliver(out outcome) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.left {
		u.answer <- out
	}
	return !u.left
}

// leave notes that the caller leaves, unless the outcome came in the same moment.
func (u *underway) leave() (out outcome, came bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	select {
	case out := <-u.answer:
		return out, true
	default:
		u.left = true
		return outcome{}, false
	}
}

func (s *Store) acquire(req driver.AcquireRequest) driver.Reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r := s.record(req.Key, now)
	if req.Kind.Place() {
		return r.enter(req, now)
	}
	switch {
	case r.owner == req.Owner:
		return driver.Reply{Granted: true, Token: r.token}
	case r.owner != "":
		return driver.Reply{Holder: r.owner, TTL: r.expires.Sub(now), Listed: r.list(req.Waiter, false)}
	case len(r.places) > 0:
		listed := r.list(req.Waiter, false)
		if until := now.Add(min(req.Left, barrier)); listed && req.Left > 0 && until.After(r.barrier) {
			r.barrier = until
		}
		return driver.Reply{Holder: r.holders(), TTL: min(r.expires.Sub(now), linger), Listed: listed}
	}
	r.waits(req)
	r.owner, r.expires, r.barrier = req.Owner, now.Add(req.TTL), time.Time{}
	return driver.Reply{Granted: true, Token: r.mint(now, 1)}
}

// Renew implements [driver.Store].
func (s *Store) Renew(ctx context.Context, batch []driver.Renewal, done func(i int, contended bool, err error)) {
	var slow sync.WaitGroup
	for i, renewal := range batch {
		fault := s.arrive(Request{Op: Renew, Key: renewal.Key, Owner: renewal.Owner, TTL: renewal.TTL})
		if fault == (Fault{}) {
			contended, err := s.renew(renewal)
			done(i, contended, err)
			continue
		}
		slow.Go(func() {
			contended, err := false, error(nil)
			if !pause(ctx, fault.Before) {
				done(i, false, unanswered(ctx))
				return
			}
			if fault.executed() {
				contended, err = s.renew(renewal)
			}
			switch {
			case !pause(ctx, fault.After):
				err = unanswered(ctx)
			case fault.Err != nil:
				contended, err = false, fault.Err
			}
			done(i, contended, err)
		})
	}
	slow.Wait()
}

func (s *Store) renew(renewal driver.Renewal) (contended bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r := s.record(renewal.Key, now)
	if renewal.Kind.Place() {
		err := r.stay(renewal, now)
		return err == nil && len(r.waiting) > 0, err
	}
	if err := r.denied(renewal.Owner); err != nil {
		return false, err
	}
	if end := now.Add(renewal.TTL); end.After(r.expires) {
		r.expires = end
	}
	return len(r.waiting) > 0, nil
}

// Release implements [driver.Store].
func (s *Store) Release(_ context.Context, req driver.ReleaseRequest) (waiting string, err error) {
	fault := s.arrive(Request{Op: Release, Key: req.Key, Owner: req.Owner, TTL: req.TTL})
	time.Sleep(fault.Before)
	if fault.executed() {
		waiting, err = s.release(req)
	}
	time.Sleep(fault.After)
	if fault.Err != nil {
		return "", fault.Err
	}
	return waiting, err
}

func (s *Store) release(req driver.ReleaseRequest) (waiting string, err error) {
	waiting, tell, err := s.giveUp(req)
	if tell != nil {
		tell()
	}
	return waiting, err
}

// giveUp ends what an owner holds. The function that it returns wakes the waiting
// lockers. waiting names them, if the lock is free and there are others than the releasing one.
func (s *Store) giveUp(req driver.ReleaseRequest) (waiting string, tell func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r := s.record(req.Key, now)
	if req.Kind.Place() {
		free, signal, err := r.leave(req, now)
		if err != nil {
			return "", nil, err
		}
		r.token = max(r.token, req.Token)
		if free {
			return "", s.free(req.Key, r, now), nil
		}
		if r.freed = now; signal.Now == 0 {
			return "", nil, nil // no locker is waiting
		}
		return "", s.telling(req.Key, signal), nil
	}
	if err := r.denied(req.Owner); err != nil {
		return "", nil, err
	}
	r.token = max(r.token, req.Token)
	r.again(req.Waiter, false)
	if waiting = names(r.waiting); waiting == req.Waiter {
		waiting = ""
	}
	return waiting, s.free(req.Key, r, now), nil
}

// free ends the possession of a lock. The caller holds s.mu, and calls what free
// returns after it has given s.mu back: it wakes the waiting lockers.
func (s *Store) free(key string, r *record, now time.Time) (tell func()) {
	signal := driver.Signal{Next: names(r.waiting)}
	r.owner, r.places, r.waiting, r.barrier = "", nil, nil, time.Time{}
	r.freed, r.expires = now, now
	return s.telling(key, signal)
}

// telling returns what wakes the watchers of a key. The caller holds s.mu.
func (s *Store) telling(key string, signal driver.Signal) func() {
	watchers := slices.Clone(s.watchers[key])
	return func() {
		for _, w := range watchers {
			w.wake(signal)
		}
	}
}

// Watch implements [driver.Store].
func (s *Store) Watch(key string, since time.Time, wake func(driver.Signal)) (stop func()) {
	w := &watcher{wake}
	s.mu.Lock()
	s.watchers[key] = append(s.watchers[key], w)
	r := s.records[key]
	missed := r == nil || r.free() || r.freed.After(since)
	s.mu.Unlock()
	if missed {
		wake(driver.Signal{})
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left := slices.DeleteFunc(s.watchers[key], func(other *watcher) bool { return other == w })
		if s.watchers[key] = left; len(left) == 0 {
			delete(s.watchers, key)
		}
	}
}

// record returns what is known of a key; a lock whose lease is over is free, and so is a
// place. The caller holds s.mu.
func (s *Store) record(key string, now time.Time) *record {
	r := s.records[key]
	if r == nil {
		if len(s.records) >= s.sweepAt {
			s.sweep(now)
		}
		r = &record{}
		s.records[key] = r
	}
	if r.owner != "" && !now.Before(r.expires) {
		r.owner, r.waiting = "", nil
	}
	r.places = slices.DeleteFunc(r.places, func(p place) bool { return !now.Before(p.ends) })
	if r.free() && now.Sub(r.expires) >= linger {
		r.waiting, r.barrier = nil, time.Time{}
	}
	return r
}

// sweep forgets keys that have not been held for a while, so that the store does
// not grow with every key that was ever locked. The caller holds s.mu.
func (s *Store) sweep(now time.Time) {
	for key, r := range s.records {
		if now.Sub(r.expires) > remember {
			delete(s.records, key)
		}
	}
	s.sweepAt = max(1024, 2*len(s.records))
}

// denied says why an owner does not hold the lock, or returns nil.
func (r *record) denied(owner string) error {
	switch r.owner {
	case owner:
		return nil
	case "":
		if len(r.places) > 0 {
			return driver.ErrTakenOver
		}
		return driver.ErrDeleted
	default:
		return driver.ErrTakenOver
	}
}

// pause waits for d. It returns false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func unanswered(ctx context.Context) error {
	return fmt.Errorf("%w: no answer in time: %s", driver.ErrUnavailable, context.Cause(ctx).Error()) // a bound of ours
}
