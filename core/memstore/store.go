package memstore

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// remember is how long the token of a key is kept after its lock has ended. A
// token follows the clock, so that a forgotten token is still smaller than
// the next.
const remember = time.Minute

// sweepAt is the number of keys, or of records, at which the store looks for old ones
// for the first time.
const sweepAt = 1024

// Store is a [driver.Store] and a [record.Store] in memory. Make it with [New]. It is
// safe for concurrent use, and has nothing to close.
type Store struct {
	mu        sync.Mutex
	locks     map[string]*lock
	sweepAt   int // the number of locks at which the old ones are removed
	watchers  map[string][]*watcher
	attentive map[string]func(key, owner string) // by the id of the locker
	offers    map[string]func(driver.Offer)      // likewise
	intercept func(Request) Fault
	requests  map[Op]int
	taken     int // how many other processes Take and TakeClaims have made
	records   records
	stepped   atomic.Int64 // by how many ns StepClock has set the clock
}

func (s *Store) now() time.Time { return time.Now().Add(time.Duration(s.stepped.Load())) }

// lock is what the store has of a key.
type lock struct {
	owner    string    // the exclusive holder; empty: there is none
	places   []place   // of the other holders
	token    int64     // the last that was given out
	expires  time.Time // when the last lease ends
	waiting  []waiting
	barrier  time.Time   // until when an exclusive request keeps new places out
	reserved reservation // without a holder
	line     line
	freed    time.Time // when the lock or a place was last released, by the clock of the processes
}

// free reports whether there is no holder.
func (r *lock) free() bool { return r.owner == "" && len(r.places) == 0 }

type watcher struct{ wake func(driver.Signal) }

// New makes an empty store.
func New() *Store {
	return &Store{
		locks: map[string]*lock{}, watchers: map[string][]*watcher{}, requests: map[Op]int{}, sweepAt: sweepAt,
		attentive: map[string]func(key, owner string){}, offers: map[string]func(driver.Offer){},
		records: records{
			entries: map[string]*entry{}, gone: map[string]time.Time{}, awaiting: map[string][]*awaiting{}, sweepAt: sweepAt,
		},
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
	return travel[driver.Reply]{
		fault: fault, deadline: req.Deadline, late: req.Late,
		execute: func() (driver.Reply, error) {
			rep := s.try(req, (*lock).ask)
			rep.Sent = sent
			return rep, nil
		},
		lost: driver.Reply{Sent: sent, Ambiguous: fault.ambiguous()},
	}.send(ctx)
}

// try asks for a caller, and tells the holders that a locker waits, and a locker that is displaced.
func (s *Store) try(req driver.AcquireRequest, ask func(*lock, driver.AcquireRequest, time.Time) driver.Reply) driver.Reply {
	rep, tell := s.asked(req, ask)
	for _, f := range tell {
		f()
	}
	return rep
}

func (s *Store) asked(
	req driver.AcquireRequest, ask func(*lock, driver.AcquireRequest, time.Time) driver.Reply,
) (rep driver.Reply, tell []func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	r := s.lock(req.Key, now)
	comes := req.Line == driver.Newest && req.Number == 0 && !r.holds(req.Owner)
	if r.comes(&req, now) {
		return driver.Reply{Out: true}, nil
	}
	news := req.Owner != "" && (r.news(req.Waiter) || comes) // else the locker that asks has the lock itself
	if comes {
		tell = s.displaced(req.Key, r, req.Waiter)
	}
	if rep = ask(r, req, now); !rep.Granted && news {
		tell = append(tell, s.wanted(req.Key, r)...)
	}
	return rep, tell
}

// ask makes a try.
func (r *lock) ask(req driver.AcquireRequest, now time.Time) driver.Reply {
	if req.Kind.Place() {
		return r.enter(req, now)
	}
	return r.take(req, now)
}

// take makes a try to get the lock for an exclusive owner.
func (r *lock) take(req driver.AcquireRequest, now time.Time) driver.Reply {
	switch {
	case r.owner == req.Owner:
		return r.grant(req, now)
	case r.owner != "":
		return r.refuse(req, driver.Reply{Holder: r.owner, Token: r.token, TTL: r.expires.Sub(now)}, now)
	case len(r.places) > 0:
		rep := r.refuse(req, driver.Reply{Holder: r.holders(), TTL: min(r.expires.Sub(now), linger)}, now)
		if until := now.Add(min(req.Left, barrier)); rep.Listed && req.Left > 0 && until.After(r.barrier) {
			r.barrier = until
		}
		return rep
	case r.reserved.stands(now) && r.reserved.offer == "" && req.Line == driver.Newest:
		r.reserved = reservation{}
		r.waits(req)
	case r.reserved.stands(now):
		if left := r.passes(req.Waiter, req.Offer, now); left > 0 {
			return r.refuse(req, driver.Reply{Holder: r.reserved.offer, Token: r.reserved.token, TTL: left}, now)
		}
		r.reserved = reservation{}
	default:
		r.waits(req)
	}
	r.owner, r.expires, r.barrier = req.Owner, now.Add(req.TTL), time.Time{}
	r.mint(now, 1)
	return r.grant(req, now)
}

// Renew implements [driver.Store].
func (s *Store) Renew(ctx context.Context, batch []driver.Renewal, done func(i int, contended bool, err error)) {
	var slow sync.WaitGroup
	for i, renewal := range batch {
		fault := s.arrive(Request{Op: Renew, Key: renewal.Key, Owner: renewal.Owner, TTL: renewal.TTL})
		fault.run(&slow, func() {
			contended, err := travel[bool]{
				fault: fault, execute: func() (bool, error) { return s.renew(renewal) },
			}.send(ctx)
			done(i, contended, err)
		})
	}
	slow.Wait()
}

func (s *Store) renew(renewal driver.Renewal) (contended bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	r := s.lock(renewal.Key, now)
	if renewal.Kind.Place() {
		err := r.stay(renewal, now)
		return err == nil && len(r.waiting) > 0, err
	}
	if err := r.denied(renewal.Owner, now); err != nil {
		return false, err
	}
	if renewal.TTL <= 0 && r.owner == "" {
		return len(r.waiting) > 1, nil
	}
	r.accept(renewal.Owner, renewal.TTL, now)
	if end := now.Add(renewal.TTL); end.After(r.expires) {
		r.expires = end
	}
	return len(r.waiting) > 0, nil
}

// Release implements [driver.Store].
func (s *Store) Release(ctx context.Context, req driver.ReleaseRequest) (waiting string, err error) {
	fault := s.arrive(Request{Op: Release, Key: req.Key, Owner: req.Owner, TTL: req.TTL})
	return travel[string]{
		fault: fault, execute: func() (string, error) { return s.release(req) },
	}.send(context.WithoutCancel(ctx)) // the deadline is for repeated tries, and here each try gets an answer
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
	now := s.now()
	r := s.lock(req.Key, now)
	if req.Kind.Place() {
		free, signal, err := r.leave(req, now)
		if err != nil {
			return "", nil, err
		}
		r.token = max(r.token, req.Token)
		if free {
			r.reserve(reservation{}, now)
			return "", s.free(req.Key, r, now), nil
		}
		if r.freed = time.Now(); signal.Now == 0 {
			return "", nil, nil // no locker is waiting
		}
		return "", s.telling(req.Key, signal), nil
	}
	if err := r.denied(req.Owner, now); err != nil {
		return "", nil, err
	}
	r.accept(req.Owner, 0, now)
	r.token = max(r.token, req.Token)
	r.again(req.Waiter, false)
	v, offer := s.offer(req.Key, r, now)
	r.reserve(v, now)
	if waiting = names(r.waiting); len(r.waiting) == 1 && r.waiting[0].id == waiterOf(req.Waiter).id {
		waiting = ""
	}
	announce := s.free(req.Key, r, now)
	return waiting, func() { offer(); announce() }, nil
}

// free ends the possession of a lock. The caller holds s.mu, and calls what free
// returns after it has given s.mu back: it wakes the waiting lockers. Like a server, the store
// tells nothing where it knows of none.
func (s *Store) free(key string, r *lock, now time.Time) (tell func()) {
	signal := driver.Signal{Next: names(r.waiting)}
	r.owner, r.places, r.barrier = "", nil, time.Time{}
	if !r.reserved.stands(now) {
		r.waiting = nil
	}
	r.freed, r.expires = time.Now(), now
	if signal.Next == "" {
		return func() {}
	}
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
	r := s.locks[key]
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

// lock returns what the store has of a key; a lock whose lease has ended is free, and so is a
// place. The caller holds s.mu.
func (s *Store) lock(key string, now time.Time) *lock {
	r := s.locks[key]
	if r == nil {
		if len(s.locks) >= s.sweepAt {
			s.sweep(now)
		}
		r = &lock{}
		s.locks[key] = r
	}
	if r.owner != "" && !now.Before(r.expires) {
		r.owner, r.waiting = "", nil
	}
	r.setBack(now)
	r.places = slices.DeleteFunc(r.places, func(p place) bool { return !now.Before(p.ends) })
	switch {
	case r.reserved.stands(now):
	case r.reserved.lasts > 0:
		r.reserved, r.waiting = reservation{}, nil
	case r.free() && now.Sub(r.expires) >= linger:
		r.waiting, r.barrier = nil, time.Time{}
	}
	return r
}

// sweep forgets keys that have not been held for a while, so that the store does
// not grow with every key that was ever locked. The caller holds s.mu.
func (s *Store) sweep(now time.Time) {
	for key, r := range s.locks {
		if now.Sub(r.expires) > remember {
			delete(s.locks, key)
		}
	}
	s.sweepAt = max(sweepAt, 2*len(s.locks))
}

// denied says why an owner does not hold the lock, or returns nil. To whom the lock is offered,
// that owner holds it as well.
func (r *lock) denied(owner string, now time.Time) error {
	switch {
	case r.owner == owner, r.reserved.offers(owner, now):
		return nil
	case r.owner != "", len(r.places) > 0:
		return driver.ErrTakenOver
	}
	return driver.ErrDeleted
}
