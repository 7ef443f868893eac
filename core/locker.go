package core

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
)

const (
	// maxKey is the length of the longest key, in bytes.
	maxKey = 512
	// releaseWait bounds for how long a release is tried again, so that with
	// the last try it takes two seconds at most by default. What is not done by
	// then the reaper does.
	releaseWait = time.Second
	// shardCount spreads the keys of a locker over mutexes.
	shardCount = 64
)

// Locker takes locks from a [Store]. It keeps the queue of local callers for each
// key, renews the leases that it has granted, and cleans up after requests whose
// outcome is unknown. Make it with [New]; the zero value is not usable.
//
// Use one Locker for a process and a store: only callers of the same Locker share a
// queue, re-enter each other's locks and hand locks over in memory. A Locker is
// safe for concurrent use. Call [Locker.Close] at the end.
type Locker struct {
	store Store
	base  config
	clock clock.Clock
	id    string // of 128 random bits: the first half of every owner
	seq   atomic.Uint64

	seed   maphash.Seed
	shards [shardCount]shard
	knocks sync.Pool // channels of turns that have slept

	dog    watchdog
	reaper reaper

	closed  atomic.Bool
	turns   atomic.Int64 // granted and not yet released or lost
	drained drained
	work    background
	panics  thinned // of callbacks
}

// New makes a [Locker] on a store. The options become the defaults of all its locks
// and of the guards made with it; see [Option].
//
// New returns an error that matches [ErrConfig] for a nil store or an option that
// cannot work. It does not contact the store.
func New(store Store, opts ...Option) (*Locker, error) {
	if store == nil {
		return nil, fmt.Errorf("%w: store is nil; redisstore.New makes one", ErrConfig)
	}
	base, err := defaultConfig().with(scopeLocker, opts)
	if err != nil {
		return nil, err
	}
	var id [16]byte
	rand.Read(id[:]) // never fails (crypto/rand, Go 1.24)
	l := &Locker{
		store: store,
		base:  base,
		clock: clock.New(),
		id:    hex.EncodeToString(id[:]),
		seed:  maphash.MakeSeed(),
	}
	for i := range l.shards {
		l.shards[i].locker, l.shards[i].entries = l, make(map[string]*entry)
	}
	l.dog.init(l)
	l.reaper.init(l)
	return l, nil
}

// Lock takes the lock of a key. While the lock is held elsewhere, Lock waits: by
// default until ctx ends, with [Wait] for a bounded time. The locker renews the
// lease that Lock returns until the caller releases it with [Lease.Release]; with
// [TTL] the lease ends by itself. A key has 1 to 512 bytes.
//
// If ctx is, or derives from, the context of a lease that holds the key already,
// Lock adds a hold and does not ask the store; see [Lease].
//
// If Lock returns an error, the caller holds nothing and has nothing to clean up.
// The error matches one of these:
//
//   - [ErrHeld]: the wait was over. [ErrQueueFull] matches it too: [MaxWaiters]
//     callers waited already.
//   - [ErrUnavailable], [ErrNotReplicated], [ErrKeyOccupied]: the store failed.
//   - [ErrClosed]: the locker is closing.
//   - [ErrKey], [ErrConfig]: the key is empty or too long, or an option cannot
//     work.
//   - [ErrLost], [ErrMaxHold]: ctx belongs to a lease of this key that was
//     lost.
//   - [context.Cause] of ctx: ctx ended first.
func (l *Locker) Lock(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	c, err := l.callConfig(opts)
	if err != nil {
		return nil, err
	}
	return l.lockOne(ctx, key, c)
}

// TryLock is [Locker.Lock] without waiting for the holder; an option [Wait] has no
// effect. It returns [ErrHeld] at once if the lock is held, or if another caller of
// this process waits for it, asks for it or is releasing it. It does wait for the
// store's answer. If the store answers that it is not ready ([ErrNotReady]),
// TryLock tries again for 250 ms.
func (l *Locker) TryLock(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	c, err := l.base.with(scopeCall, opts)
	if err != nil {
		return nil, err
	}
	c.wait = 0
	return l.lockOne(ctx, key, &c)
}

// LockAll takes the locks of several keys, all of them or none. It takes each key
// once, in sorted order, so that two callers with the same keys cannot wait for
// each other. [Wait] bounds the time for all keys together. A fixed lease ([TTL])
// counts for all keys from the last grant. The lease that LockAll returns is lost
// when one of its locks is lost. With one key it is [Locker.Lock]; with no key it
// returns [ErrKey]. Its other errors are those of [Locker.Lock].
//
// A caller whose context already holds other keys can still meet a caller that
// takes them in the opposite order. Such a wait is therefore bounded ([NestedWait],
// default 5 s). On [ErrHeld] release all locks and start again, better with one
// LockAll for all keys.
func (l *Locker) LockAll(ctx context.Context, keys []string, opts ...Option) (*Lease, error) {
	c, err := l.callConfig(opts)
	if err != nil {
		return nil, err
	}
	return l.lockWith(ctx, keys, c)
}

// Do takes the lock of a key, runs fn under [Lease.Context] and releases the lock,
// also when fn panics. It returns the error of [Locker.Lock] or the error of fn. If
// the lease was lost before fn returned, [ErrLost] (or [ErrMaxHold]) is joined to
// it: what fn did may overlap with another holder. An error of the release goes to
// the [Observer] only.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...Option) error {
	lease, err := l.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	defer lease.Release(ctx) // its error is told to the observer; a loss is read from Err below
	err = fn(lease.Context())
	if lost := lease.Err(); lost != nil && !errors.Is(lost, ErrReleased) && !errors.Is(err, lost) {
		err = errors.Join(err, lost)
	}
	return err
}

// Holding describes one lock that this process holds or waits for.
type Holding struct {
	// Key is the lock's key.
	Key string
	// Held says that a caller of this process holds the lock.
	Held bool
	// Since is when the present holder got the lock; the zero time if Held is
	// false.
	Since time.Time
	// Token is the fencing token of the present holder; 0 if Held is false.
	Token int64
	// Rule is the name under which the lock was taken ([Name], or the guard's); it
	// may be empty.
	Rule string
	// Holds is how many holds the lock has: 1, and one more for each re-entry.
	Holds int
	// Waiters is how many callers of this process wait for the lock.
	Waiters int
}

// Held lists the locks that this process holds or waits for, sorted by key. The
// list can be out of date when it is returned: use it for debugging, not for
// decisions.
func (l *Locker) Held() []Holding {
	var all []Holding
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		for _, e := range sh.entries {
			h := Holding{Key: e.key, Waiters: int(e.n)}
			if e.ten != nil && e.ten.cur != nil {
				t := e.ten.cur
				h.Held, h.Since, h.Token = true, l.clock.Time(t.since), t.token
				h.Rule, h.Holds = t.cfg.name, int(t.holds)
			}
			if h.Held || h.Waiters > 0 {
				all = append(all, h)
			}
		}
		sh.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Holding) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	return all
}

// Close drains the locker. New calls and waiting callers get [ErrClosed] at once.
// Holders may re-enter their locks, and the locker renews their leases until the
// last lock is released or ctx ends.
//
// If ctx ends first, Close ends the contexts of the remaining leases with cause
// [ErrClosed], stops all renewals and returns an error that matches the cause of
// ctx. It does not delete the keys of handlers that still run: those locks end with
// their leases.
//
// Close does not close the store. It may be called again, also at the same time:
// each call waits, and the first of their contexts that ends, ends the wait for all
// calls.
func (l *Locker) Close(ctx context.Context) error {
	l.closed.Store(true)
	// A caller that saw the locker open has pushed its turn under the shard's
	// mutex by the time we get that mutex; one that comes later sees it closed.
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		for _, e := range sh.entries {
			e.failAll(ErrClosed)
			if e.ten != nil && e.ten.cur == nil {
				e.giveUp(e.ten) // it was kept for one of those
			}
			e.drop()
		}
		sh.mu.Unlock()
	}
	var err error
	for l.turns.Load() > 0 && err == nil {
		select {
		case <-l.drained.next(&l.turns):
		case <-ctx.Done():
			err = fmt.Errorf("interlock: closing with %d locks held: %w", l.turns.Load(), context.Cause(ctx))
		}
	}
	l.abandonAll()
	l.dog.stop()
	l.reaper.stop()
	l.work.wait(ctx) // else requests on their way end by their own deadlines
	return err
}

// background counts what a locker has under way: goroutines, and requests to the
// store. Unlike with sync.WaitGroup, one may begin while another goroutine waits.
type background struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // made by the first that waits
}

// Go runs f on a goroutine of its own.
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

// wait returns when none is left or ctx has ended.
func (b *background) wait(ctx context.Context) {
	b.mu.Lock()
	if b.n == 0 {
		b.mu.Unlock()
		return
	}
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	idle := b.idle
	b.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// ended is called for every turn that is over.
func (l *Locker) ended() {
	if l.turns.Add(-1) == 0 && l.closed.Load() {
		l.drained.tell()
	}
}

// drained tells every Close that waits when no turn is left.
type drained struct {
	mu sync.Mutex
	ch chan struct{} // nil while none waits
}

// next returns a channel that is closed when turns is zero, or has become zero.
func (d *drained) next(turns *atomic.Int64) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ch == nil {
		d.ch = make(chan struct{})
	}
	ch := d.ch
	if turns.Load() <= 0 { // it may have told before there was a channel
		close(ch)
		d.ch = nil
	}
	return ch
}

func (d *drained) tell() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ch != nil {
		close(d.ch)
		d.ch = nil
	}
}

func (l *Locker) shardOf(key string) *shard {
	return &l.shards[maphash.String(l.seed, key)%shardCount]
}

// owner names a tenure: the holder of a lock in the store.
func (l *Locker) owner(seq uint64) string {
	var b [64]byte
	return string(l.appendOwner(b[:0], seq))
}

func (l *Locker) appendOwner(b []byte, seq uint64) []byte {
	b = append(b, l.id...)
	b = append(b, ':')
	return strconv.AppendUint(b, seq, 10)
}

// callConfig is the configuration of a call; without options it is the
// locker's own, not a copy.
func (l *Locker) callConfig(opts []Option) (*config, error) {
	if len(opts) == 0 {
		return &l.base, nil
	}
	c, err := l.base.with(scopeCall, opts)
	if err != nil {
		return nil, err
	}
	return &c, nil
}

// checkKey refuses keys that no store should see.
func checkKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: empty; all callers would share one lock", ErrKey)
	case len(key) > maxKey:
		return fmt.Errorf("%w: %d bytes; at most %d are accepted", ErrKey, len(key), maxKey)
	}
	return nil
}
