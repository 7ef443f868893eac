package pglock

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/host"
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
	// Listen, unless nil, hears the calls and offers of other processes. All processes that use
	// the table should have one, or none. It may hear other messages as well: the store
	// takes no notice of them if they begin with another word than a hash or "proof".
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
	clock serverClock
	rows  recent[row] // as they were seen last, by key

	requests lane // of callers
	renewals lane // of watchdogs
	calls    calls

	work     *host.Work // the goroutines that are no workers
	sweeping sync.Once
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
	s := &Store{db: db, set: cfg.withDefaults()}
	s.work = host.Begin(s.set.Log)
	s.text.Init(func(fit func(string) string) *statements { return statementsFor(s.set.Table, fit) })
	s.requests = lane{store: s, most: maxWorkers, parked: make(map[string][]*request)}
	s.renewals = lane{store: s, most: maxRenewing, parked: make(map[string][]*request)}
	s.calls.init(s)
	s.clock.begin = time.Now()
	return s
}

// Close ends the background work of the store. Requests under way get their answers,
// within [Config.Timeout]; requests that come later get an error that matches
// [driver.ErrUnavailable]. It does not close the database. A second call returns nil, too.
func (s *Store) Close() error {
	s.work.End()
	s.requests.close()
	s.renewals.close()
	s.work.Wait()
	return nil
}

// Acquire implements [driver.Store].
func (s *Store) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	if err := keystate.Check(&ask); err != nil {
		return driver.Reply{}, err
	}
	ask.TTL = micros(ask.TTL)
	s.sweeping.Do(s.startSweep)
	return s.ask(ctx, ask, func(rec *keystate.Record, at moment, v *ruling) (n keystate.Notices) {
		if ask.From != "" {
			v.rep, n, v.err = rec.Move(ask, at.now)
		} else {
			v.rep, n = rec.Acquire(ask, at.now)
		}
		v.lasts = v.rep.Granted || offeredTo(rec, ask.Waiter, v.rep, at.now)
		return n
	})
}

// offeredTo reports whether a refusal shows a locker its own offer. It takes the offer then, so the offer has to be on the disk
// and on the standby: if the wait of a release for these was cancelled, nothing was announced.
func offeredTo(rec *keystate.Record, w driver.Waiter, rep driver.Reply, now time.Time) bool {
	owner, token := rec.Offered(now)
	return owner != "" && owner == rep.Holder && owner == fmt.Sprintf("%s:%d", w.ID(), token)
}

// ask sends a request for a lock, and waits for its reply.
func (s *Store) ask(ctx context.Context, ask driver.AcquireRequest, by rule) (driver.Reply, error) {
	if err := checkTexts(ask.Owner, string(ask.Waiter), ask.From); err != nil {
		return driver.Reply{}, err
	}
	r := &request{
		store: s, lane: &s.requests, rule: by, lasts: true, lease: ask.TTL, asks: true, deadline: ask.Deadline, done: make(chan *request, 1),
		key: ask.Key, owner: ask.Owner, waiter: ask.Waiter, from: ask.From,
	}
	if ask.Late != nil {
		r.late = func() { ask.Late(r.reply()) }
	}
	r.send()
	if !r.wait(ctx, ask.Deadline) {
		return driver.Reply{}, inflight.Pending(ctx)
	}
	return r.reply()
}

// reply makes the caller's reply.
func (r *request) reply() (rep driver.Reply, err error) {
	if err = r.err; err == nil {
		rep, err = r.answer.rep, r.answer.err
	}
	rep.Sent, rep.Ambiguous = r.sent.Add(-r.lag), r.ambiguous
	return rep, err
}

// Release implements [driver.Store].
func (s *Store) Release(_ context.Context, ask driver.ReleaseRequest) (found driver.Waiting, err error) {
	if err := checkTexts(ask.Owner, string(ask.Waiter)); err != nil {
		return found, err
	}
	r := &request{
		store: s, lane: &s.requests, stubborn: true, deadline: ask.Deadline, done: make(chan *request, 1), key: ask.Key, owner: ask.Owner,
		waiter: ask.Waiter,
	}
	r.rule = func(rec *keystate.Record, at moment, v *ruling) (n keystate.Notices) {
		s.offers(rec, at)
		v.found, n, v.err = rec.Release(ask, func(id string) bool { return s.calls.mayReach(ask.Key, id) }, at.now)
		v.rep.Listed = v.err == nil // also if the lock is kept for no locker: it may be called
		return n
	}
	r.send()
	until := ask.Deadline
	if !until.IsZero() {
		until = until.Add(driverWait)
	}
	if !r.wait(context.Background(), until) {
		return found, errNoAnswer
	}
	switch {
	case r.err != nil:
		return found, r.err
	case r.answer.err != nil && r.ambiguous:
		// "Not the owner" after an earlier try with a lost reply: that try released it.
		s.calls.uncertain(ask.Key)
		return found, nil
	}
	return r.answer.found, r.answer.err
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
			store: s, lane: to, lasts: true, lease: b.TTL, asks: true, once: !b.Asked, deadline: deadline, done: round, index: i, key: b.Key, owner: b.Owner,
		}
		renewal := *b
		r.rule = func(rec *keystate.Record, at moment, v *ruling) (n keystate.Notices) {
			longer := renewal
			if longer.TTL > 0 {
				longer.TTL = micros(longer.TTL) + at.longer
			}
			v.contended, v.err = rec.Renew(longer, at.now)
			v.renewed = v.err == nil && renewal.TTL > 0
			v.lasts = v.renewed
			return n
		}
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
	if r.err != nil {
		done(r.index, false, r.err)
		return
	}
	done(r.index, r.answer.contended, r.answer.err)
}
