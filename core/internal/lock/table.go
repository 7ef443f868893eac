package lock

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/internal/logs"
)

// shardCount spreads the keys of a Table over mutexes.
const shardCount = 64

// Table has the locks of one process on a store. [NewTable] makes one. It is safe
// for concurrent use.
type Table struct {
	// Clock tells the time of all instants.
	Clock clock.Clock
	// ID is the name of the process among those that use the store: 128 random bits,
	// the first half of every owner.
	ID string
	// Observed says to tell holders of renewals. The owner of the Table sets it before
	// the first call.
	Observed bool

	names     [driver.Permit + 1]string // of the process in lists of waiting lockers
	store     driver.Store
	turnTime  time.Duration
	turnCount int

	seq     atomic.Uint64 // of owners
	seed    maphash.Seed
	shards  [shardCount]shard
	wakeups sync.Pool // channels of waiters that have slept

	renewer  renewer
	reaper   reaper
	registry registry
	unserved logs.Throttle // callers of a store that is not ready

	closed atomic.Bool
	holds  atomic.Int64 // granted, and not yet released or lost
	empty  broadcast    // no hold is left
	work   background
}

// shard is a part of a Table's keys. Its mutex guards everything of them: locks,
// waiters, ownerships and acquisitions. It is held for short work in memory only,
// never over a call of the store or of a Holder.
type shard struct {
	table *Table
	mu    sync.Mutex
	locks map[string]*lock
	spare []*acquisition // for the next keys
}

// NewTable makes a [Table] on a store. The turn of this process among others ends
// after turnTime, or turnCount grants, if other processes wait.
func NewTable(store driver.Store, turnTime time.Duration, turnCount int) *Table {
	t := &Table{
		Clock: clock.New(), ID: ident.New(),
		store: store, turnTime: turnTime, turnCount: turnCount, seed: maphash.MakeSeed(),
	}
	for i := range t.shards {
		t.shards[i].table, t.shards[i].locks = t, make(map[string]*lock)
	}
	t.names = [...]string{driver.Exclusive: t.ID, driver.Shared: "+" + t.ID, driver.Permit: "+" + t.ID}
	t.renewer.init(t)
	t.reaper.init(t)
	t.registry.init(t)
	return t
}

func (t *Table) shardOf(key string) *shard {
	return &t.shards[maphash.String(t.seed, key)%shardCount]
}

// owner is the text that identifies an owner in the store.
func (t *Table) owner(seq uint64) string {
	var b [64]byte
	return string(t.appendOwner(b[:0], seq))
}

func (t *Table) appendOwner(b []byte, seq uint64) []byte {
	b = append(b, t.ID...)
	b = append(b, ':')
	return strconv.AppendUint(b, seq, 10)
}

// apply does the first part of the effects of an event. Called with the shard's
// mutex held.
func (sh *shard) apply(l *lock, fx *effects) {
	t := sh.table
	if fx.cancel != nil {
		t.renewer.cancel(fx.cancel)
	}
	if fx.schedule != nil {
		t.renewer.schedule(fx.schedule)
	}
	if fx.more != 0 {
		t.holds.Add(fx.more)
	}
	if fx.release != nil {
		t.work.begin() // here, so that Close waits for it
	}
	if fx.handed != nil {
		fx.wakeup = fx.handed.wakeup // the waiter lets go of it once it is awake
	}
	for _, w := range fx.joined {
		wake(w.wakeup, handedOff)
	}
	l.invite(fx)
	if fx.look != nil {
		wake(fx.look.wakeup, lookAgain)
	}
	for w := fx.failed; w != nil; {
		next := w.next
		w.next = nil
		wake(w.wakeup, lookAgain)
		w = next
	}
	if l.useless() && sh.locks[l.key] == l {
		delete(sh.locks, l.key)
		if l.acq != nil {
			fx.unwatch = l.acq.unwatch
			l.forgetAcquisition()
		}
	}
}

// run does the second part. Called without the mutex.
func (t *Table) run(l *lock, fx *effects) {
	if fx.handed != nil {
		wake(fx.wakeup, handedOff)
	}
	if fx.unwatch != nil {
		fx.unwatch() // returns at once, waits for no signal
	}
	for x := fx.loss; x != nil; x = x.next {
		x.holder.Holder.Lost(x.holder, x.reason, x.cause, x.err)
	}
	if fx.orphan != nil {
		t.reaper.add(fx.orphan)
	}
	if own := fx.release; own != nil {
		go func() {
			defer t.work.done()
			_ = t.sendRelease(context.Background(), own, "") // the reaper does it again
		}()
	}
	if fx.linger {
		time.AfterFunc(courtesy, l.endCourtesy)
	}
	if fx.unserved != nil {
		// No other code logs it: the caller gets no error for as long as it waits.
		if n := t.unserved.Count(time.Now()); n > 0 {
			slog.Warn("interlock: the lock store is not ready, and callers without a bound wait for it", "tries", n, "error", fx.unserved)
		}
	}
	if fx.ended {
		t.ended()
	}
	for x := fx.loss; x != nil; x = x.next {
		if x.ended {
			t.ended()
		}
	}
}

// endCourtesy forgets the lock if it was kept for nothing else.
func (l *lock) endCourtesy() {
	sh := l.shard
	var fx effects
	sh.mu.Lock()
	l.courteous = false
	sh.apply(l, &fx)
	sh.mu.Unlock()
	sh.table.run(l, &fx)
}

// acquisition returns the lock's acquisition, a new one if it has none. Called with
// the shard's mutex held.
func (l *lock) acquisition() *acquisition {
	if l.acq != nil {
		return l.acq
	}
	sh := l.shard
	if n := len(sh.spare); n > 0 {
		l.acq = sh.spare[n-1]
		sh.spare = sh.spare[:n-1]
	} else {
		l.acq = new(acquisition)
	}
	return l.acq
}

// maxSpare is how many acquisitions a shard keeps for its next keys.
const maxSpare = 16

// forgetAcquisition gives the acquisition up. Called with the shard's mutex held.
func (l *lock) forgetAcquisition() {
	if sh := l.shard; len(sh.spare) < maxSpare {
		*l.acq = acquisition{}
		sh.spare = append(sh.spare, l.acq)
	}
	l.acq = nil
}

// ended is called for every hold that is over.
func (t *Table) ended() {
	if t.holds.Add(-1) == 0 && t.closed.Load() {
		t.empty.tell()
	}
}

// State is what the process knows of one key.
type State struct {
	// Key is the lock's key.
	Key string
	// Holder has the lock; nil if no caller of this process has it. Of several that
	// share one hold in the store it is one.
	Holder Holder
	// Terms are those of Holder.
	Terms *Terms
	// Since, Token and Holds are when it got the lock, its fencing token, and how
	// many holds it has, together with those that share it.
	Since time.Time
	Token int64
	Holds int
	// Deadline is until when its lease is good without another renewal. Renewals is
	// how many renewals the store has confirmed, and LastError the error of the last
	// one; nil if that succeeded.
	Deadline  time.Time
	Renewals  int
	LastError error
	// Waiters is how many callers of this process wait.
	Waiters int
}

// States lists the keys that a caller of this process holds or waits for. A key of
// which the process has several places is there as often; the first of these has the
// number of the waiters.
func (t *Table) States() []State {
	var all []State
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		for _, l := range sh.locks {
			s := State{Key: l.key, Waiters: int(l.n)}
			if l.phase == held && l.own.holder != nil {
				all = append(all, l.own.state(s))
				continue
			}
			for _, own := range l.places.held() {
				all = append(all, own.state(s))
				s.Waiters = 0
			}
			if s.Waiters > 0 {
				all = append(all, s)
			}
		}
		sh.mu.Unlock()
	}
	return all
}

// state describes the ownership, which has a holder.
func (own *ownership) state(s State) State {
	w := own.holder
	clock := &own.lock.shard.table.Clock
	s.Holder, s.Terms, s.Since, s.Token = w.Holder, w.Terms, clock.Time(w.since), w.token
	s.Deadline, s.Renewals, s.LastError = clock.Time(own.deadline()), int(own.renewals), own.lastError()
	for ; w != nil; w = w.next {
		s.Holds += int(w.holds)
	}
	return s
}

// Waiters returns how many callers of this process wait for a key.
func (t *Table) Waiters(key string) int {
	sh := t.shardOf(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l := sh.locks[key]; l != nil {
		return int(l.n)
	}
	return 0
}

// Close ends all waits with [ErrClosed], and waits until no hold is left or ctx has
// ended. Then it ends the holds that are left, with cause ErrClosed. Their keys
// stay: their handlers may be at work, and the TTL is what frees them. Close may be
// called again, also at the same time.
func (t *Table) Close(ctx context.Context) error {
	t.closed.Store(true)
	// A caller that saw the Table open has joined under the shard's mutex by the time
	// we get that mutex; one that comes later sees it closed.
	t.each((*lock).close)
	var err error
	for t.holds.Load() > 0 && err == nil {
		select {
		case <-t.empty.next(&t.holds):
		case <-ctx.Done():
			err = fmt.Errorf("interlock: closing with %d locks held: %w", t.holds.Load(), context.Cause(ctx))
		}
	}
	now := t.Clock.Now()
	t.each(func(l *lock, fx *effects) {
		if l.own != nil {
			l.own.lose(Closed, ErrClosed, now, fx)
		}
		for _, own := range slices.Clone(l.places.held()) {
			own.lose(Closed, ErrClosed, now, fx)
		}
	})
	t.renewer.stop()
	t.reaper.stop()
	t.registry.stop()
	t.work.wait(ctx) // else requests on their way end by their own deadlines
	if err == nil {
		t.registry.withdraw(ctx) // with holds left, the entry says whose they are
	}
	return err
}

// each is an event of all locks.
func (t *Table) each(event func(*lock, *effects)) {
	type pending struct {
		l  *lock
		fx effects
	}
	for i := range t.shards {
		sh := &t.shards[i]
		var all []*pending
		sh.mu.Lock()
		for _, l := range sh.locks {
			p := &pending{l: l}
			event(l, &p.fx)
			sh.apply(l, &p.fx)
			all = append(all, p)
		}
		sh.mu.Unlock()
		for _, p := range all {
			t.run(p.l, &p.fx)
		}
	}
}
