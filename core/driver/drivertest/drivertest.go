// Package drivertest is the contract of a [driver.Store] as a test suite. The
// author of a store runs it in a test of that store:
//
//	func TestContract(t *testing.T) {
//		drivertest.Run(t, func(t *testing.T) driver.Store { return open(t) })
//	}
//
// [RunPlaces] is the part about shared locks and permits, for stores that have them,
// [RunTurns] the part about turns, for stores that implement [driver.Ranger], and
// [RunNotifier] is for stores that implement [driver.Notifier], and [RunQueuer] for stores that
// implement [driver.Queuer].
//
// It uses leases of a second or less and real time, so it takes some seconds. It
// shows that a store answers as the lock expects. It cannot show what happens
// when a server dies or the network breaks: that needs tests of the store's own.
package drivertest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// lease is for locks that shall not end during a test, short for locks that
	// shall.
	lease = 30 * time.Second
	short = 400 * time.Millisecond
	// patience bounds how long a test waits for what must happen.
	patience = 15 * time.Second
)

// Run tests a store. It calls open once for each part of the contract; open
// closes what it opened in t.Cleanup. The parts run in parallel, so open is called from
// several goroutines. The stores may share a server: every part uses keys of its own.
// Run returns when all parts have ended.
func Run(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	run(t, "locks", contract, open)
}

// part is a part of the contract.
type part struct {
	name string
	test func(s *suite)
}

// run runs parts in parallel. In a group of their own, they have ended when the group has.
func run(t *testing.T, group string, parts []part, open func(t *testing.T) driver.Store) {
	t.Helper()
	t.Run(group, func(t *testing.T) {
		for _, part := range parts {
			t.Run(part.name, func(t *testing.T) {
				t.Parallel()
				part.test(&suite{T: t, store: open(t)})
			})
		}
	})
}

// bubbles runs parts in fake time.
func bubbles(t *testing.T, parts []part, open func(t *testing.T) driver.Store) {
	t.Helper()
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				part.test(&suite{T: t, store: open(t)})
			})
		})
	}
}

// RunInBubbles is [Run] in fake time: each part of the contract runs in a bubble of
// testing/synctest. It is for a store in memory, which has no network and reads the time
// with [time.Now].
func RunInBubbles(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	bubbles(t, contract, open)
}

// contract lists the parts in the order of the methods of a store.
var contract = []part{
	{"acquire grants a free lock", (*suite).grantsFree},
	{"acquire refuses a held lock, and says what it knows", (*suite).refusesHeld},
	{"acquire is idempotent for its owner", (*suite).repeatedAcquire},
	{"acquire grants one of many", (*suite).oneOfMany},
	{"acquire compares whole owners", (*suite).wholeOwners},
	{"acquire keeps keys apart", (*suite).keysApart},
	{"acquire with an ended context", (*suite).endedContext},
	{"a lease ends", (*suite).leaseEnds},
	{"tokens grow", (*suite).tokensGrow},
	{"a remembered token is never reached again", (*suite).remembersToken},
	{"no token is minted twice after hand-offs under a clock behind", func(s *suite) { s.mintsAbove(driver.InTurn) }},
	{"renew extends", (*suite).renewExtends},
	{"renew never shortens", (*suite).renewNeverShortens},
	{"renew with no TTL only checks", (*suite).renewChecks},
	{"renew reports each lease once", (*suite).renewReportsOnce},
	{"renew says who is not the owner", (*suite).renewNotOwner},
	{"renew says whether others wait", (*suite).renewContended},
	{"release frees the lock for its owner alone", (*suite).releaseFrees},
	{"release needs no living context", (*suite).releaseDetached},
	{"release announces the waiting in order", (*suite).releaseAnnounces},
	{"release enters its own locker at the end", (*suite).releaseReenters},
	{"a grant keeps the rest of the list", (*suite).grantKeepsRest},
	{"watch hears what happened before it began", (*suite).watchLate},
	{"watch ends", (*suite).watchEnds},
	{"a registry lists lockers", (*suite).listsLockers},
}

// suite is one part of the contract on one store.
type suite struct {
	*testing.T
	store  driver.Store
	prefix string
	owners atomic.Int64
}

// key returns a key that no other test uses.
func (s *suite) key(name string) string {
	if s.prefix == "" {
		var random [8]byte
		rand.Read(random[:]) // never fails (crypto/rand, Go 1.24)
		s.prefix = "drivertest/" + hex.EncodeToString(random[:]) + "/"
	}
	return s.prefix + name
}

// owner returns an owner that was never used.
func (s *suite) owner() string {
	return fmt.Sprintf("%s:%d", s.key("owner"), s.owners.Add(1))
}

// try makes one try, which must not fail.
func (s *suite) try(req driver.AcquireRequest) driver.Reply {
	s.Helper()
	if req.TTL == 0 {
		req.TTL = lease
	}
	if req.Late == nil {
		req.Late = func(rep driver.Reply, err error) {
			s.Errorf("Acquire(%q) called Late(%+v, %v), and had not returned ErrPending", req.Key, rep, err)
		}
	}
	before := time.Now()
	rep, err := s.store.Acquire(s.Context(), req)
	if err != nil {
		s.Fatalf("Acquire(%q): %v", req.Key, err)
	}
	if rep.Sent.Before(before) || rep.Sent.After(time.Now()) {
		s.Errorf("Acquire(%q): Reply.Sent is %v, outside of the call that began at %v", req.Key, rep.Sent, before)
	}
	if rep.Ambiguous {
		s.Errorf("Acquire(%q): an answer without an error is called ambiguous", req.Key)
	}
	return rep
}

// grant makes a try that must succeed.
func (s *suite) grant(req driver.AcquireRequest) driver.Reply {
	s.Helper()
	rep := s.try(req)
	if !rep.Granted {
		s.Fatalf("Acquire(%q) by %q is refused: %+v", req.Key, req.Owner, rep)
	}
	if rep.Token <= 0 {
		s.Fatalf("Acquire(%q) by %q: token %d; want one above 0", req.Key, req.Owner, rep.Token)
	}
	return rep
}

// take grants a lock to a new owner.
func (s *suite) take(key string, ttl time.Duration) (owner string, token int64) {
	s.Helper()
	owner = s.owner()
	return owner, s.grant(driver.AcquireRequest{Key: key, Owner: owner, TTL: ttl}).Token
}

// refuse makes a try that must be refused.
func (s *suite) refuse(req driver.AcquireRequest) driver.Reply {
	s.Helper()
	rep, err := s.refused(req)
	if err != nil {
		s.Fatal(err)
	}
	return rep
}

// refused makes a try that must be refused, for prompt.
func (s *suite) refused(req driver.AcquireRequest) (driver.Reply, error) {
	s.Helper()
	rep := s.try(req)
	if rep.Granted {
		return rep, fmt.Errorf("Acquire(%q) by %q is granted although the lock is held", req.Key, req.Owner)
	}
	return rep, nil
}

// prompt makes leases that are short and does something before they end. On a busy
// machine it may take more than one try, each with a key of its own. It returns the last
// key.
func (s *suite) prompt(name string, f func(key string) error) string {
	s.Helper()
	for n, end := 0, time.Now().Add(patience); ; n++ {
		key, begin := s.key(fmt.Sprint(name, n)), time.Now()
		err := f(key)
		if err == nil {
			return key
		}
		if now := time.Now(); now.Before(begin.Add(short)) || now.After(end) {
			s.Fatalf("%v after the begin of a lease of %v: %v", now.Sub(begin), short, err)
		}
	}
}

// release gives a lock up; want is nil or what the error must match.
func (s *suite) release(req driver.ReleaseRequest, want error) (waiting string) {
	s.Helper()
	if req.TTL == 0 {
		req.TTL = lease
	}
	if req.Deadline.IsZero() {
		req.Deadline = time.Now().Add(patience)
	}
	waiting, err := s.store.Release(s.Context(), req)
	if !errors.Is(err, want) || waiting != "" && err != nil {
		s.Fatalf("Release(%q) by %q: waiting %q, %v; want %v", req.Key, req.Owner, waiting, err, want)
	}
	return waiting
}

// renew renews one lease.
func (s *suite) renew(r driver.Renewal) (contended bool, failure error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	calls := 0
	s.store.Renew(ctx, []driver.Renewal{r}, func(i int, c bool, err error) {
		if i != 0 {
			s.Errorf("Renew of one lease reports index %d", i)
		}
		calls++
		contended, failure = c, err
	})
	if calls != 1 {
		s.Fatalf("Renew of one lease called done %d times before it returned", calls)
	}
	return contended, failure
}

// until waits for a condition.
func (s *suite) until(what string, met func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !met(); {
		if time.Now().After(end) {
			s.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
