package memstore

import (
	"strconv"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Op is the kind of a request.
type Op string

// The kinds of requests.
const (
	Acquire Op = "acquire"
	Renew   Op = "renew"
	Release Op = "release"
)

// Request is a request that arrives at the store.
type Request struct {
	Op    Op
	Key   string
	Owner string
	// TTL is the lease that the request is about.
	TTL time.Duration
}

// Fault is what happens to a request. The zero value lets it through.
type Fault struct {
	// Before is how long the request takes to reach the store, After how long
	// the reply takes to come back.
	Before, After time.Duration
	// Err is what the client gets in place of the reply; it should match one of
	// the errors of package driver. With Err the request is not executed, unless
	// Executed says so.
	Err error
	// Executed says that the store executes the request although the client gets
	// Err: the reply is lost, and the client cannot know the outcome.
	Executed bool
}

// Faults that tests want most.
var (
	// Unreachable is a server that cannot be reached: nothing is executed.
	Unreachable = Fault{Err: driver.ErrUnavailable}
	// LostReply is a connection that breaks after the request was executed.
	LostReply = Fault{Err: driver.ErrUnavailable, Executed: true}
)

// Delay is a slow network: request and reply take d each.
func Delay(d time.Duration) Fault { return Fault{Before: d, After: d} }

func (f Fault) executed() bool { return f.Err == nil || f.Executed }

// Intercept sets a function that decides what happens to each request from now
// on; nil lets all through. It is called from many goroutines at once, and not
// for requests that are under way.
func (s *Store) Intercept(f func(Request) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// arrive counts a request and returns its fault.
func (s *Store) arrive(r Request) Fault {
	s.mu.Lock()
	s.requests[r.Op]++
	intercept := s.intercept
	s.mu.Unlock()
	if intercept == nil {
		return Fault{}
	}
	return intercept(r)
}

// Requests returns how many requests of a kind have arrived.
func (s *Store) Requests(op Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[op]
}

// Holder returns the owner that holds the lock of a key, and its fencing token.
// ok is false if the lock is free. Where several owners have places, it returns that of
// them which has had its place for the longest time.
func (s *Store) Holder(key string) (owner string, token int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records[key] == nil {
		return "", 0, false
	}
	switch r := s.record(key, time.Now()); {
	case r.owner != "":
		return r.owner, r.token, true
	case len(r.places) > 0:
		return r.places[0].owner, r.places[0].token, true
	default:
		return "", 0, false
	}
}

// Take gives the lock of a key to another process for the time of lease, also if
// it is held: then its holder has lost it, and learns that at its next renewal,
// as after a failover that lost the lock. The other process holds it exclusively, and
// all owners that had places have lost them. release gives the lock up again, if
// the other process still has it.
func (s *Store) Take(key string, lease time.Duration) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken++
	owner := "another-process:" + strconv.Itoa(s.taken)
	now := time.Now()
	r := s.record(key, now)
	r.owner, r.places, r.expires, r.barrier = owner, nil, now.Add(lease), time.Time{}
	r.mint(now, 1)
	return func() {
		s.mu.Lock()
		r := s.record(key, time.Now())
		if r.owner != owner {
			s.mu.Unlock()
			return
		}
		tell := s.free(key, r, time.Now())
		s.mu.Unlock()
		tell()
	}
}

// Expire ends the lease of a lock now, as when Redis evicted the key. Its holder
// learns it at its next renewal, or when it releases the lock. So do all owners that
// have places: Expire ends every place of the key. It returns false if the lock was free.
func (s *Store) Expire(key string) bool {
	s.mu.Lock()
	now := time.Now()
	r := s.record(key, now)
	if r.free() {
		s.mu.Unlock()
		return false
	}
	tell := s.free(key, r, now)
	s.mu.Unlock()
	tell()
	return true
}
