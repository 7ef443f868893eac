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
)

const (
	// maxKey is the length of the longest key, in bytes.
	maxKey = 512
	// releaseWait bounds for how long a release is tried again, so that with
	// the last try it takes two seconds at most by default. What is not done by
	// then the janitor does.
	releaseWait = time.Second
	// shardCount spreads the keys of a locker over mutexes.
	shardCount = 64
)

// Locker takes locks from a Store. It keeps the local queue of each key, renews
// the leases it has given out, and cleans up after requests whose outcome
// stayed unknown. Use one for a process and store; it is safe for concurrent
// use. Close it at the end.
type Locker struct {
	store Store
	base  config
	clock clock
	id    string // of 128 random bits: the first half of every owner
	seq   atomic.Uint64

	seed   maphash.Seed
	shards [shardCount]shard
	knocks sync.Pool // channels of turns that have slept

	dog     watchdog
	janitor janitor

	closed  atomic.Bool
	turns   atomic.Int64 // granted and not yet released or lost
	drained drained
	work    background
	panics  thinned // of callbacks
}

// New makes a Locker on a store. The options become the defaults of all its
// locks. It returns ErrConfig for a nil store or a bad option.
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
		clock: newClock(),
		id:    hex.EncodeToString(id[:]),
		seed:  maphash.MakeSeed(),
	}
	for i := range l.shards {
		l.shards[i].locker, l.shards[i].entries = l, make(map[string]*entry)
	}
	l.dog.init(l)
	l.janitor.init(l)
	return l, nil
}

// Lock takes the lock of a key, waiting for whoever holds it: by default until
// ctx ends, with Wait for a bounded time. The lease it returns is renewed until
// it is released, or with TTL ends by itself. Under the context of a lease that
// already holds the key, it adds a hold without asking the store; see Lease.
//
// It returns ErrHeld when the wait was over, ErrQueueFull, ErrUnavailable,
// ErrNotReplicated, ErrClosed, ErrKey, ErrConfig, ErrLost or ErrMaxHold when ctx
// belongs to a lease of the key that was lost, and the cause of ctx when that
// ended first. After an error the caller holds nothing, and clean-up of what
// may still be on the way is not its concern.
func (l *Locker) Lock(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	c, err := l.callConfig(opts)
	if err != nil {
		return nil, err
	}
	return l.lockOne(ctx, key, c)
}

// TryLock is Lock without waiting: ErrHeld if anybody holds the lock or waits
// for it in this process.
func (l *Locker) TryLock(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	c, err := l.base.with(scopeCall, opts)
	if err != nil {
		return nil, err
	}
	c.wait = 0
	return l.lockOne(ctx, key, &c)
}

// LockAll takes the locks of several keys, all or none, in sorted order and
// each once, so that two callers with the same keys cannot wait for each other.
// Wait bounds the whole; a fixed TTL counts for all keys from the last grant.
// The lease it returns is lost when one of its locks is.
//
// A caller whose context already holds other keys can still meet another in the
// opposite order. Such a wait is therefore bounded (NestedWait, default 5 s);
// on ErrHeld release everything and start again, better with one LockAll.
func (l *Locker) LockAll(ctx context.Context, keys []string, opts ...Option) (*Lease, error) {
	c, err := l.callConfig(opts)
	if err != nil {
		return nil, err
	}
	return l.lockWith(ctx, keys, c)
}

// Do takes the lock, runs fn under the lease's context and releases the lock,
// also when fn panics. It returns the error of the lock or of fn, and ErrLost
// (ErrMaxHold) joined to it when the lease was lost before fn returned: what fn
// did then may have overlapped with another holder.
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
	// Held says that the lock is held by a caller of this process.
	Held bool
	// Since is when the present holder got it.
	Since time.Time
	// Token is the fencing token of the present holder.
	Token int64
	// Rule is the name under which it was taken.
	Rule string
	// Holds is how often it was entered.
	Holds int
	// Waiters is how many callers of this process wait for it.
	Waiters int
}

// Held lists the locks that this process holds or waits for, sorted by key: a
// picture for debugging, not a basis for decisions.
func (l *Locker) Held() []Holding {
	var all []Holding
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		for _, e := range sh.entries {
			h := Holding{Key: e.key, Waiters: int(e.n)}
			if e.ten != nil && e.ten.cur != nil {
				t := e.ten.cur
				h.Held, h.Since, h.Token = true, l.clock.time(t.since), t.token
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

// Close drains the locker: new locks and queued callers get ErrClosed at once,
// holders may re-enter, and their leases are renewed until the last is released
// or ctx ends. Then the contexts that remain are ended with cause ErrClosed and
// nothing is renewed any more; the keys of handlers that still run are left to
// their TTL, never deleted. It returns the cause of ctx in that case. The store
// is not closed. Calling it again, also at the same time, waits again; the first of
// the contexts that ends, ends the wait for all.
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
	l.janitor.stop()
	l.work.wait(ctx) // else requests on their way end by their own deadlines
	return err
}

// background counts what a locker has under way: goroutines, and requests to the
// store. It differs from sync.WaitGroup in that one may begin while another
// waits.
type background struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // made by who waits
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

// owner names a tenure: who holds a lock in the store.
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
		return fmt.Errorf("%w: empty; everybody would share one lock", ErrKey)
	case len(key) > maxKey:
		return fmt.Errorf("%w: %d bytes; at most %d are accepted", ErrKey, len(key), maxKey)
	}
	return nil
}

// drift is what a lease is shortened by on this side, since two clocks do not
// run at the same rate: 1 % of it and 2 ms (Redlock, "Is the algorithm
// asynchronous?"; the figures are those of its reference implementations).
func drift(lease time.Duration) time.Duration {
	return lease/100 + 2*time.Millisecond
}
