package drivertest

import (
	"strings"

	"github.com/interlock-go/interlock/core/driver"
)

// take makes a request that must be granted.
func (s *stage) take(req driver.AcquireRequest) driver.Reply {
	s.Helper()
	req.TTL, req.Deadline, req.Late = lease, soon(), func(driver.Reply, error) {}
	rep, err := s.store.Acquire(s.Context(), req)
	s.done(err)
	if !rep.Granted {
		s.Fatalf("the answer to %s is %s; expected is a grant", req.Owner, shown(rep))
	}
	return rep
}

// views returns the result of Look for a key, which List must have as well if it is not free.
func (s *stage) views(key string) driver.View {
	s.Helper()
	lister := s.store.(driver.Lister)
	v, err := lister.Look(s.Context(), key)
	s.done(err)
	var found []driver.View
	for one, err := range lister.List(s.Context(), key[:len(key)-1], nil) { // a beginning of no other test's key
		s.done(err)
		if !strings.HasPrefix(one.Key, key[:len(key)-1]) || one.Free() {
			s.Errorf("List of %q has %+v", key[:len(key)-1], one)
		}
		if one.Key == key {
			found = append(found, one)
		}
	}
	switch {
	case v.Key != key:
		s.Errorf("Look returns the key %q; expected is %q", v.Key, key)
	case len(found) == 0 && !v.Free():
		s.Errorf("List does not return the lock: %+v", v)
	case len(found) > 0 && (len(found[0].Holders) != len(v.Holders) || found[0].Waiting != v.Waiting):
		s.Errorf("List returns %+v, and Look %+v", found[0], v)
	}
	return v
}

// listed tests what an operator sees of an exclusive lock, until it is released for another
// locker.
func (s *stage) listed() {
	key, owner := s.key(`k/%_\`), s.owner("a:1")
	if v := s.views(key); !v.Free() || v.Waiting != "" {
		s.Errorf("a key that was never locked: %+v", v)
	}
	rep := s.take(driver.AcquireRequest{Key: key, Owner: owner})
	s.done(s.must(false, key, s.owner("w:1"), driver.Waiter(s.id("w"))))
	v := s.views(key)
	if len(v.Holders) != 1 || v.Holders[0].Owner != owner || v.Holders[0].Token != rep.Token || v.Holders[0].Place ||
		v.Holders[0].Left <= 0 || v.Holders[0].Left > lease || string(v.Waiting) != s.id("w") || v.Token < rep.Token {
		s.Errorf("a held lock: %+v; expected are the holder %s with the token %d, and the waiting locker %s", v, owner, rep.Token, s.id("w"))
	}
	_, err := s.store.Release(s.Context(), driver.ReleaseRequest{Key: key, Owner: owner, Token: rep.Token, TTL: lease, Deadline: soon()})
	s.done(err)
	if v = s.views(key); len(v.Holders) > 0 {
		s.Errorf("a released lock: %+v; expected is no holder", v)
	}
}

func (s *stage) listedPlaces() {
	key := s.key("k")
	for _, name := range []string{"a:1", "b:1"} {
		s.take(driver.AcquireRequest{Key: key, Owner: s.owner(name), Kind: driver.Shared})
	}
	v := s.views(key)
	if len(v.Holders) != 2 || !v.Holders[0].Place || !v.Holders[1].Place || v.Holders[0].Owner == v.Holders[1].Owner {
		s.Errorf("two shared holders: %+v", v)
	}
}
