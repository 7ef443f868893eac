package pglock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/host"
	"github.com/interlock-go/interlock/core/internal/ident"
)

const (
	// lookSoonest and lookLatest bound the pauses between two looks at a lock for which a
	// locker of this process waits. Each is a quarter of the time for which nothing has
	// happened: what took long may be noticed late. A locker that is not among the first two of the
	// list looks less often, as its turn comes later.
	lookSoonest = 20 * time.Millisecond
	lookLatest  = 200 * time.Millisecond
	// heardSoonest and heardLatest are the same where calls are heard: only for a
	// message that was lost.
	heardSoonest = time.Second
	heardLatest  = 2 * time.Second
)

// calls calls the lockers of this process that wait for locks. A release writes the calls that it makes into the row of the
// lock, with a number that no other release has. Calls of this store reach its lockers directly. Calls of other processes are
// heard ([Listener]), or seen by a look (poll.go): a locker has missed a call if the row has another number than the locker
// knows. So nothing is lost over a failure, and no clock is compared.
type calls struct {
	store   *Store
	id      string // of the store, in its announcements
	lockers host.Lockers
	sooner  chan struct{}  // holds a token if a look is due earlier than the poller thinks
	keys    recent[string] // that lockers of this process have waited for, by placeName
	telling sync.Mutex     // a call to all lockers is under way

	mu      sync.Mutex
	waits   map[string]*wait // by placeName
	looking bool             // the poller is at work
	started bool             // so is the listener
	proof   proof
}

// wait is a locker of this process in the list of a lock.
type wait struct {
	key, id string

	called  int64     // the number of the last call that it knows
	passed  int64     // the end of the last lease that it knows to have passed
	missing bool      // it knows that there is no row
	ahead   int       // so many lockers stand before it in the list
	quiet   time.Time // since when nothing has happened
	due     time.Time // when to look again
}

func (w *calls) init(s *Store) {
	w.store, w.id, w.sooner = s, ident.New(), make(chan struct{}, 1)
	w.waits = make(map[string]*wait)
}

// placeName names the place of a locker in a list: announcements have the hash of a key, which may be secret, and long.
func placeName(hash, id string) string { return hash + " " + id }

// Calls implements [driver.Store]. A locker takes offers while announcements are heard. Without a Listener
// there are none, and hints stay in the process.
func (s *Store) Calls(id string, hear func(driver.Call)) (stop func()) {
	w := &s.calls
	w.mu.Lock()
	w.begin()
	w.mu.Unlock()
	end := w.lockers.Calls(id, hear)
	return func() {
		end()
		w.mu.Lock()
		defer w.mu.Unlock()
		for name, t := range w.waits {
			if t.id == id {
				delete(w.waits, name)
			}
		}
	}
}

// Serves implements [driver.Limited].
func (s *Store) Serves(h driver.Hold) error {
	if h.Offered && s.set.Listen == nil {
		return fmt.Errorf("%w: without a Listener no lock is offered", driver.ErrConfig)
	}
	return nil
}

// listed notes that a locker is in the list of a lock. It knows of the call with a number, and of all calls before.
func (w *calls) listed(key, id string, called int64, ahead int) {
	name, now := placeName(ident.Hash(key), id), time.Now()
	w.keys.put(name, key, len(key))
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.waits[name]
	if t == nil {
		t = &wait{key: key, id: id}
		w.waits[name] = t
	}
	if t.called, t.ahead, t.quiet = called, ahead, now; t.due.IsZero() {
		w.soon(t, now)
	}
	if !w.looking {
		w.looking = true
		w.store.work.Go(w.look)
	}
	w.begin()
}

// left notes that a locker waits for a lock no more.
func (w *calls) left(key, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waits, placeName(ident.Hash(key), id))
}

// begin has announcements heard. Called with w.mu held.
func (w *calls) begin() {
	if w.store.set.Listen != nil && !w.started {
		w.started = true
		w.store.work.Go(w.listen)
	}
}

// soon has the poller look soon, since something has happened. Called with w.mu held.
func (w *calls) soon(t *wait, now time.Time) {
	t.quiet = now
	if due := now.Add(w.pause(t, now)); t.due.IsZero() || due.Before(t.due) {
		t.due = due
		select {
		case w.sooner <- struct{}{}:
		default:
		}
	}
}

// pause is for how long the poller need not look. Called with w.mu held.
func (w *calls) pause(t *wait, now time.Time) time.Duration {
	soonest, latest := time.Duration(max(1, t.ahead))*lookSoonest, lookLatest
	if w.proof.holds {
		soonest, latest = heardSoonest, heardLatest
	}
	return min(max(now.Sub(t.quiet)/4, soonest), latest)
}

// make makes the calls of a release, or of a request that was refused: directly in this process, and by an announcement in
// others. They have the number of the row.
func (w *calls) make(key string, number int64, all []keystate.Call) {
	hash := ident.Hash(key)
	var far []keystate.Call
	for _, c := range all {
		if _, waited := w.keys.get(placeName(hash, c.To)); waited || w.lockers.Has(c.To) {
			w.hears(hash, key, number, c)
		} else {
			far = append(far, c)
		}
	}
	if len(far) > 0 && w.store.set.Listen != nil {
		w.store.set.Announce(hash + " " + w.id + " " + strconv.FormatInt(number, 10) + " " + callsText(far))
	}
}

// hears has a locker of this process hear a call. A turn is for a locker that waits and does not know the call. The key is
// empty if only its hash is known.
func (w *calls) hears(hash, key string, number int64, c keystate.Call) {
	waited, ok := w.keys.get(placeName(hash, c.To))
	if c.Key = key; ok {
		c.Key = waited
	}
	switch {
	case c.What == driver.Turn && !w.news(placeName(hash, c.To), number):
	case c.What == driver.Offered && !ok: // only the process of the locker can take it
	case !w.lockers.Call(c.To, c.Call) && c.What == driver.Offered: // the locker is there no more
		w.store.work.Go(func() { // else the offer ends after a time
			_, _ = w.store.Release(context.Background(), driver.ReleaseRequest{
				Key: c.Key, Owner: fmt.Sprintf("%s:%d", c.To, c.Token), Token: c.Token, TTL: driver.OfferLasts,
				Deadline: time.Now().Add(w.store.set.Timeout),
			})
		})
	}
}

// news reports whether a locker waits, and hears of a call for the first time. A locker that does not hear yet finds the
// call by a look.
func (w *calls) news(name string, number int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.waits[name]
	if t == nil || t.called == number || !w.lockers.Has(t.id) {
		return false
	}
	t.called = number
	w.soon(t, time.Now())
	return true
}

// uncertain has the lockers ask that wait for a lock which was released, it is not known when.
func (w *calls) uncertain(key string) {
	hash := ident.Hash(key)
	if w.store.set.Listen != nil {
		w.store.set.Announce(hash + " " + w.id + " 0")
	}
	w.unsure(hash)
}

// unsure has the lockers ask that wait for a lock, by the hash of its key.
func (w *calls) unsure(hash string) {
	var all []*wait
	w.mu.Lock()
	for name, t := range w.waits {
		if strings.HasPrefix(name, placeName(hash, "")) {
			all = append(all, t)
		}
	}
	w.mu.Unlock()
	for _, t := range all {
		w.lockers.Call(t.id, driver.Call{Key: t.key})
	}
}

// mayReach reports whether an offer may reach a locker: it belongs to another process, or takes offers here.
func (w *calls) mayReach(key, id string) bool {
	_, here := w.keys.get(placeName(ident.Hash(key), id))
	return !here || w.lockers.Has(id)
}

// callsText returns calls as announcements and rows have them:
//
//	id@µs       a turn, and when it begins; "+" behind it says that others wait
//	id=token    an offer, as well
//	id:number!  another locker waits for the lock of this owner; zero: a newer caller has come
func callsText(all []keystate.Call) string {
	texts := make([]string, len(all))
	for i, c := range all {
		text, hint := c.Hint()
		switch {
		case hint:
		case c.What == driver.Offered:
			text = fmt.Sprint(c.To, "=", c.Token)
		default:
			text = fmt.Sprint(c.To, "@", c.In.Microseconds())
		}
		if texts[i] = text; c.Others {
			texts[i] += "+"
		}
	}
	return strings.Join(texts, " ")
}

// readCalls reads such a text, and leaves out what it cannot read.
func readCalls(text string) (all []keystate.Call) {
	for part := range strings.FieldsSeq(text) {
		c, hint := keystate.ReadHint(part)
		if hint {
			all = append(all, c)
			continue
		}
		part, others := strings.CutSuffix(part, "+")
		i := strings.LastIndexAny(part, "@=")
		number, err := strconv.ParseInt(part[i+1:], 10, 64)
		switch {
		case i < 0 || err != nil || number < 0:
			continue
		case part[i] == '=':
			c.Call = driver.Call{What: driver.Offered, Token: number, Others: others}
		default:
			c.Call = driver.Call{What: driver.Turn, In: time.Duration(number) * time.Microsecond, Others: others}
		}
		c.To = part[:i]
		all = append(all, c)
	}
	return all
}
