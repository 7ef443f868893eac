package memstore

import (
	"strconv"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// Op is the kind of a request.
type Op string

// The kinds of requests about locks.
const (
	Acquire Op = "acquire"
	Stand   Op = "stand" // asks whether a caller may wait, see [driver.Turns]
	Renew   Op = "renew" // one for each lease of a batch
	Release Op = "release"
	Decline Op = "decline" // the Owner is a locker that leaves the list, see [driver.Turns]
)

// The kinds of requests about the records of idempotent endpoints.
const (
	Claim   Op = "claim"
	Extend  Op = "extend" // one for each lease of a batch
	Mark    Op = "mark"
	Step    Op = "step"
	Commit  Op = "commit"
	Abandon Op = "abandon"
	Resolve Op = "resolve"
	Forget  Op = "forget"
)

// Request is a request that arrives at the store.
type Request struct {
	Op Op
	// Key is the key of the lock, or the ID of the record ([Record]).
	Key string
	// Owner is the owner of the lock, or the token of the claim; Forget has none.
	Owner string
	// From is the owner that hands the lock on to Owner ([driver.AcquireRequest]); empty: there is none.
	From string
	// TTL is the lease that the request is about; zero if it is about none.
	TTL time.Duration
	// HandOver says that Mark makes a ticket (idempotency.HandOver).
	HandOver bool
}

// Fault is what happens to a request. The zero value lets it through.
type Fault struct {
	// Before is the time that the request takes to reach the store, After the time that
	// the reply takes to come back.
	Before, After time.Duration
	// Err replaces the reply to the client; it should match an error of package driver.
	// With Err the request is not executed, unless Executed says so.
	Err error
	// Executed says that the store executes the request although the client gets
	// Err: the reply is lost, and the client cannot know the outcome.
	Executed bool
	// Ambiguous says that the client cannot know whether the store executed the
	// request. It is for requests that fail with Err, and Executed implies it.
	Ambiguous bool
	// Then, unless nil, is called when the store has executed the request, and before the reply
	// leaves: the process of the request can die here ([Process.Kill]), or stop.
	Then func()

	own *process // the process of the request
}

// Faults that tests want most.
var (
	// Unreachable is a server that cannot be reached: nothing is executed.
	Unreachable = Fault{Err: driver.ErrUnavailable}
	// LostReply is a connection that breaks after the request was executed.
	LostReply = Fault{Err: driver.ErrUnavailable, Executed: true}
	// LostRequest is a connection that breaks before the request has arrived, which
	// the client cannot tell from LostReply.
	LostRequest = Fault{Err: driver.ErrUnavailable, Ambiguous: true}
)

// Delay is a slow network: request and reply take d each.
func Delay(d time.Duration) Fault { return Fault{Before: d, After: d} }

// none reports whether a request with the fault is executed and answered at once.
func (f Fault) none() bool { return f.Before <= 0 && f.After <= 0 && f.Err == nil }

func (f Fault) executed() bool { return f.Err == nil || f.Executed }

func (f Fault) ambiguous() bool { return f.Executed || f.Ambiguous || f.own != nil }

// run calls send for one request of a batch: at once if the request takes no time, else in
// a goroutine of slow.
func (f Fault) run(slow *sync.WaitGroup, send func()) {
	if f.none() {
		send()
		return
	}
	slow.Go(send)
}

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
	if err := s.own.pass(); err != nil {
		return Fault{Err: err, own: s.own}
	}
	s.mu.Lock()
	s.requests[r.Op]++
	intercept := s.intercept
	s.mu.Unlock()
	fault := s.own.intercepted(r)
	if intercept != nil && fault.none() && fault.Then == nil {
		fault = intercept(r)
	}
	fault.own = s.own
	return fault
}

// Requests returns how many requests of a kind have arrived.
func (s *Store) Requests(op Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[op]
}

// Holder returns the owner that holds the lock of a key, and its fencing token.
// ok is false if the lock is free. Where several owners have places, it returns the
// owner that has had its place for the longest time.
func (s *Store) Holder(key string) (owner string, token int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[key] == nil {
		return "", 0, false
	}
	l := s.lock(key, s.now())
	l.At(s.now())
	return l.Holder()
}

// Take gives the lock of a key to another process for the time of lease, also if
// it is held: then its holder has lost it, and finds that out at its next renewal,
// as after a failover that lost the lock. The other process holds it exclusively, and
// all owners that had places have lost them. release gives the lock up again, if
// the other process still has it.
func (s *Store) Take(key string, lease time.Duration) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := s.another()
	s.lock(key, s.now()).Seize(owner, lease, s.now())
	return func() {
		s.change(key, func(r *keystate.Record, now time.Time) (n keystate.Notices) {
			r.At(now)
			if has, _, _ := r.Holder(); has == owner {
				n = r.Lose(now)
			}
			return n
		})
	}
}

// StepClock sets the clock of the store ahead by a time, or back if that is negative, as
// happens to the clock of a server. The clocks of the processes do not change. Leases that run
// end earlier or later by that time.
func (s *Store) StepClock(by time.Duration) { s.stepped.Add(int64(by)) }

// another names another process. The caller holds s.mu.
func (s *Store) another() string {
	s.taken++
	return "another-process:" + strconv.Itoa(s.taken)
}

// Expire ends the lease of a lock now, as when Redis evicted the key. Its holder
// finds that out at its next renewal, or when it releases the lock. So do all owners that
// have places: Expire ends every place of the key. It returns false if the lock was free.
func (s *Store) Expire(key string) (held bool) {
	s.change(key, func(r *keystate.Record, now time.Time) (n keystate.Notices) {
		if r.At(now); r.Free() {
			return n
		}
		held = true
		return r.Lose(now)
	})
	return held
}
