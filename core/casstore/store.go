package casstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/host"
	"github.com/interlock-go/interlock/core/internal/logs"
)

// Option configures a [Store]. Options do not change after [New].
type Option func(*settings)

type settings struct {
	prefix  string
	timeout time.Duration
	log     *logs.Log
	err     error
}

// Prefix sets the beginning of the names of all entries. It consists of letters,
// digits, - and _, in parts between slashes; otherwise [New] returns [driver.ErrConfig]. Services
// that share locks need the same. Default: "interlock".
func Prefix(p string) Option {
	return func(s *settings) { s.prefix = p }
}

// Timeout sets how long the store waits at least for the answer to one transaction before it
// sends the transaction again. Where answers take longer, it waits for four times their time,
// and after some tries without an answer for longer. For d below 10 ms or above 31 days, [New]
// returns [driver.ErrConfig]. A renewal waits for less where its lease is short. Default: 1 s.
func Timeout(d time.Duration) Option {
	return func(s *settings) {
		s.timeout = d
		if wrong := clock.Limits(d, 10*time.Millisecond, clock.LongestLease); wrong != "" {
			s.err = errors.Join(s.err, fmt.Errorf("%w: Timeout(%v): %s", driver.ErrConfig, d, wrong))
		}
	}
}

// Logger sets the logger for warnings. Default, and if l is nil: [slog.Default].
func Logger(l *slog.Logger) Option {
	return func(s *settings) {
		if l != nil {
			s.log = logs.To(l)
		}
	}
}

// Store keeps locks on a [Server]. It implements [driver.Store] and is safe for concurrent
// use. [New] makes one. A Store is one process to all others: it keeps its locks as long
// as it gives a sign of life. Two stores of one program are two processes.
type Store struct {
	server  Server
	names   layout
	timeout time.Duration
	trip    atomic.Int64 // how long answers take, in ns; zero before the first
	trips   clock.Trips  // and how long at the least

	process string           // its name in the server
	host    string           // for a human being who reads a beat
	now     func() time.Time // tests have clocks that run apart

	work    *host.Work
	done    context.Context // ends with Close
	sweeps  sync.Once
	lockers host.Lockers

	mu     sync.Mutex
	holds  map[string]*hold            // by owner
	beaten map[time.Duration]time.Time // the last beat written for locks of a lease
	spent  map[time.Duration]bool      // beats that are to be deleted
	void   Revision                    // of the process's void that was seen last
	seen   sightings
	freed  map[string]time.Time // when locks that nobody waited for were given up, by key
	passes map[string]*lane     // by key: requests that have collided
	waiting
}

// waiting has the keys that callers of this process wait for, and the watches that call it.
type waiting struct {
	answers     bool                  // the watch of calls runs
	queues      map[string]*queue     // by key
	beatWatches map[string]*listening // by name
	calls       map[string]heard      // the entries of calls that were heard, by name
	clearing    bool                  // they are to be deleted
	leavers     map[string]*leaver    // by the name of the entry
	leaving     bool                  // they are to leave
	cleaning    map[string]bool       // keys with places that have all gone, perhaps
}

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Turns = (*Store)(nil)
)

// New makes a store on a server. It sends nothing. It returns [driver.ErrConfig] if server
// is nil or an option cannot work. Close the store after the locker.
func New(server Server, opts ...Option) (*Store, error) {
	set := settings{prefix: "interlock", timeout: time.Second, log: new(logs.Log)}
	for _, opt := range opts {
		if opt != nil {
			opt(&set)
		}
	}
	switch {
	case set.err != nil:
		return nil, set.err
	case server == nil:
		return nil, fmt.Errorf("%w: server is nil", driver.ErrConfig)
	case !isPrefix(set.prefix):
		return nil, fmt.Errorf("%w: Prefix(%q): letters, digits, - and _, in parts between slashes", driver.ErrConfig, set.prefix)
	}
	var id [12]byte
	rand.Read(id[:]) // never fails (crypto/rand, Go 1.24)
	machine, _ := os.Hostname()
	s := &Store{
		server: server, names: layout{set.prefix}, timeout: set.timeout, work: host.Begin(set.log),
		process: hex.EncodeToString(id[:]), host: fmt.Sprintf("%s/%d", machine, os.Getpid()), now: time.Now,
		holds: map[string]*hold{}, beaten: map[time.Duration]time.Time{}, spent: map[time.Duration]bool{}, passes: map[string]*lane{},
		freed:   map[string]time.Time{},
		waiting: waiting{queues: map[string]*queue{}, beatWatches: map[string]*listening{}, calls: map[string]heard{}, leavers: map[string]*leaver{}},
		seen:    sightings{locks: map[string]*sighting{}, beats: map[string]*sighting{}, pruneAt: pruneAt},
	}
	s.done = s.work.Life()
	return s, nil
}

func isPrefix(p string) bool {
	for i := range len(p) {
		if c := p[i]; c == '/' && (i == 0 || i == len(p)-1 || p[i-1] == '/') || c != '/' && (c == '.' || escape(p[i:i+1]) != p[i:i+1]) {
			return false
		}
	}
	return p != ""
}

// Prefix returns the beginning of the names of all entries, as set by the option.
func (s *Store) Prefix() string { return s.names.prefix }

// Close ends the background work of the store, and returns when that has ended. It deletes the calls that it has
// heard, and if it holds no lock its signs of life, and waits for the answer as long as [Timeout] says. Locks
// that are still held stay until other processes have seen no sign of life for a lease. Later
// requests get an error that matches [driver.ErrUnavailable]. It does not close the server. A
// second call returns nil, too.
func (s *Store) Close() error {
	s.work.End()
	s.mu.Lock()
	for _, h := range s.holds {
		h.timer.Stop()
	}
	s.mu.Unlock()
	s.work.Wait()
	var last sync.WaitGroup
	last.Go(func() { s.forgetCalls(context.Background(), 0) })
	if s.idle() {
		s.forgetBeats(context.Background())
	}
	last.Wait()
	return nil
}

// idle reports whether the process has no lock, and gets none, and is not listed.
func (s *Store) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.holds) == 0 && len(s.queues) == 0 && len(s.leavers) == 0
}

// background runs f, and has Close wait for it. It reports false if the store is closed.
func (s *Store) background(f func()) bool {
	s.sweeps.Do(func() { s.work.Go(s.sweep) })
	return s.work.Go(f)
}

// An error of package driver is joined with a second, separate error. It is the last, since
// logs have the root cause of an error (observe.RootCause).
var (
	errClosed   = fmt.Errorf("%w: %w", driver.ErrUnavailable, errors.New("the store is closed"))
	errReleased = fmt.Errorf("%w: %w", driver.ErrUnavailable, errors.New("the owner is being released"))
	errNoTime   = fmt.Errorf("%w: %w", driver.ErrNotReady, errors.New("no time is left"))
)

// Warn logs what fails in the background, at most once a minute for each text: of the store,
// and of its adapter. It logs nothing after [Store.Close].
func (s *Store) Warn(what string, err error) { s.work.Failed(what, err) }
