package lock

import (
	"context"
	"hash/maphash"
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
	// ID is the name of the process among the processes that use the store: 128 random
	// bits, the first half of every owner.
	ID string
	// Hooks are set by the owner of the Table before the first call.
	Hooks Hooks

	store    store
	owners   owners
	calls    subscription
	pace     pace
	keys     keys
	pools    pools
	watchdog watchdog
	reaper   reaper
	registry registry
	unserved logs.Throttle // callers of a store that is not ready
	life     life
}

// Hooks are how a Table reports to its owner.
type Hooks struct {
	// Observed says to tell holders of renewals.
	Observed bool
	Log      *logs.Log
	// Refused, unless nil, is called when the store has refused a request of a kind, since
	// owners hold the lock. It does not block.
	Refused func(key string, kind driver.Kind, owners Owners)
	// Invalid, for tests, takes the broken rule of a lock after an event.
	Invalid func(error)
}

// store is the store of a Table. It does not change.
type store struct {
	driver.Store
	turns driver.Turns // the store, if it gives turns
}

// owners are the names that a Table gives to its requests.
type owners struct {
	prefix string        // of the owners: the ID and a colon
	seq    atomic.Uint64 // of the last owner, without the mark attentive
	names  atomic.Pointer[names]
}

// pace is how long the turn of this process among others is. It does not change.
type pace struct {
	time   time.Duration
	grants int
}

// keys are the locks, spread over shards.
type keys struct {
	seed   maphash.Seed
	shards [shardCount]shard
}

// pools have what waiters need that have slept.
type pools struct {
	wakeups sync.Pool // channels
	alarms  sync.Pool // timers, for a bounded time
}

// life is what [Table.Close] ends, and waits for.
//
// Invariant: once closed is true, no hold begins, so holds only falls.
type life struct {
	closed atomic.Bool
	over   atomic.Bool  // no hold goes on
	holds  atomic.Int64 // granted, and not yet released or lost
	empty  broadcast    // no hold is left
	work   background
	behind atomic.Int32 // calls of [Table.Behind] under way
}

// shard is a part of a Table's keys. Its mutex guards everything of them: locks,
// waiters, ownerships and acquisitions. It is held for short work in memory only,
// never over a call of the store or of a Holder.
type shard struct {
	table *Table
	mu    sync.Mutex
	locks map[string]*lock
	spare []*acquisition // for the next keys
	fx    effects        // of the event that happens
}

// NewTable makes a [Table] on a store. The turn of this process among others ends
// after turnTime, or turnCount grants, if other processes wait.
func NewTable(on driver.Store, turnTime time.Duration, turnCount int) *Table {
	t := &Table{
		Clock: clock.New(), ID: ident.New(), Hooks: Hooks{Log: new(logs.Log)},
		store: store{Store: on}, pace: pace{turnTime, turnCount}, keys: keys{seed: maphash.MakeSeed()},
	}
	for i := range t.keys.shards {
		t.keys.shards[i].table, t.keys.shards[i].locks = t, make(map[string]*lock)
	}
	t.owners.prefix = t.ID + ":"
	t.store.turns, _ = on.(driver.Turns)
	t.owners.names.Store(namesOf(t.ID, 0))
	t.watchdog.init(t)
	t.reaper.init(t)
	t.registry.init(t)
	return t
}

func (t *Table) shardOf(key string) *shard {
	return &t.keys.shards[maphash.String(t.keys.seed, key)%shardCount]
}

// owner is the text that identifies an owner in the store.
func (t *Table) owner(seq uint64) string {
	var b [64]byte
	return string(t.appendOwner(b[:0], seq))
}

func (t *Table) appendOwner(b []byte, seq uint64) []byte {
	b = strconv.AppendUint(append(b, t.owners.prefix...), seq&^attentive, 10)
	if seq&attentive != 0 {
		b = append(b, driver.Attentive("")...)
	}
	return b
}

// event runs an event on a lock, and carries its effects out: a shard locks, a lock
// changes. happen runs with the mutex held, and changes only memory: it calls a method of
// the lock that has the name of the event. l is nil for the event that finds its lock
// itself ([effects.lock]).
func (sh *shard) event(l *lock, happen func(fx *effects)) {
	sh.mu.Lock()
	sh.fx.lock = l
	happen(&sh.fx)
	sh.apply(&sh.fx)
	fx, t := sh.fx, sh.table
	sh.fx = effects{}
	if t.Hooks.Invalid != nil {
		if err := fx.lock.valid(); err != nil {
			t.Hooks.Invalid(err)
		}
	}
	sh.mu.Unlock()

	if fx.wakes.handed != nil {
		wake(fx.wakes.wakeup, handedOff)
	}
	if fx.listens {
		t.listen()
	}
	for x := fx.calls.loss; x != nil; x = x.next {
		x.holder.Holder.Lost(x.holder, x.reason, x.cause, x.err)
	}
	for _, w := range fx.calls.wanted {
		w.Holder.Wanted(w)
	}
	if fx.calls.superseded != nil {
		fx.calls.superseded.Holder.Superseded(fx.calls.superseded)
	}
	if own := fx.sends.question; own != nil {
		t.life.work.Go(func() { t.askWhetherNewer(own) })
	}
	if fx.sends.orphan != nil {
		t.reaper.add(fx.sends.orphan)
	}
	if own := fx.sends.release; own != nil {
		go func() {
			defer t.life.work.done()
			_ = t.sendRelease(context.Background(), own, "") // the reaper does it again
		}()
	}
	if l := fx.lock; fx.sends.decline {
		t.life.work.Go(func() { t.decline(l) })
	}
	if fx.sends.passOn != 0 {
		t.passOn(fx.lock.key, fx.sends.passOn)
	}
	if fx.unserved != nil {
		// No other code logs it: the caller gets no error for as long as it waits.
		if n := t.unserved.Count(time.Now()); n > 0 {
			t.Hooks.Log.Warn("interlock: the lock store is not ready, and callers wait for it", "tries", n, "error", fx.unserved)
		}
	}
	if fx.ended {
		t.ended()
	}
	for x := fx.calls.loss; x != nil; x = x.next {
		if x.ended {
			t.ended()
		}
	}
}

// apply does the first part of the effects of an event, under the shard's mutex.
func (sh *shard) apply(fx *effects) {
	t, l := sh.table, fx.lock
	if fx.cancel != nil {
		t.watchdog.events.Cancel(fx.cancel)
	}
	if fx.schedule != nil {
		at, tolerance := fx.schedule.nextEvent()
		t.watchdog.events.Schedule(fx.schedule, at, tolerance)
	}
	if fx.more != 0 {
		t.life.holds.Add(fx.more)
	}
	if fx.asks || fx.sends.release != nil {
		t.life.work.begin() // here, so that Close waits for it
	}
	if fx.wakes.handed != nil {
		fx.wakes.wakeup = fx.wakes.handed.wakeup // the waiter lets go of it once it is awake
	}
	for _, w := range fx.wakes.joined {
		wake(w.wakeup, handedOff)
	}
	if fx.wakes.look == nil && l.acq != nil && l.acq.tries.kind == driver.Permit {
		// Many events can let another waiter ask: a grant, a release, a caller that has left.
		fx.wakes.look = l.nextToAsk()
	}
	if fx.wakes.look != nil {
		wake(fx.wakes.look.wakeup, lookAgain)
	}
	if fx.wakes.next != nil {
		wake(fx.wakes.next.wakeup, lookAgain)
	}
	for w := fx.wakes.failed; w != nil; {
		next := w.next
		w.next = nil
		wake(w.wakeup, lookAgain)
		w = next
	}
	if l.phase != idle || l.places != nil || sh.locks[l.key] != l {
		return
	}
	if l.listing.leaving == 0 || t.life.closed.Load() {
		delete(sh.locks, l.key) // nothing has to be remembered of the lock
	}
	if l.acq != nil {
		l.forgetAcquisition()
	}
}

// ended is called for every hold that has ended.
func (t *Table) ended() {
	if t.life.holds.Add(-1) == 0 && t.life.closed.Load() {
		t.life.empty.tell()
	}
}

// effects are the actions of an event outside of its lock. The shard wakes waiters and schedules
// while it has the mutex, and calls holders and sends requests after it; see [shard.event].
type effects struct {
	lock  *lock
	wakes wakes
	calls calls
	sends sends

	schedule *ownership // its next event is at another time
	cancel   *ownership // it has none any more
	asks     bool       // a try begins
	more     int64      // so many holds more
	ended    bool       // there is one hold less
	listens  bool       // a caller waits that the store is to call
	unserved error      // why the store has not served a caller that waits for long for a second
}

// wakes are the waiters that an event wakes.
type wakes struct {
	look   *Waiter     // has to look again
	next   *Waiter     // may ask at the same time as another waiter, and has to look
	failed *Waiter     // this and all that follow it have failed
	joined []*Waiter   // hold the lock, together with handed
	handed *Waiter     // holds the lock
	wakeup chan wakeup // of handed, which is woken last
}

// calls are the calls of holders.
type calls struct {
	loss       *loss
	wanted     []*Waiter // are notified that others wait
	superseded *Waiter   // is notified that a newer caller waits
}

// sends are the requests to the store, each on its own goroutine.
type sends struct {
	question *ownership // whether a newer caller waits is to be asked
	orphan   *orphan    // for the reaper
	release  *ownership // to be released in the background
	passOn   int64      // the token of an offer that no caller here wants
	decline  bool       // the process is to leave the list of those waiting
}

// loss is a lease that cannot be trusted any more.
type loss struct {
	holder *Waiter
	reason Reason // zero: told before
	cause  error
	err    error // of the last renewal
	ended  bool  // there is one hold less
	next   *loss // of another holder
}

// lost adds a loss.
func (fx *effects) lost(x *loss) { x.next, fx.calls.loss = fx.calls.loss, x }

// background counts what a Table has under way: goroutines, and requests to the
// store. Unlike with sync.WaitGroup, one may begin while another goroutine waits.
type background struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // made by the first that waits
}

// Go runs f on a new goroutine.
func (b *background) Go(f func()) {
	b.begin()
	go func() {
		defer b.done()
		f()
	}()
}

func (b *background) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
}

func (b *background) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n--
	if b.n == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
}
