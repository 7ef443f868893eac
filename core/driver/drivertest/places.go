package drivertest

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// RunPlaces tests a store that has places: holders that share a lock
// ([driver.Shared], [driver.Permit]). It calls open as [Run] does. A store without
// places answers requests for them with [driver.ErrConfig], and is not tested with it.
func RunPlaces(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	run(t, "places", places, open)
}

// RunPlacesInBubbles is [RunPlaces] in fake time, as [RunInBubbles] is [Run].
func RunPlacesInBubbles(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	bubbles(t, places, open)
}

// places lists the parts of the contract that are about places.
var places = []part{
	{"sharers hold together and keep an exclusive owner out", (*suite).sharersTogether},
	{"an exclusive owner keeps places out", (*suite).exclusiveAlone},
	{"permits are limited, each request by its own number", (*suite).permitsLimited},
	{"permits that one locker asks for at once are limited, each on its own", (*suite).permitsAtOnce},
	{"a bad request for a place is an error", (*suite).badPlace},
	{"a place is idempotent for its owner", (*suite).repeatedPlace},
	{"tokens of places", (*suite).placeTokens},
	{"a place ends by itself, and the others stay", (*suite).placeEnds},
	{"a place that is over is neither renewed nor released", (*suite).placeOver},
	{"a short place does not cut a longer one", (*suite).shortPlace},
	{"renew of a place extends it alone", (*suite).placeRenewed},
	{"renew of a place says whether others wait", (*suite).placeContended},
	{"release of a place frees it for its owner alone", (*suite).placeReleased},
	{"a refusal where places are asks back within a second", (*suite).placeTTL},
	{"the last release names all that wait, places first among them", (*suite).lastReleaseAnnounces},
	{"a release of one of several says how many may come", (*suite).placeAnnounced},
	{"a release enters its own locker as one that wants a place", (*suite).releaseReentersForAPlace},
	{"a locker is in the list once, as what it wants now", (*suite).listedAsWanted},
	{"a grant takes its locker out of the list", (*suite).placeKeepsRest},
	{"an exclusive locker that waits keeps new places out", (*suite).barrierStands},
	{"an exclusive locker keeps none out that was before it", (*suite).barrierOrder},
	{"an exclusive locker that has left keeps none out", (*suite).barrierEnds},
	{"holders that crash leave the list", (*suite).crashedHolders},
}

// place makes a request for a place; atMost zero is a shared one.
func (s *suite) place(key string, atMost int) driver.AcquireRequest {
	req := driver.AcquireRequest{Key: key, Owner: s.owner(), Kind: driver.Shared}
	if atMost > 0 {
		req.Kind, req.AtMost = driver.Permit, atMost
	}
	return req
}

// leave gives a place up; want is nil or what the error must match.
func (s *suite) leave(req driver.AcquireRequest, waiter string, want error) {
	s.Helper()
	s.release(driver.ReleaseRequest{
		Key: req.Key, Owner: req.Owner, Kind: req.Kind, AtMost: req.AtMost, Waiter: waiter,
	}, want)
}

// stays renews a place, and reports whether the store knows it.
func (s *suite) stays(req driver.AcquireRequest, ttl time.Duration) (known, contended bool) {
	s.Helper()
	contended, err := s.renew(driver.Renewal{Key: req.Key, Owner: req.Owner, Kind: req.Kind, TTL: ttl})
	if err != nil && !errors.Is(err, driver.ErrNotOwner) {
		s.Fatalf("renewing a place: %v", err)
	}
	return err == nil, contended
}

// enter makes a request that must be granted, and returns it.
func (s *suite) enter(req driver.AcquireRequest) (driver.AcquireRequest, int64) {
	s.Helper()
	return req, s.grant(req).Token
}

// with names the locker that waits.
func with(waiter string, req driver.AcquireRequest) driver.AcquireRequest {
	req.Waiter = waiter
	return req
}

// exclusive makes a request of a locker that waits for the lock.
func (s *suite) exclusive(key, waiter string, left time.Duration) driver.AcquireRequest {
	return driver.AcquireRequest{Key: key, Owner: s.owner(), Waiter: waiter, Left: left}
}

func (s *suite) sharersTogether() {
	key := s.key("shared")
	var all []driver.AcquireRequest
	var owners []string
	for range 5 {
		req, _ := s.enter(s.place(key, 0))
		all, owners = append(all, req), append(owners, req.Owner)
	}
	rep := s.refuse(s.exclusive(key, "", 0))
	for holder := range strings.SplitSeq(rep.Holder, ",") {
		if holder != "" && !slices.Contains(owners, holder) {
			s.Errorf("holder %q; the holders are %q", holder, owners)
		}
	}
	for _, req := range all[1:] {
		s.leave(req, "", nil)
		s.refuse(s.exclusive(key, "", 0))
	}
	s.leave(all[0], "", nil)
	s.take(key, lease)
}

func (s *suite) exclusiveAlone() {
	key := s.key("alone")
	owner, token := s.take(key, lease)
	for _, atMost := range []int{0, 1, 10} {
		if rep := s.refuse(s.place(key, atMost)); rep.Full || rep.Holder != "" && rep.Holder != owner {
			s.Errorf("refused by an exclusive holder: %+v", rep)
		}
	}
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	s.enter(s.place(key, 1))
}

func (s *suite) permitsLimited() {
	key := s.key("limited")
	first, _ := s.enter(s.place(key, 3))
	s.enter(s.place(key, 3))
	if rep := s.refuse(s.place(key, 2)); !rep.Full {
		s.Errorf("two places of two: %+v", rep)
	}
	s.enter(s.place(key, 3))
	if rep := s.refuse(s.place(key, 3)); !rep.Full {
		s.Errorf("three places of three: %+v", rep)
	}
	s.enter(s.place(key, 4))
	s.leave(first, "", nil)
	if rep := s.refuse(s.place(key, 3)); !rep.Full {
		s.Errorf("three places of three: %+v", rep)
	}
	s.enter(s.place(key, 4))
}

func (s *suite) permitsAtOnce() {
	key := s.key("at once")
	const callers, atMost = 40, 25
	reqs, reps := make([]driver.AcquireRequest, callers), make([]driver.Reply, callers)
	var all sync.WaitGroup
	for i := range callers {
		reqs[i] = with("w1", s.place(key, atMost))
		all.Go(func() {
			req := reqs[i]
			req.TTL, req.Deadline, req.Late = lease, time.Now().Add(patience), func(driver.Reply, error) {}
			var err error
			if reps[i], err = s.store.Acquire(s.Context(), req); err != nil {
				s.Errorf("Acquire(%q) beside others: %v", key, err)
			}
		})
	}
	all.Wait()
	var tokens []int64
	for i, rep := range reps {
		switch {
		case rep.Granted:
			tokens = append(tokens, rep.Token)
			s.leave(reqs[i], "", nil)
		case !rep.Full:
			s.Errorf("refused beside others: %+v", rep)
		}
	}
	if len(tokens) != atMost {
		s.Errorf("%d of %d are granted, want %d", len(tokens), callers, atMost)
	}
	slices.Sort(tokens)
	for i := 1; i < len(tokens); i++ {
		if tokens[i]-tokens[i-1] < driver.Tokens {
			s.Errorf("two grants have tokens in common: %d and %d", tokens[i-1], tokens[i])
		}
	}
	s.take(key, lease)
}

func (s *suite) badPlace() {
	for name, req := range map[string]driver.AcquireRequest{
		"a permit of none":   {Kind: driver.Permit},
		"less than none":     {Kind: driver.Permit, AtMost: -1},
		"a kind that is new": {Kind: driver.Permit + 1},
	} {
		req.Key, req.Owner, req.TTL = s.key("bad"), s.owner(), lease
		if rep, err := s.store.Acquire(s.Context(), req); !errors.Is(err, driver.ErrConfig) {
			s.Errorf("%s: %+v, %v; want ErrConfig", name, rep, err)
		}
	}
}

func (s *suite) repeatedPlace() {
	key := s.key("repeated place")
	for _, atMost := range []int{0, 1} {
		req, token := s.enter(s.place(key, atMost))
		again := req
		again.TTL = 50 * time.Millisecond
		if second := s.grant(again).Token; second != token {
			s.Errorf("the second try has token %d, the first %d", second, token)
		}
		time.Sleep(100 * time.Millisecond) // past the end that a shortened lease would have
		if known, _ := s.stays(req, 0); !known {
			s.Error("a repeated request has shortened the lease")
		}
		s.leave(req, "", nil) // one release ends what two tries took
		s.leave(req, "", driver.ErrNotOwner)
	}
	s.take(key, lease)
}

func (s *suite) placeTokens() {
	key := s.key("place tokens")
	last := int64(0)
	for range 30 {
		owner, token := s.take(key, lease)
		if token <= last {
			s.Fatalf("an exclusive token %d follows %d", token, last)
		}
		last = token
		s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
		var all []driver.AcquireRequest
		for _, atMost := range []int{0, 10, 10, 0, 10} {
			req, token := s.enter(s.place(key, atMost))
			if token <= last {
				s.Fatalf("token %d follows %d", token, last)
			}
			if last = token; atMost > 0 {
				last += driver.Tokens - 1
			}
			all = append(all, req)
		}
		for i, req := range all {
			s.release(driver.ReleaseRequest{
				Key: key, Owner: req.Owner, Kind: req.Kind, AtMost: req.AtMost, Token: 1 + last*int64(i%2), Remember: true,
			}, nil)
		}
		last++ // the second and fourth release told it
	}
}

func (s *suite) placeEnds() {
	var stays driver.AcquireRequest
	key := s.prompt("place ends", func(key string) error {
		stays, _ = s.enter(s.place(key, 2))
		crashed := s.place(key, 2)
		crashed.TTL = short
		s.enter(crashed)
		_, err := s.refused(s.place(key, 2))
		return err
	})
	next := s.place(key, 2)
	s.until("a place is free after its lease", func() bool { return s.try(next).Granted })
	if known, _ := s.stays(stays, 0); !known {
		s.Error("another place has ended, too")
	}
	s.refuse(s.place(key, 2)) // one has ended, and one is free no longer
}

func (s *suite) placeOver() {
	key := s.key("place over")
	req := s.place(key, 2)
	req.TTL = short
	_, first := s.enter(req)
	others := []driver.AcquireRequest{s.place(key, 2), s.place(key, 2)}
	s.enter(others[0])
	s.until("a place is free after its lease", func() bool { return s.try(others[1]).Granted })
	for _, ttl := range []time.Duration{0, lease} {
		if known, _ := s.stays(req, ttl); known {
			s.Errorf("a place that is over is renewed for %v", ttl)
		}
	}
	s.leave(req, "", driver.ErrNotOwner)
	if rep := s.refuse(s.place(key, 2)); !rep.Full { // the release has freed none
		s.Errorf("two places of two: %+v", rep)
	}
	s.leave(others[0], "", nil)
	if again := s.grant(req); again.Token <= first { // a late request is a new one
		s.Errorf("token %d follows %d", again.Token, first)
	}
}

func (s *suite) shortPlace() {
	key := s.key("short place")
	long, _ := s.enter(s.place(key, 0))
	brief := s.place(key, 0)
	brief.TTL = short / 4
	s.enter(brief)
	s.until("the short place ends", func() bool { known, _ := s.stays(brief, 0); return !known })
	time.Sleep(short)
	if known, _ := s.stays(long, 0); !known {
		s.Error("the longer place has ended with the shorter")
	}
	s.refuse(s.exclusive(key, "", 0))
}

func (s *suite) placeRenewed() {
	var reqs []driver.AcquireRequest
	s.prompt("place renewed", func(key string) error {
		reqs = []driver.AcquireRequest{s.place(key, 0), s.place(key, 0)}
		for i := range reqs {
			reqs[i].TTL = short
			s.enter(reqs[i])
		}
		if known, _ := s.stays(reqs[0], lease); !known {
			return errors.New("a live place is not renewed")
		}
		return nil
	})
	if known, _ := s.stays(reqs[0], 10*time.Millisecond); !known {
		s.Error("a live place is not renewed")
	}
	s.until("the other place ends", func() bool { known, _ := s.stays(reqs[1], 0); return !known })
	if known, _ := s.stays(reqs[0], 0); !known {
		s.Error("a renewal was forgotten, or has shortened the lease")
	}
}

func (s *suite) placeContended() {
	key := s.key("place contended")
	req, _ := s.enter(s.place(key, 1))
	if _, contended := s.stays(req, lease); contended {
		s.Error("contended without waiters")
	}
	if rep := s.refuse(with("w1", s.place(key, 1))); !rep.Listed {
		s.Errorf("not listed: %+v", rep)
	}
	if _, contended := s.stays(req, 0); !contended {
		s.Error("not contended with a waiter")
	}
}

func (s *suite) placeReleased() {
	key := s.key("place released")
	req, _ := s.enter(s.place(key, 1))
	other := s.place(key, 1)
	s.leave(other, "", driver.ErrNotOwner)
	s.refuse(other)
	s.leave(req, "", nil)
	s.leave(req, "", driver.ErrNotOwner)
	s.enter(other)
	s.leave(req, "", driver.ErrNotOwner)
	s.refuse(s.place(key, 1))
}

func (s *suite) placeTTL() {
	key := s.key("place ttl")
	s.enter(s.place(key, 1))
	for name, rep := range map[string]driver.Reply{
		"exclusive": s.refuse(s.exclusive(key, "w1", lease)), "permit": s.refuse(s.place(key, 1)), "shared": s.refuse(s.place(key, 0)),
	} {
		if rep.TTL <= 0 || rep.TTL > time.Second {
			s.Errorf("%s: asks back after %v", name, rep.TTL)
		}
	}
}
