package memstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
	owner   string // empty: the lock is free
	token   int64  // the last that was given out
	expires time.Time
	waiting []string
	freed   time.Time // when it was last released
}

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
	switch r.owner {
	case req.Owner:
		return driver.Reply{Granted: true, Token: r.token}
	case "":
		r.owner, r.expires = req.Owner, now.Add(req.TTL)
		r.token = max(r.token+1, now.UnixMicro())
		r.waiting = nil
		if req.Rest != "" {
			r.waiting = strings.Split(req.Rest, ",")
		}
		return driver.Reply{Granted: true, Token: r.token}
	default:
		r.list(req.Waiter)
		return driver.Reply{Holder: r.owner, TTL: r.expires.Sub(now), Listed: req.Waiter != ""}
	}
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
	if err := r.denied(renewal.Owner); err != nil {
		return false, err
	}
	if end := now.Add(renewal.TTL); end.After(r.expires) {
		r.expires = end
	}
	return len(r.waiting) > 0, nil
}

// Release implements [driver.Store].
func (s *Store) Release(_ context.Context, req driver.ReleaseRequest) error {
	fault := s.arrive(Request{Op: Release, Key: req.Key, Owner: req.Owner, TTL: req.TTL})
	time.Sleep(fault.Before)
	var err error
	if fault.executed() {
		err = s.release(req)
	}
	time.Sleep(fault.After)
	if fault.Err != nil {
		return fault.Err
	}
	return err
}

func (s *Store) release(req driver.ReleaseRequest) error {
	s.mu.Lock()
	now := time.Now()
	r := s.record(req.Key, now)
	if err := r.denied(req.Owner); err != nil {
		s.mu.Unlock()
		return err
	}
	r.token = max(r.token, req.Token)
	r.list(req.Waiter)
	tell := s.free(req.Key, r, now)
	s.mu.Unlock()
	tell()
	return nil
}

// free ends the possession of a lock. The caller holds s.mu, and calls what free
// returns after it has given s.mu back: it wakes the waiting lockers.
func (s *Store) free(key string, r *record, now time.Time) (tell func()) {
	signal := driver.Signal{Next: strings.Join(r.waiting, ",")}
	r.owner, r.waiting, r.freed, r.expires = "", nil, now, now
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
	missed := r == nil || r.owner == "" || r.freed.After(since)
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

// record returns what is known of a key; a lock whose lease is over is free. The
// caller holds s.mu.
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

// list enters a waiting locker at the end of the list, once.
func (r *record) list(waiter string) {
	if waiter != "" && !slices.Contains(r.waiting, waiter) {
		r.waiting = append(r.waiting, waiter)
	}
}

// denied says why an owner does not hold the lock, or returns nil.
func (r *record) denied(owner string) error {
	switch r.owner {
	case owner:
		return nil
	case "":
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
