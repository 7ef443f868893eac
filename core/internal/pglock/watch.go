package pglock

import (
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/ident"
)

const (
	// lookSoonest and lookLatest bound the pauses between two looks at a lock for which a
	// locker of this process waits. Each is a quarter of the time for which nothing has
	// happened: what took long may be noticed late.
	lookSoonest = 20 * time.Millisecond
	lookLatest  = 200 * time.Millisecond
	// heardSoonest and heardLatest are the same where releases are heard: only for a
	// message that was lost.
	heardSoonest = time.Second
	heardLatest  = 2 * time.Second
)

// watches wakes the lockers of this process that wait for locks. A release through this
// store wakes them directly. Releases by other processes are heard ([Listener]), or seen by a
// look (poll.go): the row says when waiting lockers were last to look, and it stays. So
// nothing is lost over a failure. A watcher gets each release once: the store takes no notice of
// its own announcements, which may come after a later release.
type watches struct {
	store  *Store
	id     string        // of the store, in its announcements
	sooner chan struct{} // holds a token if a topic is due earlier than the poller thinks

	mu      sync.Mutex
	topics  map[string]*topic                  // by key
	hashed  map[string]*topic                  // by the hash of the key
	told    []telling                          // to be carried out by do
	hints   map[string]func(key, owner string) // by the ids of the lockers that want them
	looking bool                               // the poller is at work
	started bool                               // so is the listener
	proof   proof
}

// topic is a key that is watched.
type topic struct {
	key, hash string
	watchers  map[*watcher]struct{}

	token, called int64     // as of the last look
	recorded      bool      // the row had a record when an answer came last
	quiet         time.Time // since when nothing has happened
	due           time.Time // when to look again
}

// watcher is the state for waking a locker once for each event.
type watcher struct {
	wake    func(driver.Signal)
	since   time.Time // earlier events are known
	called  int64     // the last release that it was woken for
	lapsed  int64     // the last token with an end that it was woken for
	missing bool      // it was woken because there is no row
}

// telling is a signal for a watcher.
type telling struct {
	*watcher
	signal driver.Signal
}

func (w *watches) init(s *Store) {
	w.store, w.id, w.sooner = s, ident.New(), make(chan struct{}, 1)
	w.topics, w.hashed = make(map[string]*topic), make(map[string]*topic)
	w.hints = make(map[string]func(key, owner string))
}

// hashOf is what announcements say of a key, which may be secret, and long.
func hashOf(key string) string { return ident.Hash(key) }

// do calls f with the mutex held, and sends the signals that f has collected when the
// mutex is free again. The watchers take their own locks, and may call watches under
// them.
func (w *watches) do(f func()) {
	w.mu.Lock()
	f()
	told := w.told
	w.told = nil
	w.mu.Unlock()
	for _, t := range told {
		t.wake(t.signal)
	}
}

// tell has a watcher woken. Called with w.mu held.
func (w *watches) tell(x *watcher, signal driver.Signal) {
	w.told = append(w.told, telling{x, signal})
}

// watch implements Store.Watch.
func (w *watches) watch(key string, since time.Time, wake func(driver.Signal)) (stop func()) {
	x := &watcher{wake: wake, since: since}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	t := w.topics[key]
	if t == nil {
		t = &topic{key: key, hash: hashOf(key), watchers: make(map[*watcher]struct{})}
		w.topics[key], w.hashed[t.hash] = t, t
	}
	t.watchers[x] = struct{}{}
	// It may have missed a message that was on its way before it began.
	t.soon(now)
	if !w.looking {
		w.looking = true
		w.store.background(w.look)
	} else {
		w.hurry()
	}
	w.begin()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(t.watchers, x)
		if len(t.watchers) == 0 && w.topics[key] == t {
			delete(w.topics, key)
			delete(w.hashed, t.hash)
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

// soon has the poller look at a topic soon, since something has happened.
func (t *topic) soon(now time.Time) {
	t.quiet = now
	if due := now.Add(lookSoonest); t.due.IsZero() || due.Before(t.due) {
		t.due = due
	}
}

// hurry tells the poller that a topic is due earlier than it thinks.
func (w *watches) hurry() {
	select {
	case w.sooner <- struct{}{}:
	default:
	}
}

// released wakes the watchers of a lock that was released through this store, and has the
// watchers of other processes woken if lockers wait.
func (w *watches) released(key string, a answer) {
	if a.list != "" {
		w.announce(key, a)
	}
	w.do(func() {
		if t := w.topics[key]; t != nil {
			w.announced(t, a.called, a.list)
		}
	})
}

// uncertain wakes the watchers of a lock that was released, it is not known when.
func (w *watches) uncertain(key string) {
	w.announce(key, answer{})
	w.do(func() {
		if t := w.topics[key]; t != nil {
			w.tellAll(t)
		}
	})
}

// announced wakes the watchers of a topic that have not been told about a release yet. Called
// with w.mu held.
func (w *watches) announced(t *topic, called int64, list string) {
	for x := range t.watchers {
		if x.called != called {
			x.called = called
			w.tell(x, signalOf(list))
		}
	}
	t.soon(time.Now())
	w.hurry()
}

// tellAll wakes the watchers of a topic, since the event is not known. Called with w.mu
// held.
func (w *watches) tellAll(t *topic) {
	for x := range t.watchers {
		w.tell(x, driver.Signal{})
	}
}
