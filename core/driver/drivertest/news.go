package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// must makes a try with a known outcome.
func (s *stage) must(granted bool, key, owner string, waiter driver.Waiter) error {
	rep, err := s.try(driver.AcquireRequest{Key: key, Owner: owner, TTL: lease, Waiter: waiter})
	if err == nil && rep.Granted != granted {
		err = fmt.Errorf("Acquire(%q) by %q answers %s; expected is granted: %v", key, owner, shown(rep), granted)
	}
	return err
}

// contend has a new owner of the locker take a lock, and then another locker wait for it.
func (s *stage) contend(key, id string, waiter driver.Waiter) (owner string, err error) {
	s.asides++
	owner = driver.Attentive(fmt.Sprintf("%s:9%03d", id, s.asides))
	if err = s.must(true, key, owner, ""); err == nil {
		err = s.must(false, key, s.owner("other"), waiter)
	}
	return owner, err
}

// follow gives an actor a channel for the news that begin sends until stop is called.
func (s *stage) follow(actor string, begin func(news chan any) (stop func())) (news chan any) {
	news = make(chan any, 1000)
	s.news[actor], s.stops[actor] = news, begin(news)
	return news
}

// next waits for news until an instant.
func next(news <-chan any, end time.Time) (one any, err error) {
	most := time.Until(end)
	select {
	case one = <-news:
		return one, nil
	case <-time.After(most):
		return nil, fmt.Errorf("no news came within %v", most)
	}
}

// probe is a locker that waits in line after the locker of a watch that begins.
const probe = "probe"

// watches begins a watch of a locker, and waits until it reports releases of the key: a store may need
// some time to begin. A late watch asks for all releases since the noted time.
func (s *stage) watches(p *step) error {
	key, late, id := s.key(p.key), p.asks.has("late"), s.id(p.asks.get("as").value)
	since := map[bool]time.Time{true: s.noted, false: time.Now()}[late]
	s.lockers[p.actor] = id
	news := s.follow(p.actor, func(news chan any) func() {
		return s.store.Watch(id, key, since, func(signal driver.Signal) { news <- signal })
	})
	if late {
		return nil
	}
	return s.until(func() error {
		owner, err := s.contend(key, s.prefix+"prober", driver.Waiter(id))
		if err != nil {
			return err
		}
		if err = s.must(false, key, s.owner("others"), probe); err != nil {
			return err
		}
		_, err = s.store.Release(s.Context(), driver.ReleaseRequest{Key: key, Owner: owner, TTL: lease, Deadline: soon()})
		for one, end := any(nil), time.Now().Add(200*time.Millisecond); err == nil && !probes(one, id); {
			one, err = next(news, end)
		}
		return err
	})
}

// hears waits for a signal with a list that begins as expected: a store that calls lockers by name names
// these, and another store all. Empty signals of a store that is not sure, signals to other
// lockers, and late signals of the probe, do not count.
func (s *stage) hears(p *step) error {
	news, want := s.news[p.actor], driver.Signal{Next: s.list(p.wants.get("list")), Now: p.wants.get("now").n}
	for !p.wants.has("nothing") || len(news) > 0 || news == nil {
		one, err := next(news, s.end())
		got, _ := one.(driver.Signal)
		switch {
		case err != nil || p.wants.has("anything") || got.Now == want.Now && begins(got.Next, want.Next, s.lockers[p.actor]):
			return err
		case got.Called().Calls(s.lockers[p.actor]) && got.Next != "" && !probes(got, s.lockers[p.actor]):
			return fmt.Errorf("the watch reports list=%s now=%d", got.Next, got.Now)
		}
	}
	return nil
}

// begins reports whether a list, as a store sends it to a locker, begins with another list, which must not be empty.
func begins(list, with driver.Waiters, id string) bool {
	return with != "" && strings.HasPrefix(string(list)+",", string(with)+",") || with != "" && strings.HasPrefix(string(list)+",", string(with.For(id))+",")
}

// probes reports whether news are the signal of a probe to the locker with the id.
func probes(news any, id string) bool {
	signal, _ := news.(driver.Signal)
	return begins(signal.Next, driver.List(driver.Waiter(id), probe), id)
}

// hint is the news that something happened to the lock of a key, for the locker of an owner.
type hint struct{ key, owner string }

// listens subscribes the locker of an actor to hints about its locks, and waits until the store
// reaches the locker.
func (s *stage) listens(p *step) error {
	news := s.follow(p.actor, func(news chan any) func() {
		return s.store.(driver.Turns).Notify(s.id(p.actor), func(key, owner string) { news <- hint{key, owner} })
	})
	key := s.key("first of " + p.actor)
	if _, err := s.contend(key, s.id(p.actor), "w1"); err != nil {
		return err
	}
	return s.until(func() error {
		for len(news) > 0 {
			if one := <-news; one != (hint{}) { // an empty hint only says that hints may be lost
				return nil
			}
		}
		return errors.Join(errors.New("the store does not reach the locker"), s.must(false, key, s.owner("other"), "w1"))
	})
}

// learns compares all hints until now with the expected ones. The servers of a store may send them in
// another order.
func (s *stage) learns(p *step) error {
	news, want, listens := s.news[p.actor], []hint{}, s.stops[p.actor] != nil
	for owner := range strings.SplitSeq(p.wants.get("owners").value, ",") {
		if owner != "" {
			want = append(want, hint{s.key(p.key), s.owner(owner)})
		}
	}
	if listens { // a hint about one more lock comes after all others
		key := s.key(fmt.Sprint("last of ", p.actor, s.asides))
		owner, err := s.contend(key, s.id(p.actor), "w1")
		if err != nil {
			return err
		}
		want = append(want, hint{key, owner})
	}
	for len(want) > 0 || len(news) > 0 && !listens || news == nil {
		one, err := next(news, s.end())
		got, _ := one.(hint)
		i := slices.Index(want, got)
		switch {
		case err != nil:
			return fmt.Errorf("%w; expected is %q", err, want)
		case i >= 0:
			want = slices.Delete(want, i, i+1)
		case got.key != "" && got.key != s.key("first of "+p.actor):
			return fmt.Errorf("the locker learns %q; expected is %q", got, want)
		}
	}
	return nil
}

// takes subscribes the locker of an actor to offers, and waits until the store reaches the locker.
func (s *stage) takes(p *step) error {
	ready := make(chan any, 100)
	s.follow(p.actor, func(news chan any) func() {
		return s.store.(driver.Turns).Offers(s.id(p.actor), func(is bool) { ready <- is }, func(o driver.Offer) { news <- o })
	})
	for {
		if is, err := next(ready, s.end()); is == true || err != nil {
			return err
		}
	}
}

// gets waits for the offer of a key. Its owner is the actor with ":offer" after the name.
func (s *stage) gets(p *step) error {
	one, err := next(s.news[p.actor], s.end())
	if err != nil {
		return err
	}
	if o, _ := one.(driver.Offer); o.Key != s.key(p.key) || o.Contended != p.wants.has("contended") {
		return fmt.Errorf("the offer is %+v", o)
	}
	rep := driver.Reply{Token: one.(driver.Offer).Token}
	s.offered[p.actor], s.answers[p.key+" "+p.actor+":offer"] = rep.Token, rep
	return s.compares(p, rep)
}

// halts ends the news for an actor. A second call of stop is harmless.
func (s *stage) halts(p *step) error {
	s.stops[p.actor]()
	s.stops[p.actor]()
	delete(s.stops, p.actor)
	for len(s.news[p.actor]) > 0 {
		<-s.news[p.actor]
	}
	return nil
}
