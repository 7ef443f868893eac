package memstore

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// remember is the life of the token of a key after its lock has ended. A
// token follows the clock, so that a forgotten token is still smaller than
// the next.
const remember = time.Minute

// sweepAt is a number of keys, or of records. With so many the store looks for old ones
// for the first time.
const sweepAt = 1024

// Store is a [driver.Store] and a [record.Store] in memory. Make it with [New]. It is
// safe for concurrent use, and has nothing to close.
type Store struct {
	*state
	own *process // the process with this view of the state; nil: none in particular
}

// state is the data of a store, which all its processes share.
type state struct {
	mu        sync.Mutex
	locks     map[string]*keystate.Record
	notes     keystate.Notes
	sweepAt   int                          // with so many locks the old ones are removed
	callers   map[string]func(driver.Call) // by the id of the locker
	intercept func(Request) Fault
	requests  map[Op]int
	taken     int // how many other processes Take and TakeClaims have made
	records   records
	stepped   atomic.Int64 // by how many ns StepClock has set the clock
	space     string
}

func (s *Store) now() time.Time { return time.Now().Add(time.Duration(s.stepped.Load())) }

// New makes an empty store.
func New() *Store {
	return &Store{state: &state{
		locks: map[string]*keystate.Record{}, requests: map[Op]int{}, sweepAt: sweepAt,
		callers: map[string]func(driver.Call){}, space: "memory " + rand.Text(),
		records: records{
			entries: map[string]*entry{}, gone: map[string]time.Time{}, awaiting: map[string][]*awaiting{}, sweepAt: sweepAt,
		},
	}}
}

var _ driver.Store = (*Store)(nil)

// Acquire implements [driver.Store].
func (s *Store) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if err := keystate.Check(&req); err != nil {
		return driver.Reply{}, err
	}
	sent := time.Now()
	fault := s.arrive(Request{Op: Acquire, Key: req.Key, Owner: req.Owner, From: req.From, TTL: req.TTL})
	return travel[driver.Reply]{
		fault: fault, deadline: req.Deadline, late: req.Late,
		execute: func() (driver.Reply, error) {
			rep, err := s.acquire(req)
			rep.Sent = sent
			return rep, err
		},
		lost: driver.Reply{Sent: sent, Ambiguous: fault.ambiguous()},
	}.send(ctx)
}

func (s *Store) acquire(req driver.AcquireRequest) (rep driver.Reply, err error) {
	if req.From == "" {
		return s.try(req, (*keystate.Record).Acquire), nil
	}
	s.change(req.Key, func(r *keystate.Record, now time.Time) (n keystate.Notices) {
		rep, n, err = r.Move(req, now)
		s.notes.Note(req.Key, req.From, n, now)
		err = s.notes.Explain(err, req.Key, req.From, true, now)
		return n
	})
	return rep, err
}

// Space implements [driver.Turns]: each store has its own locks.
func (s *Store) Space() string { return s.space }

func (s *Store) try(
	req driver.AcquireRequest, ask func(*keystate.Record, driver.AcquireRequest, time.Time) (driver.Reply, keystate.Notices),
) (rep driver.Reply) {
	s.change(req.Key, func(r *keystate.Record, now time.Time) (n keystate.Notices) {
		rep, n = ask(r, req, now)
		r.Again(&rep, req.Waiter.ID())
		return n
	})
	return rep
}

// change has a lock changed, and then tells what follows. Like a server, the store tells nothing
// where it knows of none.
func (s *Store) change(key string, by func(r *keystate.Record, now time.Time) keystate.Notices) {
	for _, tell := range s.changed(key, by) {
		tell()
	}
}

func (s *Store) changed(key string, by func(*keystate.Record, time.Time) keystate.Notices) (tell []func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, c := range by(s.lock(key, now), now).Calls {
		if hear := s.callers[c.To]; hear != nil {
			c.Key = key
			tell = append(tell, func() { hear(c.Call) })
		}
	}
	return tell
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
	s.change(renewal.Key, func(r *keystate.Record, now time.Time) (n keystate.Notices) {
		contended, err = r.Renew(renewal, now)
		err = s.notes.Explain(err, renewal.Key, renewal.Owner, false, now)
		return n
	})
	return contended, err
}

// Release implements [driver.Store].
func (s *Store) Release(ctx context.Context, req driver.ReleaseRequest) (found driver.Waiting, err error) {
	fault := s.arrive(Request{Op: Release, Key: req.Key, Owner: req.Owner, TTL: req.TTL})
	return travel[driver.Waiting]{
		fault: fault, execute: func() (driver.Waiting, error) { return s.release(req) },
	}.send(context.WithoutCancel(ctx)) // the deadline is for repeated tries, and here each try gets an answer
}

func (s *Store) release(req driver.ReleaseRequest) (found driver.Waiting, err error) {
	s.change(req.Key, func(r *keystate.Record, now time.Time) (n keystate.Notices) {
		found, n, err = r.Release(req, func(id string) bool { return s.callers[id] != nil }, now)
		s.notes.Note(req.Key, req.Owner, n, now)
		err = s.notes.Explain(err, req.Key, req.Owner, false, now)
		return n
	})
	return found, err
}

// Stand implements [driver.Turns].
func (s *Store) Stand(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	fault := s.arrive(Request{Op: Stand, Key: req.Key, TTL: req.TTL})
	return travel[driver.Reply]{
		fault: fault, execute: func() (driver.Reply, error) { return s.try(req, (*keystate.Record).Stand), nil },
	}.send(ctx)
}

// RoundTrip implements [driver.Turns]: no time passes on the way.
func (s *Store) RoundTrip() time.Duration { return 0 }

// Decline implements [driver.Turns].
func (s *Store) Decline(ctx context.Context, key, waiter string) error {
	fault := s.arrive(Request{Op: Decline, Key: key, Owner: waiter})
	_, err := travel[struct{}]{
		fault: fault, execute: func() (none struct{}, err error) {
			s.change(key, func(r *keystate.Record, now time.Time) keystate.Notices { return r.Decline(waiter, now) })
			return none, nil
		},
	}.send(ctx)
	return err
}

// Calls implements [driver.Store].
func (s *Store) Calls(id string, hear func(driver.Call)) (stop func()) {
	return s.own.subscribe(func(reached bool) (end func()) {
		if reached {
			s.mu.Lock()
			s.callers[id] = func(c driver.Call) { s.own.notify(func() { hear(c) }) }
			s.mu.Unlock()
		}
		hear(driver.Call{Reached: reached})
		return func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.callers, id)
		}
	})
}

// lock returns the state of a key. The caller holds s.mu.
func (s *Store) lock(key string, now time.Time) *keystate.Record {
	l := s.locks[key]
	if l == nil {
		if len(s.locks) >= s.sweepAt {
			s.sweep(now)
		}
		l = &keystate.Record{}
		s.locks[key] = l
	}
	return l
}

// sweep forgets keys that have not been held for a while, so that the store does
// not grow with every key that was ever locked. The caller holds s.mu.
func (s *Store) sweep(now time.Time) {
	for key, l := range s.locks {
		if now.Sub(l.Ended()) > remember {
			delete(s.locks, key)
		}
	}
	s.sweepAt = max(sweepAt, 2*len(s.locks))
}
