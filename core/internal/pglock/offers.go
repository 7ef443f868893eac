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

// taker takes the offers to a locker of this process.
type taker struct {
	ready func(bool)
	take  func(driver.Offer)
}

// Offers implements [driver.Turns]. A locker takes offers while announcements are heard. Without a Listener
// there are none.
func (s *Store) Offers(id string, ready func(bool), take func(driver.Offer)) (stop func()) {
	if s.set.Listen == nil {
		return nil
	}
	w := &s.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takers[id] = taker{ready, take}
	ready(w.proof.holds)
	w.begin()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.takers, id)
	}
}

// reaches notes whether announcements reach this process. Called with w.mu held.
func (w *watches) reaches(now bool) {
	if w.proof.holds != now {
		w.proof.holds = now
		for _, t := range w.takers {
			t.ready(now)
		}
	}
}

// mayReach reports whether an offer may reach a locker: it belongs to another process, or takes offers here.
func (w *watches) mayReach(key, id string) bool {
	_, here := w.places.get(placeName(ident.Hash(key), id))
	w.mu.Lock()
	defer w.mu.Unlock()
	return !here || w.takers[id].take != nil
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
func (w *watches) offer(key, id string, o driver.Offer) {
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
func (w *watches) offered(hash, id string, o driver.Offer) (here bool) {
	p, here := w.places.get(placeName(hash, id))
	if !here {
		return false
	}
	w.mu.Lock()
	t := w.takers[id]
	w.mu.Unlock()
	if o.Key = p.key; t.take != nil {
		t.take(o)
		return true
	}
	w.store.background(func() { // the locker is there no more
		_, _ = w.store.Release(context.Background(), driver.ReleaseRequest{ // else the offer ends after a time
			Key: o.Key, Owner: fmt.Sprintf("%s:%d", id, o.Token), Token: o.Token, TTL: driver.OfferLasts,
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
		w.offered(hash, id, driver.Offer{Token: token, Contended: contended})
	}
}

// Notify implements [driver.Turns]. A hint for a locker of another process is an announcement. It
// names the owner, and not the key, which may be secret. Without a Listener hints stay in the process.
func (s *Store) Notify(id string, hear func(key, owner string)) (stop func()) {
	w := &s.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hints[id] = hear
	w.begin()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.hints, id)
	}
}

// want tells the locker of an attentive owner that another locker waits.
func (w *watches) want(key, owner string) {
	if !w.hint(key, owner) && w.store.set.Listen != nil {
		w.store.set.Announce(wantedWord + " " + owner)
	}
}

// hint passes a hint on to the locker of an owner, or to all lockers if there is no owner. It reports
// whether the locker belongs to this process.
func (w *watches) hint(key, owner string) (here bool) {
	id, _ := driver.IsAttentive(owner)
	var all []func(key, owner string)
	w.mu.Lock()
	for other, hear := range w.hints {
		if owner == "" || other == id {
			all = append(all, hear)
		}
	}
	w.mu.Unlock()
	for _, hear := range all {
		hear(key, owner)
	}
	return len(all) > 0
}
