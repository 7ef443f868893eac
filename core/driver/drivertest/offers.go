package drivertest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// RunOffers tests a store that offers a lock which became free to the first locker that waits
// ([driver.Offerer]). It calls open as [Run] does.
func RunOffers(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	run(t, "offers", offers, open)
}

// RunOffersInBubbles is [RunOffers] in fake time, as [RunInBubbles] is [Run].
func RunOffersInBubbles(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	bubbles(t, offers, open)
}

var offers = []part{
	{"a release offers the lock to the first locker", (*suite).offered},
	{"what comes late, again or in another order does nothing to an offer", (*suite).offeredInAnyOrder},
	{"an offer that is not used ends", (*suite).offerEnds},
	{"a request that names the offer gets the lock", (*suite).offerNamed},
	{"nothing is offered under a clock behind", (*suite).offersNothingBehind},
	{"a locker that is not reached is passed over", (*suite).offerToTheDead},
}

// taker is a locker that takes offers.
type taker struct {
	*suite
	id, waits string // its name in lists
	told      chan driver.Offer
	stop      func()
}

// taker makes a locker that is told of offers from now on.
func (s *suite) taker(name string) *taker {
	s.Helper()
	id := strings.NewReplacer(" ", "-", ":", "-").Replace(s.key(name))
	x := &taker{suite: s, id: id, waits: driver.TakingOffers(id + quick), told: make(chan driver.Offer, 1000)}
	ready := make(chan bool, 100)
	x.stop = s.store.(driver.Offerer).Offers(x.id, func(is bool) { ready <- is }, func(o driver.Offer) { x.told <- o }) //nolint:forcetypeassert // the caller says so
	s.Cleanup(x.stop)
	for end := time.After(patience); ; {
		select {
		case is := <-ready:
			if is {
				return x
			}
		case <-end:
			s.Fatal("the store does not reach the locker")
		}
	}
}

// offer makes a lock of a new key that was just offered to the locker, before the others that wait.
func (x *taker) offer(key string, others ...string) (o driver.Offer, owner string, refused driver.Reply) {
	x.Helper()
	holder, token := x.take(key, lease)
	refused = x.try(driver.AcquireRequest{Key: key, Owner: x.owner(), Waiter: x.waits})
	if refused.Granted || refused.Token != token {
		x.Fatalf("a refusal by the holder of token %d: %+v", token, refused)
	}
	x.wait(key, others...)
	x.release(driver.ReleaseRequest{Key: key, Owner: holder, Token: token}, nil)
	for end := time.After(patience); o.Key != key; { // others may be of keys of before
		select {
		case o = <-x.told:
		case <-end:
			x.Fatal("the lock is not offered")
		}
	}
	if o.Token <= token || o.Contended != (len(others) > 0) {
		x.Errorf("offered %+v after token %d", o, token)
	}
	return o, fmt.Sprintf("%s:%d", x.id, o.Token), refused
}

// while calls f, which has to end within the time of an offer, until it does not fail. On a busy
// machine that may take more than one round, each with a key of its own.
func (x *taker) while(name string, f func(key string) error) {
	x.Helper()
	for n, end := 0, time.Now().Add(patience); ; n++ {
		key, begin := x.key(fmt.Sprint(name, n)), time.Now()
		err := f(key)
		if err == nil {
			return
		}
		if now := time.Now(); now.Before(begin.Add(driver.OfferLasts)) || now.After(end) {
			x.Fatalf("%v after the lock was taken: %v", now.Sub(begin), err)
		}
	}
}

// refusedTo returns an error unless tries of another locker, of a caller that does not wait, and
// of the locker itself are refused by an owner.
func (x *taker) refusedTo(key, owner string, token int64) error {
	x.Helper()
	for _, waiter := range []string{"", "w9" + quick, x.waits, strings.ToLower(x.waits)} {
		if rep := x.comes(key, waiter); rep.Granted || rep.Holder != owner || rep.Token != token {
			return fmt.Errorf("%q: %+v; want the owner %q with token %d", waiter, rep, owner, token)
		}
	}
	return nil
}

func (s *suite) offered() {
	x := s.taker("first")
	x.while("offered", func(key string) error {
		signals, stop := s.watch(key)
		defer stop()
		o, owner, _ := x.offer(key, "w2"+long)
		s.announced(signals, x.waits+",w2"+long)
		if err := x.refusedTo(key, owner, o.Token); err != nil {
			return err
		}
		if contended, err := s.renew(driver.Renewal{Key: key, Owner: owner}); err != nil || !contended {
			return fmt.Errorf("a question: %v, %w", contended, err)
		}
		if contended, err := s.renew(driver.Renewal{Key: key, Owner: owner, TTL: lease}); err != nil || !contended {
			return fmt.Errorf("a renewal: %v, %w", contended, err)
		}
		if err := x.refusedTo(key, owner, o.Token); err != nil {
			return err
		}
		waiting := s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: o.Token}, nil)
		if !strings.HasPrefix(waiting, "w2"+long+",") {
			return fmt.Errorf("then %q wait", waiting)
		}
		if rep := s.comes(key, "w2"+long); !rep.Granted || rep.Token <= o.Token {
			return fmt.Errorf("the next: %+v", rep)
		}
		return nil
	})
}

// The requests of an offer's owner, and late ones of its locker, in any order. Until the release
// no other owner gets the lock, and after it none of them does anything.
func (s *suite) offeredInAnyOrder() {
	x := s.taker("any")
	steps := []string{"renew", "renew", "release", "release", "acquire", "decline"}
	orders := map[string][]string{}
	var order func(head, rest []string)
	order = func(head, rest []string) {
		if len(rest) == 0 {
			orders[fmt.Sprint(head)] = append([]string{}, head...)
		}
		for i := range rest {
			order(append(head[:len(head):len(head)], rest[i]), append(append([]string{}, rest[:i]...), rest[i+1:]...))
		}
	}
	order(nil, steps)
	for name, order := range orders {
		x.while(name, func(key string) error { return x.play(key, order) })
	}
}

// play makes the requests of [suite.offeredInAnyOrder] in one order.
func (x *taker) play(key string, order []string) error {
	x.Helper()
	o, owner, _ := x.offer(key)
	released := false
	for _, step := range order {
		var err error
		switch step {
		case "renew":
			_, err = x.renew(driver.Renewal{Key: key, Owner: owner, TTL: lease})
		case "release":
			_, err = x.store.Release(x.Context(), driver.ReleaseRequest{Key: key, Owner: owner, Token: o.Token, TTL: lease})
		case "acquire":
			if rep := x.comes(key, x.waits); rep.Granted && !released {
				return fmt.Errorf("in %v the lock is granted beside the offer", order)
			}
		case "decline":
			x.decline(key, x.waits)
		}
		if own := step == "renew" || step == "release"; own && (err == nil) == released || own && released && !errors.Is(err, driver.ErrNotOwner) {
			return fmt.Errorf("in %v %s: %w", order, step, err)
		}
		if released = released || step == "release"; !released {
			if rep := x.comes(key, x.waits); rep.Granted || rep.Holder != owner {
				return fmt.Errorf("in %v after %s: %+v", order, step, rep)
			}
		}
	}
	return nil
}

func (s *suite) offerEnds() {
	x, key := s.taker("ends"), s.key("offer ends")
	begin := time.Now()
	o, owner, _ := x.offer(key, "w2"+quick)
	s.until("the next locker gets the lock", func() bool { return s.comes(key, "w2"+quick).Granted })
	if took := time.Since(begin); took < driver.OfferLasts {
		s.Errorf("the next locker gets the lock after %v; the offer lasts %v", took, driver.OfferLasts)
	}
	if _, err := s.renew(driver.Renewal{Key: key, Owner: owner, TTL: lease}); !errors.Is(err, driver.ErrNotOwner) {
		s.Errorf("a renewal of the offer: %v", err)
	}
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: o.Token}, driver.ErrNotOwner)
}

func (s *suite) offerNamed() {
	x := s.taker("named")
	x.while("named", func(key string) error {
		o, offered, _ := x.offer(key)
		ask := driver.AcquireRequest{Key: key, Owner: s.owner(), Waiter: x.waits, Offer: o.Token - 1}
		if rep := s.try(ask); rep.Granted {
			return errors.New("another token is named, and the lock granted")
		}
		ask.Offer = o.Token
		other := ask
		other.Waiter = "w9" + quick
		if rep := s.try(other); rep.Granted {
			return errors.New("granted to another locker that names the offer")
		}
		if rep := s.try(ask); !rep.Granted || rep.Token <= o.Token {
			return fmt.Errorf("%+v", rep)
		}
		if _, err := s.renew(driver.Renewal{Key: key, Owner: offered, TTL: lease}); !errors.Is(err, driver.ErrNotOwner) {
			return fmt.Errorf("a renewal of the offer: %w", err)
		}
		return nil
	})
	if _, ok := s.store.(driver.Queuer); !ok {
		return
	}
	x.while("named by the newest caller", func(key string) error {
		o, _, _ := x.offer(key)
		ask := driver.AcquireRequest{Key: key, Owner: s.owner(), Waiter: x.waits, Line: driver.Newest, Offer: o.Token}
		if rep := s.try(ask); !rep.Granted || rep.Token <= o.Token || rep.Number == 0 {
			return fmt.Errorf("to the newest caller: %+v", rep)
		}
		return nil
	})
}

func (s *suite) offerToTheDead() {
	dead, key := s.taker("dead"), s.key("to the dead")
	dead.stop()
	signals, stop := s.watch(key)
	defer stop()
	owner, token := s.take(key, lease)
	s.wait(key, driver.TakingOffers(s.key("never")+long), "w2"+long)
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	s.announced(signals, "w2"+long)
	if rep := s.comes(key, "w2"+long); !rep.Granted {
		s.Errorf("the next is refused: %+v", rep)
	}
}

// An offer does not say how many hand-offs may follow it.
func (s *suite) offersNothingBehind() {
	x, key := s.taker("behind"), s.key("behind")
	owner, token := s.take(key, lease)
	ahead := token + time.Hour.Microseconds() // the clock of a store with such a token was set back
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: ahead, Remember: true}, nil)
	owner, token = s.take(key, lease)
	s.wait(key, x.waits)
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	// It is free for the first locker. What is offered is refused to a request that names no offer.
	if rep := s.grant(driver.AcquireRequest{Key: key, Owner: s.owner(), Waiter: x.waits}); rep.Token <= token {
		s.Errorf("token %d follows %d", rep.Token, token)
	}
}
