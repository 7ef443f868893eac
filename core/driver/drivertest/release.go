package drivertest

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

func (s *suite) releaseFrees() {
	key := s.key("released")
	owner, token := s.take(key, lease)
	s.release(driver.ReleaseRequest{Key: key, Owner: s.owner()}, driver.ErrNotOwner)
	s.refuse(driver.AcquireRequest{Key: key, Owner: s.owner()})
	if got := s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil); got != "" {
		s.Errorf("%q wait where none does", got)
	}
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, driver.ErrNotOwner)
	s.take(key, lease)
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, driver.ErrNotOwner)
	s.refuse(driver.AcquireRequest{Key: key, Owner: s.owner()})
}

func (s *suite) releaseDetached() {
	key := s.key("detached")
	owner, token := s.take(key, lease)
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	_, err := s.store.Release(ctx, driver.ReleaseRequest{
		Key: key, Owner: owner, Token: token, TTL: lease, Deadline: time.Now().Add(patience),
	})
	if err != nil {
		s.Fatalf("Release with an ended context: %v", err)
	}
	s.take(key, lease)
}

// watch watches a key and waits until the watch hears the releases of the key,
// for which a store may need some time.
func (s *suite) watch(key string) (heard <-chan driver.Signal, stop func()) {
	s.Helper()
	signals := make(chan driver.Signal, 1000)
	stop = s.store.Watch(key, time.Now(), func(signal driver.Signal) { signals <- signal })
	s.until("the watch hears a release", func() bool {
		owner, token := s.take(key, lease)
		s.refuse(driver.AcquireRequest{Key: key, Owner: s.owner(), Waiter: "probe"})
		s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
		for wait := time.After(200 * time.Millisecond); ; {
			select {
			case signal := <-signals:
				if signal.Next == "probe" {
					return true
				}
			case <-wait:
				return false
			}
		}
	})
	return signals, stop
}

// announced waits for a signal with a list. Empty signals may come at any time.
func (s *suite) announced(signals <-chan driver.Signal, want string) {
	s.Helper()
	for end := time.After(patience); ; {
		select {
		case got := <-signals:
			switch {
			case got == driver.Signal{Next: want}:
				return
			case got.Next == "probe" || got.Next == "": // a late one of watch, or of a store that is not sure
			default:
				s.Fatalf("the release announces %+v; want %q", got, want)
			}
		case <-end:
			s.Fatalf("no release was announced that names %q", want)
		}
	}
}

// wait enters waiters into the list of a held lock.
func (s *suite) wait(key string, waiters ...string) {
	s.Helper()
	for _, waiter := range waiters {
		if rep := s.refuse(driver.AcquireRequest{Key: key, Owner: s.owner(), Waiter: waiter}); !rep.Listed {
			s.Fatalf("%s is not listed", waiter)
		}
	}
}

func (s *suite) releaseAnnounces() {
	key := s.key("announced")
	lists, stop := s.watch(key)
	defer stop()
	owner, token := s.take(key, lease)
	s.wait(key, "w1", "w2", "w1", "w3") // each is listed once
	if got := s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil); got != "w1,w2,w3" {
		s.Errorf("%q wait, want w1 to w3", got)
	}
	s.announced(lists, "w1,w2,w3")
	owner, _ = s.take(key, lease)
	if contended, err := s.renew(driver.Renewal{Key: key, Owner: owner, TTL: lease}); contended || err != nil {
		s.Errorf("the list outlived its lock: contended %v, %v", contended, err)
	}
}

func (s *suite) releaseReenters() {
	key := s.key("reentered")
	lists, stop := s.watch(key)
	defer stop()
	owner, token := s.take(key, lease)
	s.wait(key, "w1", "w2")
	if got := s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token, Waiter: "own"}, nil); got != "w1,w2,own" {
		s.Errorf("%q wait, want w1, w2 and the releasing locker", got)
	}
	s.announced(lists, "w1,w2,own")
	owner, token = s.take(key, lease)
	if got := s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token, Waiter: "own"}, nil); got != "" {
		s.Errorf("%q wait beside the releasing locker", got)
	}
}

func (s *suite) grantKeepsRest() {
	key := s.key("rest")
	lists, stop := s.watch(key)
	defer stop()
	owner := s.owner()
	token := s.grant(driver.AcquireRequest{Key: key, Owner: owner, Rest: "w2,w3"}).Token
	if contended, err := s.renew(driver.Renewal{Key: key, Owner: owner, TTL: lease}); !contended || err != nil {
		s.Errorf("with others in the list that the grant kept: contended %v, %v", contended, err)
	}
	s.wait(key, "w4")
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	s.announced(lists, "w2,w3,w4")
}

func (s *suite) watchLate() {
	key := s.key("late")
	owner, token := s.take(key, lease)
	seen := time.Now()
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	woken := make(chan struct{}, 1000)
	stop := s.store.Watch(key, seen, func(driver.Signal) { woken <- struct{}{} })
	defer stop()
	select {
	case <-woken:
	case <-time.After(patience):
		s.Fatal("a release between the last look and the watch was not announced")
	}
}

func (s *suite) watchEnds() {
	key := s.key("unwatched")
	lists, stop := s.watch(key)
	other, stopOther := s.watch(key)
	defer stopOther()
	stop()
	stop() // harmless
	for len(lists) > 0 {
		<-lists
	}
	owner, token := s.take(key, lease)
	s.wait(key, "w1")
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	s.announced(other, "w1")
	for len(lists) > 0 { // what was on the way when it ended may come
		if signal := <-lists; signal.Next == "w1" {
			s.Error("a watch that has ended heard a later release")
		}
	}
}
