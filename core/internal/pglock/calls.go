package pglock

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
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

// watches has the lockers of this process called that wait for locks. A release names the lockers that may
// have the lock ([keystate.Signal.Called]) in the row, with a number that no other call has. Calls of this store reach its
// lockers directly. Calls of other processes are heard ([Listener]), or seen by a
// look (poll.go): a locker has missed a call if the row has another number than it knows. So
// nothing is lost over a failure, and no clock is compared.
type watches struct {
	store  *Store
	id     string        // of the store, in its announcements
	sooner chan struct{} // holds a token if a topic is due earlier than the poller thinks
	places recent[place] // of lockers of this process in lists, by placeName

	mu      sync.Mutex
	topics  map[string]*topic            // by key
	told    []func()                     // to be called by do
	callers map[string]func(driver.Call) // by the ids of the lockers
	looking bool                         // the poller is at work
	started bool                         // so is the listener
	proof   proof
}

// topic is a key that is watched.
type topic struct {
	key      string
	watchers map[*watcher]struct{}

	called  int64     // as of the last look; -1: a watch has begun since
	passed  int64     // the end of the last lease, which the lockers know has passed
	missing bool      // they know that there is no row
	ahead   int       // so many lockers stand before this process in the list
	quiet   time.Time // since when nothing has happened
	due     time.Time // when to look again
}

// watcher is a locker that waits for a lock.
type watcher struct {
	id     string
	wake   func(keystate.Signal)
	called int64 // the number of the last call that it knows; -1: of none
}

// place is what is known of a locker of this process that is, or was, in a list.
type place struct {
	key    string
	called int64 // the last call when it was refused
	ahead  int   // so many lockers were before it
	heard  int64 // a call that came since; zero: none has
	names  string
}

func (w *watches) init(s *Store) {
	w.store, w.id, w.sooner = s, ident.New(), make(chan struct{}, 1)
	w.topics = make(map[string]*topic)
	w.callers = make(map[string]func(driver.Call))
}

// placeName names a place: announcements have the hash of a key, which may be secret, and long.
func placeName(hash, id string) string { return hash + " " + id }

// do calls f with the mutex held, and sends the signals that f has collected when the
// mutex is free again. The watchers take their own locks, and may call watches under
// them.
func (w *watches) do(f func()) {
	w.mu.Lock()
	f()
	told := w.told
	w.told = nil
	w.mu.Unlock()
	for _, tell := range told {
		tell()
	}
}

// tell has a watcher woken. Called with w.mu held.
func (w *watches) tell(x *watcher, signal keystate.Signal) {
	w.told = append(w.told, func() { x.wake(signal) })
}

// tellAll wakes the watchers of a topic, since the event is not known. Called with w.mu
// held.
func (w *watches) tellAll(t *topic) {
	for x := range t.watchers {
		w.tell(x, keystate.Signal{})
	}
}

// listed notes that a locker was refused, and is in the list. It knows of all calls before.
func (w *watches) listed(key, id string, called int64, ahead int) {
	name := placeName(ident.Hash(key), id)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.places.put(name, place{key: key, called: called, ahead: ahead}, len(key)+40)
	if t := w.topics[key]; t != nil {
		t.quiet, t.ahead = time.Now(), ahead
		for x := range t.watchers {
			if x.id == id {
				x.called = called
			}
		}
	}
}

// watch has wake called for each call to a locker at a key.
func (w *watches) watch(id, key string, wake func(keystate.Signal)) (stop func()) {
	x := &watcher{id: id, wake: wake, called: -1}
	var t *topic
	w.do(func() {
		if t = w.topics[key]; t == nil {
			t = &topic{key: key, watchers: make(map[*watcher]struct{})}
			w.topics[key] = t
		}
		t.watchers[x], t.called = struct{}{}, -1
		p, ok := w.places.get(placeName(ident.Hash(key), id))
		if ok {
			x.called, t.ahead = p.called, p.ahead
		}
		if p.heard != 0 && p.heard != p.called { // before the watch began
			x.called = p.heard
			w.tell(x, signalOf(p.names))
		}
		w.soon(t, time.Now())
		if !w.looking {
			w.looking = true
			w.store.background(w.look)
		}
		w.begin()
	})
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(t.watchers, x)
		if len(t.watchers) == 0 && w.topics[key] == t {
			delete(w.topics, key)
		}
	}
}

// begin has announcements heard. Called with w.mu held.
func (w *watches) begin() {
	if w.store.set.Listen != nil && !w.started {
		w.started = true
		w.store.background(w.listen)
	}
}

// soon has the poller look at a topic soon, since something has happened. Called with w.mu held.
func (w *watches) soon(t *topic, now time.Time) {
	t.quiet = now
	if due := now.Add(w.pause(t, now)); t.due.IsZero() || due.Before(t.due) {
		t.due = due
		w.hurry()
	}
}

// pause is for how long the poller need not look at a topic. Called with w.mu held.
func (w *watches) pause(t *topic, now time.Time) time.Duration {
	soonest, latest := time.Duration(max(1, t.ahead))*lookSoonest, lookLatest
	if w.proof.holds {
		soonest, latest = heardSoonest, heardLatest
	}
	return min(max(now.Sub(t.quiet)/4, soonest), latest)
}

// hurry tells the poller that a topic is due earlier than it thinks.
func (w *watches) hurry() {
	select {
	case w.sooner <- struct{}{}:
	default:
	}
}

// call calls the lockers that the row of a lock names: directly in this process, and by an
// announcement in others. The locker with the id to has been offered the lock.
func (w *watches) call(key string, r row, to string) {
	hash, far := ident.Hash(key), false
	w.do(func() {
		for name := range signalOf(r.names).Next.All() {
			far = far || name.ID() != to && !w.has(name.ID())
		}
		w.named(key, hash, r.called, r.names, to)
	})
	if far && w.store.set.Listen != nil {
		w.store.set.Announce(hash + " " + w.id + " " + strconv.FormatInt(r.called, 10) + " " + r.names)
	}
}

// has reports whether a locker belongs to this process. Called with w.mu held.
func (w *watches) has(id string) bool { return w.callers[id] != nil }

// named calls the lockers of this process that a call names, except for one. Called with w.mu held.
func (w *watches) named(key, hash string, number int64, names, except string) {
	signal := signalOf(names)
	for name := range signal.Next.All() {
		id := name.ID()
		p, ok := w.places.get(placeName(hash, id))
		if !ok || id == except {
			continue
		}
		key = p.key
		p.heard, p.names = number, names
		w.places.put(placeName(hash, id), p, len(p.key)+len(names)+40)
		if t := w.topics[key]; t != nil {
			for x := range t.watchers {
				if x.id == id && x.called != number {
					x.called = number
					w.tell(x, signal)
				}
			}
			w.soon(t, time.Now())
		}
	}
}

// uncertain wakes the watchers of a lock that was released, it is not known when.
func (w *watches) uncertain(key string) {
	if w.store.set.Listen != nil {
		w.store.set.Announce(ident.Hash(key) + " " + w.id + " 0")
	}
	w.do(func() {
		if t := w.topics[key]; t != nil {
			w.tellAll(t)
		}
	})
}

// calls reports whether a signal calls a locker.
func calls(signal keystate.Signal, id string) bool {
	return signal.Next == "" || indexIn(signal.Next, id) >= 0
}

// signalText returns a signal as announcements and rows have it.
func signalText(signal keystate.Signal) string {
	if signal.Now > 0 {
		return "*" + strconv.Itoa(signal.Now) + "," + string(signal.Next)
	}
	return string(signal.Next)
}

// signalOf reads such a text.
func signalOf(text string) (signal keystate.Signal) {
	rest, partly := strings.CutPrefix(text, "*")
	if !partly {
		return keystate.Signal{Next: driver.Waiters(text)}
	}
	number, next, _ := strings.Cut(rest, ",")
	signal.Next = driver.Waiters(next)
	signal.Now, _ = strconv.Atoi(number) // of another text, zero: all lockers ask
	return signal
}
