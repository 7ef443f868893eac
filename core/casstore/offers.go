package casstore

import (
	"fmt"
	"strings"

	"github.com/interlock-go/interlock/core/driver"
)

// A release offers the lock to the first locker in line ([driver.Offered]). The call says so, and the locker
// needs nothing else to have the lock: the release is the only transaction on the way of a lock from one
// process to the next. The first renewal makes the locker a holder, so a section that ends before it costs
// no other transaction.

// ahead is how many lockers an offer names that wait after its own. The process that takes it calls these,
// one after the other, without a look at the line.
const ahead = 32

// nextToken is the token of an offer in a transaction that compares the revisions of the lock and of the tick of its
// places: above all tokens of earlier grants, and below all tokens of later grants.
func nextToken(at found) int64 {
	return leastToken + (max(at.lock.Revision.Number, at.tick.Revision.Number)+1)*tokens
}

// offered takes a call with an offer, before the locker is called. It reports false if the locker is not called: it
// is there no more, and the offer is the next one's.
func (s *Store) offered(key string, at Entry, c call) bool {
	id := c.To[0].Name.ID()
	owner := fmt.Sprintf("%s:%d", id, c.Offer)
	found := s.calledWith(key, at, c)
	if _, err := s.open(key, found, s.now()); err != nil {
		s.Warn("an offer of a lock could not be read", err)
		return false
	}
	s.mayHold(key, owner, c.Offer, found)
	if !s.lockers.Call(id, driver.Call{What: driver.Offered, Key: key, Token: c.Offer, Others: c.To[0].Others, Room: tokens - 1}) {
		s.background(func() {
			_, _ = s.release(driver.ReleaseRequest{Key: key, Owner: owner}, true) // else it ends after a time
		})
		return false
	}
	s.lists(key, c.To[0].Name, false)
	return true
}

// mayHold notes an owner that was offered a lock.
func (s *Store) mayHold(key, owner string, token int64, at found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds[owner] != nil {
		return
	}
	h := s.newHold(key, owner, driver.Exclusive, driver.OfferLasts)
	h.at, h.as = at, offerOf(owner, s.process, token)
}

// offerOf is the hold of an owner that was offered a lock, before its first renewal.
func offerOf(owner, process string, token int64) held {
	return held{Owner: owner, Process: process, Lease: driver.OfferLasts.Milliseconds(), Granted: (token - leastToken) / tokens}
}

// lockerOf is the id of the locker that an owner belongs to.
func lockerOf(owner string) string { return owner[:max(0, strings.LastIndexByte(owner, ':'))] }
