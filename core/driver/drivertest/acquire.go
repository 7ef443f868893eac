package drivertest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

func (s *suite) grantsFree() {
	key := s.key("free")
	owner, _ := s.take(key, lease)
	if rep := s.refuse(driver.AcquireRequest{Key: key, Owner: s.owner()}); rep.Holder != "" && rep.Holder != owner {
		s.Errorf("the lock of %q is said to be held by %q", owner, rep.Holder)
	}
}

func (s *suite) refusesHeld() {
	key := s.key("held")
	owner, _ := s.take(key, lease)
	rep := s.refuse(driver.AcquireRequest{Key: key, Owner: s.owner()})
	if rep.Holder != "" && rep.Holder != owner {
		s.Errorf("holder %q; want %q, or empty if the store does not know", rep.Holder, owner)
	}
	if rep.TTL > lease {
		s.Errorf("%v remain of a lease of %v", rep.TTL, lease)
	}
	if rep.Listed {
		s.Error("a try without a waiter is said to be listed")
	}
	if rep := s.refuse(driver.AcquireRequest{Key: key, Owner: s.owner(), Waiter: "w1"}); !rep.Listed {
		s.Error("the first waiter is not listed")
	}
}

func (s *suite) repeatedAcquire() {
	key, owner := s.key("repeated"), s.owner()
	first := s.grant(driver.AcquireRequest{Key: key, Owner: owner})
	again := s.grant(driver.AcquireRequest{Key: key, Owner: owner, TTL: short})
	if again.Token < first.Token {
		s.Errorf("the second try has token %d, the first %d", again.Token, first.Token)
	}
	time.Sleep(2 * short) // past the end that a shortened lease would have
	s.refuse(driver.AcquireRequest{Key: key, Owner: s.owner()})
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: again.Token}, nil)
	if _, next := s.take(key, lease); next <= again.Token { // one release ends what two tries took
		s.Errorf("token %d follows %d", next, again.Token)
	}
}

func (s *suite) oneOfMany() {
	key := s.key("many")
	var granted atomic.Int32
	var all sync.WaitGroup
	start := make(chan struct{})
	for range 32 {
		owner := s.owner()
		all.Go(func() {
			<-start
			rep, err := s.store.Acquire(s.Context(), driver.AcquireRequest{
				Key: key, Owner: owner, TTL: lease, Late: func(driver.Reply, error) {},
			})
			if err != nil {
				s.Errorf("Acquire: %v", err)
			}
			if rep.Granted {
				granted.Add(1)
			}
		})
	}
	close(start)
	all.Wait()
	if n := granted.Load(); n != 1 {
		s.Errorf("%d of 32 owners got the lock at once", n)
	}
}

func (s *suite) wholeOwners() {
	key := s.key("owners")
	owner, _ := s.take(key, lease)
	for name, other := range map[string]string{
		"prefix": owner[:len(owner)-1], "extension": owner + "2", "case": strings.ToUpper(owner), "empty": "",
	} {
		if other == "" || other == owner {
			continue
		}
		s.refuse(driver.AcquireRequest{Key: key, Owner: other})
		s.release(driver.ReleaseRequest{Key: key, Owner: other}, driver.ErrNotOwner)
		if _, err := s.renew(driver.Renewal{Key: key, Owner: other, TTL: lease}); !errors.Is(err, driver.ErrNotOwner) {
			s.Errorf("renewed by a %s of the owner: %v", name, err)
		}
	}
}

func (s *suite) keysApart() {
	keys := []string{
		"k", "k ", "K", "k:fence", "k:free", "{k}", "}k{", "k}", "{", "}", "{}", "k\x00", "\x00", "k\n", "\xff\xfe", "ключ",
		"%7B", "a*b", "[k]", strings.Repeat("x", 400),
	}
	for _, key := range keys {
		s.take(s.key(key), lease)
	}
	for _, key := range keys {
		s.refuse(driver.AcquireRequest{Key: s.key(key), Owner: s.owner()})
	}
}

func (s *suite) endedContext() {
	key := s.key("ended")
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	late := make(chan driver.Reply, 2)
	owner := s.owner()
	rep, err := s.store.Acquire(ctx, driver.AcquireRequest{
		Key: key, Owner: owner, TTL: lease, Late: func(rep driver.Reply, _ error) { late <- rep },
	})
	switch {
	case errors.Is(err, driver.ErrPending):
		select {
		case <-late:
		case <-time.After(patience):
			s.Fatal("Acquire returned ErrPending, and Late was not called")
		}
	case err == nil && !rep.Granted:
		s.Error("a free lock is refused")
	}
	select {
	case <-late:
		s.Error("Late was called although Acquire had returned the outcome, or was called twice")
	case <-time.After(20 * time.Millisecond):
	}
	// However it ended, a release settles it.
	s.until("the lock can be taken after a release of the owner that left", func() bool {
		_, _ = s.store.Release(s.Context(), driver.ReleaseRequest{Key: key, Owner: owner, TTL: lease, Deadline: time.Now().Add(patience)})
		return s.try(driver.AcquireRequest{Key: key, Owner: "settled-by-" + owner}).Granted
	})
}

func (s *suite) leaseEnds() {
	var first int64
	var sent time.Time
	var rep driver.Reply
	key := s.prompt("ends", func(key string) (err error) {
		sent = time.Now()
		_, first = s.take(key, short)
		rep, err = s.refused(driver.AcquireRequest{Key: key, Owner: s.owner()})
		return err
	})
	if rep.TTL > short {
		s.Errorf("%v remain of a lease of %v", rep.TTL, short)
	}
	var second driver.Reply
	other := s.owner()
	s.until("the lock is free after its lease", func() bool {
		second = s.try(driver.AcquireRequest{Key: key, Owner: other})
		return second.Granted
	})
	if held := time.Since(sent); held < short/4 {
		s.Errorf("a lease of %v was over after %v", short, held)
	}
	if second.Token <= first {
		s.Errorf("token %d follows %d", second.Token, first)
	}
}

func (s *suite) tokensGrow() {
	key := s.key("tokens")
	last := int64(0)
	for range 200 {
		owner, token := s.take(key, lease)
		if token <= last {
			s.Fatalf("token %d follows %d", token, last)
		}
		last = token
		s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	}
}

func (s *suite) remembersToken() {
	key := s.key("remembered")
	owner, token := s.take(key, lease)
	handed := token + 1_000 // as after as many hand-offs in the process
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: handed, Remember: true}, nil)
	if _, next := s.take(key, lease); next <= handed {
		s.Errorf("token %d follows %d, which was given out before", next, handed)
	}
}

// The store does not learn of the hand-offs of a holder that dies. Either its clock is ahead of
// them, or the grant has said how many tokens are left to them.
func (s *suite) mintsAbove(line driver.Line) {
	key := s.key("behind")
	owner := s.owner()
	rep := s.grant(driver.AcquireRequest{Key: key, Owner: owner})
	last := rep.Token + rep.Room
	if rep.Room == 0 {
		last += time.Hour.Microseconds() // a store with such a token has a clock that was set back
	}
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: last, Remember: true}, nil)
	for range 3 {
		owner := s.owner()
		rep := s.grant(driver.AcquireRequest{Key: key, Owner: owner, TTL: short, Line: line})
		again, err := s.store.Acquire(s.Context(), driver.AcquireRequest{
			Key: key, Owner: owner, TTL: short, Line: line, Late: func(driver.Reply, error) {},
		})
		if err == nil && again.Granted { // else the lease was over by then
			rep = again
		}
		if rep.Token <= last {
			s.Fatalf("token %d follows %d", rep.Token, last)
		}
		last = rep.Token + rep.Room
		if rep.Room == 0 {
			last += 5 // any number
		}
		s.until("the lease of the holder that died ends", func() bool {
			if free := s.try(driver.AcquireRequest{Key: key, Owner: "x" + owner, TTL: lease}); free.Granted {
				if free.Token <= last {
					s.Fatalf("token %d, after hand-offs from %d to %d (room for %d)", free.Token, rep.Token, last, rep.Room)
				}
				last = free.Token
				s.release(driver.ReleaseRequest{Key: key, Owner: "x" + owner, Token: free.Token}, nil)
				return true
			}
			return false
		})
	}
}
