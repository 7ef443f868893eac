package lock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/timers"
)

const (
	// reapAtOnce bounds how many orphans are released for the first time at once, so
	// that an outage does not end in a flood. Orphans after a failed release have a
	// separate bound: a server that hangs then does not delay the others.
	reapAtOnce      = 256
	reapAgainAtOnce = 64
	// reapMost bounds how many orphans there are: some 10 MB.
	reapMost = 1 << 15
	// reapPause is the first pause between two releases of an orphan, unless a
	// third of its TTL is shorter. Later pauses are a third of the time since the
	// first release, and at most reapPauseMost.
	reapPause     = 10 * time.Second
	reapPauseMost = time.Minute
	// lateMost is for how long a request is taken to be on its way at the most:
	// for about as long Linux sends data again that a peer does not acknowledge
	// (tcp(7), tcp_retries2).
	lateMost = 15 * time.Minute
)

// reaper releases locks that may still become ours: the orphans of a Table. An orphan
// is the owner of a request with an unknown outcome. A try that was delayed on the way
// can be executed long after its caller has gone, and would then hold the lock for a
// whole TTL. So no other request uses the owner again. The reaper releases it at once,
// again after pauses that grow, and whenever a try finds it as the holder. To release
// an owner that holds nothing does nothing.
//
// The reaper forgets an orphan after one TTL, or when the store has answered and no
// request can be on its way any more (lateMost): at the earlier of the two instants.
//
// Lock order: a shard's mutex, then this mutex, then the mutex of the timers. No work
// under this mutex takes longer with more orphans.
type reaper struct {
	table  *Table
	store  driver.Store
	clock  *clock.Clock
	start  func(func()) // runs a release
	timers timers.Scheduler[*orphan]

	mu      sync.Mutex
	orphans map[string]*orphan // by owner
	most    int                // how many there may be
	first   lane               // never released yet, or the last release was answered
	again   lane               // the last release failed
	paused  orphanList         // failed, and not due yet
	full    logs.Throttle
	closed  bool
}

// lane is a part of the releases with a separate bound.
type lane struct {
	busy int        // releases under way
	most int        // how many of these there may be
	due  orphanList // orphans that wait until fewer are under way
}

// orphan is an owner that must not hold its lock. It is scheduled, or its release is
// under way. An orphan that waits in its lane is scheduled for its end.
type orphan struct {
	timers.Slot
	links

	key, owner string
	kind       driver.Kind
	atMost     int
	ttl        time.Duration
	token      int64         // the last given out under the owner
	news       bool          // the store may not know the token
	from       clock.Instant // before it nothing is released; zero is now

	when      times
	failed    bool // its last release did
	releasing bool // its release is under way
}

// times are when the reaper has to do with an orphan.
//
// Invariant: began is not after until. The reaper sets all when it takes the orphan.
type times struct {
	began clock.Instant // from when it may be released
	next  clock.Instant // when to release it again
	until clock.Instant // when to forget it
}

func (r *reaper) init(t *Table) {
	r.table, r.store, r.clock, r.start = t, t.store.Store, &t.Clock, t.life.work.Go
	r.timers.Clock, r.timers.Go, r.timers.Serve = &t.Clock, t.life.work.Go, r.serve
	r.orphans, r.most = make(map[string]*orphan), reapMost
	r.first.most, r.again.most = reapAtOnce, reapAgainAtOnce
}

// add gives an owner to the reaper.
func (r *reaper) add(o *orphan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	o.when.began = max(now, o.from)
	o.when.next, o.when.until = o.when.began, o.when.began.Add(o.ttl)
	if old := r.orphans[o.owner]; old != nil {
		old.when.began, old.when.next, old.when.until = o.when.began, o.when.next, o.when.until
		o = old
	} else if len(r.orphans) >= r.most && !r.makeRoom() {
		return
	}
	r.orphans[o.owner] = o
	r.plan(o)
	if r.closed {
		r.sendLast(o, now)
	}
}

// reap reports whether a list of holders, separated by commas, has an orphan, and if so
// releases it now.
func (r *reaper) reap(key, holders string) (found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	for holders != "" {
		var holder string
		holder, holders, _ = strings.Cut(holders, ",")
		o := r.orphans[holder]
		if o == nil || o.key != key || o.from > now {
			continue
		}
		if o.list != &r.lane(o).due { // else its turn comes when others are answered
			o.when.next = now
			r.plan(o)
		}
		found = true
	}
	return found
}

// stop releases the orphans that are due, and ends the schedule. An orphan that is added later is
// released once, so that a process that ends right after a failed request leaves no lock:
// Close waits for these releases.
func (r *reaper) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.timers.Stop()
	now := r.clock.Now()
	for _, o := range r.orphans {
		r.sendLast(o, now)
	}
}

// serve releases the orphans that are due, as many as may be under way at once.
func (r *reaper) serve(batch []*orphan, now clock.Instant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range batch {
		switch l := r.lane(o); {
		case r.closed || o.releasing || r.orphans[o.owner] != o:
			// Sent, or forgotten, after the timers took it out.
		case now >= o.when.until:
			r.forget(o)
		case now < o.when.next:
			r.plan(o) // it was put off after the timers took it out
		case l.busy < l.most:
			r.send(o, l, now)
		default:
			o.moveTo(&l.due)
			r.timers.Schedule(o, o.when.until, 0)
		}
	}
}

// release sends one release in a lane. Each is on its own: a server that hangs
// delays no other.
func (r *reaper) release(o *orphan, l *lane) {
	// An error is no news here: it is released again, or its TTL ends.
	_, err := r.store.Release(context.Background(), driver.ReleaseRequest{
		Key: o.key, Owner: o.owner, Kind: o.kind, AtMost: o.atMost, TTL: o.ttl, Token: o.token, Remember: o.news,
		Deadline: time.Now().Add(min(o.ttl/3, releaseWait)),
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	o.releasing, o.failed = false, err != nil && !errors.Is(err, driver.ErrNotOwner)
	if !o.failed {
		// The lock that it may have held is free. From here only a late request can take it.
		o.when.until = min(o.when.until, now.Add(lateMost))
	}
	l.busy--
	if r.closed {
		r.forget(o)
	} else {
		r.plan(o)
	}
	if r.closed && o.failed {
		return // a server that does not answer keeps the rest until their TTLs end
	}
	for l.busy < l.most && l.due.first != nil {
		if next := l.due.first; now < next.when.until {
			r.send(next, l, now)
		} else {
			r.forget(next)
		}
	}
}

// The methods below are called with r.mu held.

// lane is where the next release of an orphan counts.
func (r *reaper) lane(o *orphan) *lane {
	if o.failed {
		return &r.again
	}
	return &r.first
}

// plan schedules the next release of an orphan, unless one is under way, which does
// that when it is over.
func (r *reaper) plan(o *orphan) {
	if o.releasing {
		return
	}
	if o.failed {
		o.moveTo(&r.paused)
	} else {
		o.moveTo(nil)
	}
	r.timers.Schedule(o, min(o.when.next, o.when.until), 0)
}

// send begins a release.
func (r *reaper) send(o *orphan, l *lane, now clock.Instant) {
	o.moveTo(nil)
	r.timers.Cancel(o)
	o.releasing = true
	pause := max(min(o.ttl/3, reapPause), min(now.Sub(o.when.began)/3, reapPauseMost), time.Millisecond)
	o.when.next = now.Add(pause)
	l.busy++
	r.start(func() { r.release(o, l) })
}

// sendLast releases an orphan after the end of the schedule, if it is due.
func (r *reaper) sendLast(o *orphan, now clock.Instant) {
	switch l := r.lane(o); {
	case o.releasing || o.list == &l.due || now < o.when.next || now >= o.when.until:
	case l.busy < l.most:
		r.send(o, l, now)
	default:
		o.moveTo(&l.due)
	}
}

// makeRoom forgets an orphan after a failed release, in favour of another. It reports
// whether there was one.
func (r *reaper) makeRoom() bool {
	if n := r.full.Count(time.Now()); n > 0 {
		r.table.Hooks.Log.Warn("interlock: too many requests whose outcome is not known: some locks stay until their TTL ends",
			"requests", n, "most", r.most)
	}
	o := r.paused.last // not among the next to be released
	if o == nil {
		o = r.again.due.last
	}
	if o == nil {
		return false
	}
	r.forget(o)
	return true
}

// forget drops an orphan.
func (r *reaper) forget(o *orphan) {
	o.moveTo(nil)
	r.timers.Cancel(o)
	delete(r.orphans, o.owner)
}

// orphanList has orphans in order of arrival.
type orphanList struct{ first, last *orphan }

// links are the place of an orphan in a list.
type links struct {
	list          *orphanList // nil: in none
	before, after *orphan
}

// moveTo takes an orphan out of its list, and puts it at the end of another, which
// may be nil.
func (o *orphan) moveTo(to *orphanList) {
	if from := o.list; from != nil {
		if o.before == nil {
			from.first = o.after
		} else {
			o.before.after = o.after
		}
		if o.after == nil {
			from.last = o.before
		} else {
			o.after.before = o.before
		}
	}
	o.links = links{list: to}
	if to == nil {
		return
	}
	if o.before = to.last; o.before == nil {
		to.first = o
	} else {
		o.before.after = o
	}
	to.last = o
}
