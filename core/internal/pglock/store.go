package pglock

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/inflight"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/pgpool"
)

const (
	// DefaultTable is the name of the table.
	DefaultTable = "interlock_lock"

	defaultTimeout = time.Second
	defaultKeep    = time.Hour
	defaultSweep   = time.Minute

	// driverWait is how long a driver may take to return when a context has ended. lib/pq waits
	// for the answer to a statement until the server gives it or the connection breaks, and
	// a caller has to be answered before.
	driverWait = 500 * time.Millisecond

	// maxWorkers is how many statements for requests of callers are under way at most,
	// maxRenewing the same for the renewals of watchdogs, which no other request delays.
	maxWorkers  = 4
	maxRenewing = 2
	// amplePool is a size of a limited pool. In a pool of that size or more a busy store
	// keeps its connections.
	amplePool = 2 * (maxWorkers + maxRenewing)
)

// Config says how a [Store] is made. The zero value has the defaults.
type Config struct {
	// Table is the name of the table, interlock_lock if empty. It becomes part of the
	// statements as it is. It may therefore be qualified and quoted, and must not come
	// from a request.
	Table string
	// Timeout bounds one try of a request, with the wait for a connection; the default is
	// one second.
	Timeout time.Duration
	// Log gets warnings; the default is [slog.Default].
	Log *logs.Log
	// Listen, unless nil, hears the releases of other processes. All processes that use
	// the table should have one, or none. It may hear other messages as well: the store
	// takes no notice of them if they begin with a word that is neither a hash nor "proof" or "wanted".
	Listen Listener
	// Announce, with Listen, has the Listeners of all these processes hear a message. It
	// returns at once, and may fail to.
	Announce func(message string)
	// Keep is for how long the row of a lock stays that no owner holds; the default is one
	// hour. The server's clock may be set back by less than that without a token going
	// back.
	Keep time.Duration
	// Sweep is how often such rows are deleted, by a process that uses the
	// table; the default is once a minute, a negative value is never.
	Sweep time.Duration
}

// withDefaults replaces the fields that are not set.
func (c Config) withDefaults() Config {
	if c.Table == "" {
		c.Table = DefaultTable
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.Log == nil {
		c.Log = new(logs.Log)
	}
	if c.Keep <= 0 {
		c.Keep = defaultKeep
	}
	if c.Sweep == 0 {
		c.Sweep = defaultSweep
	}
	return c
}

// Store keeps locks in a table of PostgreSQL. It implements [driver.Store] and is safe for
// concurrent use. [New] makes one.
type Store struct {
	db    *sql.DB
	set   Config
	text  pgpool.Texts[statements]
	trips clock.Trips // of statements that do not wait for the disk

	requests lane // of callers
	renewals lane // of watchdogs
	watches  watches

	mu       sync.Mutex
	over     bool           // no more work
	work     sync.WaitGroup // the goroutines that are no workers
	stop     chan struct{}  // closed by Close
	sweeping sync.Once
	failing  sync.Map  // what fails in the background -> *logs.Throttle
	small    sync.Once // the pool is, which was said
}

var _ driver.Store = (*Store)(nil)

// New makes a [Store] on the connections of a database. It sends nothing. The table must
// be there by the first request.
//
// The store uses up to six connections while it is busy, and two more from time to time. It
// keeps none between two statements where [pgpool.Limit] says that the pool is small.
// Callers that hold connections of the same pool while they wait for a lock can keep them
// from it: give the store a separate pool, or a pool without a limit.
func New(db *sql.DB, cfg Config) *Store {
	s := &Store{db: db, set: cfg.withDefaults(), stop: make(chan struct{})}
	s.text.Init(func(fit func(string) string) *statements { return statementsFor(s.set.Table, fit) })
	s.requests = lane{store: s, most: maxWorkers, parked: make(map[string][]*request)}
	s.renewals = lane{store: s, most: maxRenewing, parked: make(map[string][]*request)}
	s.watches.init(s)
	return s
}

// Close ends the background work of the store. Requests under way get their answers,
// within [Config.Timeout]; requests that come later get an error that matches
// [driver.ErrUnavailable]. It does not close the database. A second call returns nil, too.
func (s *Store) Close() error {
	s.mu.Lock()
	if !s.over {
		s.over = true
		close(s.stop)
	}
	s.mu.Unlock()
	s.requests.close()
	s.renewals.close()
	s.work.Wait()
	return nil
}

// background runs f on a goroutine that Close waits for, unless the store is closed.
func (s *Store) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.work.Go(f)
	}
}

// sleep waits for d, or until the channel says that there is something to do. It reports
// false once the store is closed.
func (s *Store) sleep(d time.Duration, sooner <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.stop:
		return false
	case <-timer.C:
	case <-sooner:
	}
	return !s.closed()
}

// failed logs that something in the background did not succeed: at once, and then once a
// minute.
func (s *Store) failed(what string, err error) {
	if throttle, _ := s.failing.LoadOrStore(what, new(logs.Throttle)); !s.closed() {
		throttle.(*logs.Throttle).Warn(s.set.Log, "interlock: "+what, err)
	}
}

// closed reports whether Close was called.
func (s *Store) closed() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// Acquire implements [driver.Store].
func (s *Store) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	if err := keystate.Check(&ask); err != nil {
		return driver.Reply{}, err
	}
	ask.TTL = micros(ask.TTL)
	s.sweeping.Do(s.startSweep)
	_, attentive := driver.IsAttentive(ask.Owner)
	r := &request{kind: acquires, from: ask.From}
	if ask.Kind.Place() || ask.Line != driver.InTurn || ask.From != "" || attentive {
		r.kind = records
	}
	return s.ask(ctx, r, ask, func(rec *keystate.Record, now time.Time, v *ruling) (n keystate.Notices) {
		if ask.From != "" {
			v.rep, n, v.err = rec.Move(ask, now)
		} else {
			v.rep, n = rec.Acquire(ask, now)
		}
		v.lasts = v.rep.Granted
		return n
	})
}

// ask sends a request for a lock, and waits for its reply.
func (s *Store) ask(ctx context.Context, r *request, ask driver.AcquireRequest, by rule) (driver.Reply, error) {
	if err := checkTexts(ask.Owner, string(ask.Waiter), ask.From); err != nil {
		return driver.Reply{}, err
	}
	r.store, r.lane, r.asks, r.deadline, r.done = s, &s.requests, true, ask.Deadline, make(chan *request, 1)
	r.key, r.owner, r.ttl, r.waiter = ask.Key, ask.Owner, ask.TTL, string(ask.Waiter)
	if ask.Late != nil {
		r.late = func() { ask.Late(r.reply()) }
	}
	r.by(by)
	r.send()
	if !r.wait(ctx, ask.Deadline) {
		return driver.Reply{}, inflight.Pending(ctx)
	}
	return r.reply()
}

// reply makes the caller's reply from the result of the statement.
func (r *request) reply() (driver.Reply, error) {
	rep := driver.Reply{Sent: r.sent, Ambiguous: r.ambiguous}
	a := r.answer
	switch {
	case r.err != nil:
		return rep, r.err
	case a.ruling != nil:
		of := a.ruling.rep
		of.Sent, of.Ambiguous = rep.Sent, rep.Ambiguous
		return of, a.ruling.err
	case a.code == 1:
		rep.Granted, rep.Token, rep.Room = true, a.token, a.remains
	default:
		rep.Holder, rep.Listed = a.holder, a.listed
		rep.TTL = time.Duration(max(a.remains, 0)) * time.Microsecond
	}
	return rep, nil
}

// Release implements [driver.Store].
func (s *Store) Release(_ context.Context, ask driver.ReleaseRequest) (waiting driver.Waiters, err error) {
	if err := checkTexts(ask.Owner, string(ask.Waiter)); err != nil {
		return "", err
	}
	r := &request{
		store: s, lane: &s.requests, kind: releases, stubborn: true, deadline: ask.Deadline, done: make(chan *request, 1),
		key: ask.Key, owner: ask.Owner, token: ask.Token, waiter: string(ask.Waiter),
	}
	if ask.Kind.Place() || ask.Waiter.Place() || ask.Revoked > 0 {
		r.kind = records // a note goes with the write of a record
	}
	r.by(func(rec *keystate.Record, now time.Time, v *ruling) (n keystate.Notices) {
		v.waiting, n, v.err = rec.Release(ask, func(string) bool { return false }, now)
		return n
	})
	r.send()
	until := ask.Deadline
	if !until.IsZero() {
		until = until.Add(driverWait)
	}
	if !r.wait(context.Background(), until) {
		return "", errNoAnswer
	}
	if r.err != nil {
		return "", r.err
	}
	waiting, err = r.answer.released(ask.Waiter)
	if r.answer.called != 0 { // also after the end of its lease
		s.watches.released(ask.Key, r.answer)
	}
	if err != nil && r.ambiguous {
		// "Not the owner" after an earlier try with a lost reply: that try released it.
		s.watches.uncertain(ask.Key)
		return "", nil
	}
	return waiting, err
}

// released returns the result of a release. The list is empty if only the own locker waits.
func (a *answer) released(own driver.Waiter) (waiting driver.Waiters, err error) {
	switch {
	case a.ruling != nil:
		return a.ruling.waiting, a.ruling.err
	case a.code != 1:
		return "", notOwner(a.code)
	}
	waiting = driver.Waiters(a.list)
	if first, others := waiting.Cut(); others == "" && first.ID() == own.ID() {
		return "", nil
	}
	return waiting, nil
}

// notOwner makes the error for the answer to an owner that does not hold the lock.
func notOwner(code int) error {
	switch code {
	case codeRevoked:
		return driver.ErrRevoked
	case codeFree:
		return driver.ErrDeleted
	}
	return driver.ErrTakenOver
}

// Watch implements [driver.Store].
func (s *Store) Watch(_, key string, since time.Time, wake func(driver.Signal)) (stop func()) {
	return s.watches.watch(key, since, wake)
}

// Renew implements [driver.Store].
func (s *Store) Renew(ctx context.Context, batch []driver.Renewal, done func(i int, contended bool, err error)) {
	if len(batch) == 0 {
		return
	}
	to := &s.renewals
	if batch[0].Asked {
		to = &s.requests
	}
	deadline, _ := ctx.Deadline()
	round := make(chan *request, len(batch)) // has room for all outcomes
	all := make([]*request, 0, len(batch))
	for i := range batch {
		b := &batch[i]
		if err := checkTexts(b.Owner); err != nil {
			done(i, false, err)
			continue
		}
		r := &request{
			store: s, lane: to, kind: renews, asks: true, once: !b.Asked, deadline: deadline, done: round, index: i,
			key: b.Key, owner: b.Owner, ttl: b.TTL,
		}
		if b.Kind.Place() {
			r.kind = records
		}
		renewal := *b
		renewal.TTL = micros(b.TTL)
		r.by(func(rec *keystate.Record, now time.Time, v *ruling) (n keystate.Notices) {
			v.contended, v.err = rec.Renew(renewal, now)
			v.lasts = v.err == nil && b.TTL > 0
			return n
		})
		all = append(all, r)
	}
	to.submit(all...)
	for left := len(all); left > 0; left-- {
		select {
		case r := <-round:
			r.tell(done)
			continue
		case <-ctx.Done():
		}
		for _, r := range all {
			if r.caller.Leave() {
				done(r.index, false, errNoAnswer)
				left--
			}
		}
		for range left { // these have their outcomes, which come at once
			(<-round).tell(done)
		}
		return
	}
}

// tell tells the outcome of a renewal.
func (r *request) tell(done func(i int, contended bool, err error)) {
	switch {
	case r.err != nil:
		done(r.index, false, r.err)
	case r.answer.ruling != nil:
		done(r.index, r.answer.ruling.contended, r.answer.ruling.err)
	case r.answer.code <= 0:
		done(r.index, false, notOwner(r.answer.code))
	default:
		done(r.index, r.answer.code == 2, nil)
	}
}
