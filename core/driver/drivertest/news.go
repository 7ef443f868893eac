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

// subscribe has the store call the locker of an actor.
func (s *stage) subscribe(actor string) {
	news := map[driver.News]chan driver.Call{}
	for what := driver.Unsure; what <= driver.Displaced; what++ {
		news[what] = make(chan driver.Call, 1000)
	}
	s.news[actor] = news
	s.stops[actor] = s.store.Calls(s.id(actor), func(c driver.Call) { news[c.What] <- c })
}

// next waits for a call until an instant.
func next[T any](news <-chan T, end time.Time) (c T, err error) {
	most := time.Until(end)
	select {
	case c = <-news:
		return c, nil
	case <-time.After(most):
		return c, fmt.Errorf("no call came within %v", most)
	}
}

// listens has the store call the locker of an actor, and waits until the store reaches the locker, unless the
// locker listens late.
func (s *stage) listens(p *step) error {
	if s.subscribe(p.actor); p.asks.has("late") {
		return nil
	}
	key, id, turns := s.key("first of "+p.actor), s.id(p.actor), s.news[p.actor][driver.Turn]
	return s.until(func() error {
		owner, err := s.contend(key, s.prefix+"prober", driver.Waiter(id))
		if err == nil {
			_, err = s.store.Release(s.Context(), driver.ReleaseRequest{Key: key, Owner: owner, TTL: lease, Deadline: soon()})
		}
		for end := time.Now().Add(200 * time.Millisecond); err == nil; {
			var c driver.Call
			if c, err = next(turns, end); err == nil && c.Key == key {
				return nil
			}
		}
		return fmt.Errorf("the store does not reach the locker: %w", err)
	})
}

// hears waits for the call of a locker's turn, or for any call. A store may call a locker only when its turn has
// come.
func (s *stage) hears(p *step) error {
	key, news := s.key(p.key), s.news[p.actor][driver.Turn]
	if p.wants.has("anything") {
		select {
		case <-news:
		case <-s.news[p.actor][driver.Unsure]:
		case <-time.After(time.Until(s.end())):
			return errors.New("no call came")
		}
		return nil
	}
	for !p.wants.has("nothing") || len(news) > 0 {
		c, err := next(news, s.end())
		switch {
		case err != nil:
			return err
		case c.Key != key:
			continue // of the probe
		case p.wants.has("nothing"), p.wants.has("others") && !c.Others, p.wants.has("alone") && c.Others:
			return fmt.Errorf("the call is in=%v others=%v", c.In, c.Others)
		}
		for _, w := range p.wants {
			if w.name == "in" && err == nil {
				err = compare(w, c.In, w.d)
			}
		}
		return err
	}
	return nil
}

// hint is what a call tells that something happened to the lock of a key, for the locker of an owner.
type hint struct{ key, owner string }

// learns compares all hints until now with the expected ones. The servers of a store may send them in
// another order.
func (s *stage) learns(p *step) error {
	want, listens := []hint{}, s.stops[p.actor] != nil
	for owner := range strings.SplitSeq(p.wants.get("owners").value, ",") {
		if owner != "" {
			want = append(want, hint{s.key(p.key), s.owner(owner)})
		}
	}
	displaced := 0
	if p.wants.has("displaced") {
		displaced = 1
	}
	if listens { // a hint about one more lock comes after all others
		key := s.key(fmt.Sprint("last of ", p.actor, s.asides))
		owner, err := s.contend(key, s.id(p.actor), "w1")
		if err != nil {
			return err
		}
		want = append(want, hint{key, owner})
	}
	news := s.news[p.actor][driver.Wanted]
	for len(want) > 0 || len(news) > 0 && !listens {
		c, err := next(news, s.end())
		got := hint{c.Key, c.Owner}
		i := slices.IndexFunc(want, func(h hint) bool { return h.owner == got.owner && (h.key == got.key || got.key == "") })
		switch {
		case err != nil:
			return fmt.Errorf("%w; expected is %q", err, want)
		case i >= 0:
			want = slices.Delete(want, i, i+1)
		default:
			return fmt.Errorf("the locker learns %q; expected is %q", got, want)
		}
	}
	for range displaced {
		if c, err := next(s.news[p.actor][driver.Displaced], s.end()); err != nil || c.Key != "" && c.Key != s.key(p.key) {
			return fmt.Errorf("the locker learns of a newer caller: %+v, %w", c, err)
		}
	}
	if n := len(s.news[p.actor][driver.Displaced]); n > 0 {
		return fmt.Errorf("the locker learns %d times more of a newer caller", n)
	}
	return nil
}

// takes has the store call the locker of an actor, and waits until the locker may say that it takes offers.
func (s *stage) takes(p *step) error {
	s.subscribe(p.actor)
	for {
		if c, err := next(s.news[p.actor][driver.Unsure], s.end()); c.Reached || err != nil {
			return err
		}
	}
}

// gets waits for the offer of a key. Its owner is the actor with ":offer" after the name.
func (s *stage) gets(p *step) error {
	c, err := next(s.news[p.actor][driver.Offered], s.end())
	if err != nil {
		return err
	}
	if c.Key != s.key(p.key) || c.Others != p.wants.has("contended") {
		return fmt.Errorf("the offer is %+v", c)
	}
	rep := driver.Reply{Token: c.Token}
	s.offered[p.actor], s.answers[p.key+" "+p.actor+":offer"] = rep.Token, rep
	return s.compares(p, rep)
}

// halts ends the news for an actor. A second call of stop is harmless.
func (s *stage) halts(p *step) error {
	s.stops[p.actor]()
	s.stops[p.actor]()
	delete(s.stops, p.actor)
	for _, news := range s.news[p.actor] {
		for len(news) > 0 {
			<-news
		}
	}
	return nil
}
