package pglock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/ident"
)

// Calls implements [driver.Store]. A locker takes offers while announcements are heard. Without a Listener
// there are none, and hints stay in the process.
func (s *Store) Calls(id string, hear func(driver.Call)) (stop func()) {
	w := &s.watches
	w.mu.Lock()
	w.callers[id] = hear
	reached := w.proof.holds
	w.begin()
	w.mu.Unlock()
	if reached {
		hear(driver.Call{Reached: true})
	}
	end := s.waits.Calls(id, hear)
	return func() {
		w.mu.Lock()
		delete(w.callers, id)
		w.mu.Unlock()
		end()
	}
}

// Serves implements [driver.Limited].
func (s *Store) Serves(h driver.Hold) error {
	if h.Offered && s.set.Listen == nil {
		return fmt.Errorf("%w: without a Listener no lock is offered", driver.ErrConfig)
	}
	return nil
}

// reaches notes whether announcements reach this process. Called with w.mu held.
func (w *watches) reaches(now bool) {
	if w.proof.holds != now {
		w.proof.holds = now
		w.missed()
	}
}

// missed tells the lockers of this process that calls may have been lost. Called with w.mu held.
func (w *watches) missed() {
	c := driver.Call{Reached: w.proof.holds}
	for _, hear := range w.callers {
		w.told = append(w.told, func() { hear(c) })
	}
}

// mayReach reports whether an offer may reach a locker: it belongs to another process, or takes offers here.
func (w *watches) mayReach(key, id string) bool {
	_, here := w.places.get(placeName(ident.Hash(key), id))
	w.mu.Lock()
	defer w.mu.Unlock()
	return !here || w.callers[id] != nil
}

// offers sees to it that a release offers the lock only to a locker that is reached: this store announces, and
// the locker has asked lately. Another one is called, as a locker that takes no offers.
func (s *Store) offers(rec *keystate.Record, at moment) {
	var list []driver.Waiter
	changes := false
	for w := range rec.Waiting().All() {
		if w.TakesOffers() && (s.set.Listen == nil || at.stale(w.ID())) {
			w, changes = w.LeavingOffers(), true
		}
		list = append(list, w)
	}
	if changes {
		rec.SetWaiting(driver.List(list...))
	}
}

// offeredTo reports whether a refusal shows a locker its own offer. It takes the offer then, so the offer has to be on the disk
// and on the standby: if the wait of a release for these was cancelled, nothing was announced.
func offeredTo(rec *keystate.Record, w driver.Waiter, rep driver.Reply, now time.Time) bool {
	owner, token := rec.Offered(now)
	return owner != "" && owner == rep.Holder && owner == fmt.Sprintf("%s:%d", w.ID(), token)
}

// offer offers a lock to a locker: of this process, or else by an announcement. It has the name of the key as a
// hash: the process of the locker knows the key.
func (w *watches) offer(key, id string, o keystate.Offer) {
	hash := ident.Hash(key)
	if w.offered(hash, id, o) {
		return
	}
	contended := ""
	if o.Contended {
		contended = "+"
	}
	w.store.set.Announce(offerWord + " " + hash + " " + id + " " + strconv.FormatInt(o.Token, 10) + contended)
}

// offered takes an offer. It reports whether the locker belongs to this process.
func (w *watches) offered(hash, id string, o keystate.Offer) (here bool) {
	p, here := w.places.get(placeName(hash, id))
	if !here {
		return false
	}
	w.mu.Lock()
	hear := w.callers[id]
	w.mu.Unlock()
	if hear != nil {
		hear(driver.Call{What: driver.Offered, Key: p.key, Token: o.Token, Others: o.Contended})
		return true
	}
	w.store.background(func() { // the locker is there no more
		_, _ = w.store.Release(context.Background(), driver.ReleaseRequest{ // else the offer ends after a time
			Key: p.key, Owner: fmt.Sprintf("%s:%d", id, o.Token), Token: o.Token, TTL: driver.OfferLasts,
			Deadline: time.Now().Add(w.store.set.Timeout),
		})
	})
	return true
}

// heardOffer takes the announcement of an offer.
func (w *watches) heardOffer(text string) {
	hash, text, _ := strings.Cut(text, " ")
	id, number, _ := strings.Cut(text, " ")
	number, contended := strings.CutSuffix(number, "+")
	if token, err := strconv.ParseInt(number, 10, 64); err == nil && token > 0 {
		w.offered(hash, id, keystate.Offer{Token: token, Contended: contended})
	}
}

// want tells the locker of an attentive owner that another locker waits.
func (w *watches) want(key, owner string) {
	if !w.hint(key, owner) && w.store.set.Listen != nil {
		w.store.set.Announce(wantedWord + " " + owner)
	}
}

// hint passes a hint on to the locker of an owner. A hint for a locker of another process is an announcement, and
// names the owner, not the key, which may be secret. It reports whether the locker belongs to this process.
func (w *watches) hint(key, owner string) (here bool) {
	id, _ := driver.IsAttentive(owner)
	w.mu.Lock()
	hear := w.callers[id]
	w.mu.Unlock()
	switch {
	case hear == nil:
		return false
	case owner == driver.Attentive(id+":0"):
		hear(driver.Call{What: driver.Displaced, Key: key})
	default:
		hear(driver.Call{What: driver.Wanted, Key: key, Owner: owner})
	}
	return true
}
