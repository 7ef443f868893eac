package core

import (
	"fmt"
	"time"
)

// Option changes how locks are taken. New, Serialize (NewGuard) and Lock take
// the same options: what a call says overrides its rule, and the rule
// overrides the locker. Each option states its default.
type Option func(*config)

// config is the sum of the options that apply to a lock. It is immutable once
// made, and shared by all the calls that give no options of their own.
type config struct {
	scope scope
	err   error // the first bad option; reported by whoever applies them

	watchdog   time.Duration // renewed lease; 0 when ttl is set
	ttl        time.Duration // fixed lease
	wait       time.Duration // 0: do not wait; negative: until the context ends
	waitSet    bool
	maxHold    time.Duration
	maxWaiters int
	name       string
	onLost     func(Loss)

	// For the locker alone.
	observer  Observer
	turnTime  time.Duration
	turnCount int
	heldWait  time.Duration

	guard guardConfig // for a rule alone; see guard.go
}

// scope is where an option list was given.
type scope int

const (
	scopeLocker scope = iota
	scopeRule
	scopeCall
)

const (
	// minTTL is the shortest lease. Below it, scheduling alone makes a lease
	// useless.
	minTTL = 10 * time.Millisecond
	// maxTTL is the longest lease, maxTime the longest of other times: far from
	// where sums of times overflow, here and in stores, and more than a lock that
	// was forgotten should last.
	maxTTL  = 31 * 24 * time.Hour
	maxTime = 366 * 24 * time.Hour

	defaultWatchdog  = 30 * time.Second
	defaultHeldWait  = 5 * time.Second
	defaultTurnTime  = 20 * time.Millisecond
	defaultTurnCount = 10_000

	waitForever = time.Duration(-1)
)

func defaultConfig() config {
	return config{
		watchdog:  defaultWatchdog,
		wait:      waitForever,
		turnTime:  defaultTurnTime,
		turnCount: defaultTurnCount,
		heldWait:  defaultHeldWait,
	}
}

// with returns c changed by the options, or the first error among them.
func (c config) with(at scope, opts []Option) (config, error) {
	base := c
	c.scope, c.err = at, nil
	c.ttl, c.watchdog = 0, 0
	for _, o := range opts {
		if o != nil {
			o(&c)
		}
	}
	switch {
	case c.err != nil:
		return c, c.err
	case c.ttl > 0 && c.watchdog > 0:
		return c, fmt.Errorf("%w: TTL and Watchdog together: a fixed lease is not renewed; give one of them", ErrConfig)
	case c.ttl == 0 && c.watchdog == 0:
		c.ttl, c.watchdog = base.ttl, base.watchdog
	}
	return c, nil
}

// lease is how long the store keeps the lock without hearing of it.
func (c *config) lease() time.Duration {
	if c.ttl > 0 {
		return c.ttl
	}
	return c.watchdog
}

func (c *config) fixed() bool { return c.ttl > 0 }

func (c *config) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
}

// lockerOnly reports whether the option may be given here, and notes the error
// if not.
func (c *config) lockerOnly(name string) bool {
	if c.scope != scopeLocker {
		c.fail("%s is an option of New only", name)
		return false
	}
	return true
}

// Wait bounds how long Lock waits for a lock that is held: ErrHeld after d, at
// most 366 days. Zero does not wait at all, as TryLock. The default is to wait
// until the context ends, for a guard 5 s.
func Wait(d time.Duration) Option {
	return func(c *config) {
		if d < 0 {
			c.fail("Wait(%v): must not be negative; 0 does not wait", d)
			return
		}
		if d > maxTime {
			c.fail("Wait(%v): must be at most %v (366 days)", d, maxTime)
			return
		}
		c.wait, c.waitSet = d, true
	}
}

// TTL asks for a fixed lease, which is never renewed: the lock goes after d, even
// if the work still runs. What other libraries call a TTL or an expiry, and renew,
// is [Watchdog] here.
//
// d is at least 10 ms and at most 31 days. The context of the lease ends a little
// before d (by 1 % and 2 ms), but the lock stays until the store ends it, or
// [Lease.Release]: nothing else gets it before d is over. Work that cannot be
// interrupted, and takes less than d for certain, overlaps with none. Together with
// Watchdog it is an error.
//
// If the process cannot tell whether an acquire reached the store, it takes the
// lock back for as long as requests can be late: up to 15 minutes after the store
// has answered again. A request that arrives even later keeps the lock for d.
func TTL(d time.Duration) Option {
	return func(c *config) {
		if d < minTTL || d > maxTTL {
			c.fail("TTL(%v): must be at least %v and at most %v (31 days)", d, minTTL, maxTTL)
			return
		}
		c.ttl = d
	}
}

// Watchdog sets the lease that is renewed, each time a third of it has passed,
// for as long as the lock is held: at least 10 ms and at most 31 days, default
// 30 s. It is how long a lock outlives a process that died, and so what other
// libraries call the TTL or the expiry of a lock.
func Watchdog(d time.Duration) Option {
	return func(c *config) {
		if d < minTTL || d > maxTTL {
			c.fail("Watchdog(%v): must be at least %v and at most %v (31 days)", d, minTTL, maxTTL)
			return
		}
		c.watchdog = d
	}
}

// MaxHold bounds how long a renewed lease is held: after d its context ends
// with cause ErrMaxHold and it is no longer renewed, so that a handler that
// hangs cannot keep a lock for ever: the lock goes when the handler releases it,
// or with what is left of its lease. d is at most 366 days. Default: no bound.
func MaxHold(d time.Duration) Option {
	return func(c *config) {
		if d <= 0 {
			c.fail("MaxHold(%v): must be positive; leave it out for no bound", d)
			return
		}
		if d > maxTime {
			c.fail("MaxHold(%v): must be at most %v (366 days); leave it out for no bound", d, maxTime)
			return
		}
		c.maxHold = d
	}
}

// MaxWaiters bounds how many callers of this process wait for one key, behind its
// holder; one more gets ErrQueueFull at once. The caller that asks the store at the
// moment does not count, unless the store has said that another process holds the
// lock. Default: no bound.
func MaxWaiters(n int) Option {
	return func(c *config) {
		if n < 1 {
			c.fail("MaxWaiters(%d): must be at least 1; Wait(0) does not wait", n)
			return
		}
		c.maxWaiters = n
	}
}

// Name names the rule or the lock for observers: a label of low cardinality,
// never a key. Default: a guard's template, else empty.
func Name(s string) Option {
	return func(c *config) { c.name = s }
}

// OnLost sets a function that is called, on a goroutine of its own, whenever a
// lease is lost: while it is held, after its context has ended, or when its
// release finds that the lock was somebody else's already. It is the place to
// alert somebody. If f panics, the panic is logged through slog.Default with its
// stack, at most once a second, and ends there. Default: none.
func OnLost(f func(Loss)) Option {
	return func(c *config) { c.onLost = f }
}

// WithObserver sets who is told what happens to locks. Default: nobody. For
// New only.
func WithObserver(o Observer) Option {
	return func(c *config) {
		if c.lockerOnly("WithObserver") {
			c.observer = o
		}
	}
}

// Turn bounds how long, and for how many grants, one process passes a lock
// among its own waiters before it looks whether other processes wait for it,
// and lets them have it if so. Default: 20 ms, 10,000 grants. A longer turn is
// more throughput on a hot key, a shorter one less wait for other processes.
// For New only.
func Turn(d time.Duration, grants int) Option {
	return func(c *config) {
		if !c.lockerOnly("Turn") {
			return
		}
		if d <= 0 || grants < 1 {
			c.fail("Turn(%v, %d): both must be positive", d, grants)
			return
		}
		c.turnTime, c.turnCount = d, grants
	}
}

// NestedWait bounds the wait for a further lock while the context already
// holds one, whatever Wait says, so that two callers that widen their locks
// against each other end with ErrHeld instead of waiting for ever. Default
// 5 s. For New only.
func NestedWait(d time.Duration) Option {
	return func(c *config) {
		if !c.lockerOnly("NestedWait") {
			return
		}
		if d <= 0 {
			c.fail("NestedWait(%v): must be positive", d)
			return
		}
		c.heldWait = d
	}
}
