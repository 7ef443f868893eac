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

// Wait bounds how long Lock waits for a lock that is held: ErrHeld after d.
// Zero does not wait at all, as TryLock. The default is to wait until the
// context ends, for a guard 5 s.
func Wait(d time.Duration) Option {
	return func(c *config) {
		if d < 0 {
			c.fail("Wait(%v): must not be negative; 0 does not wait", d)
			return
		}
		c.wait, c.waitSet = d, true
	}
}

// TTL asks for a fixed lease: it is never renewed and ends by itself after d,
// at least 10 ms. Work that takes longer loses the lock. Without it the lease
// is renewed while the work runs; see Watchdog. Both together are an error.
func TTL(d time.Duration) Option {
	return func(c *config) {
		if d < minTTL {
			c.fail("TTL(%v): must be at least %v", d, minTTL)
			return
		}
		c.ttl = d
	}
}

// Watchdog sets the lease that is renewed, each time a third of it has passed,
// for as long as the lock is held: at least 10 ms, default 30 s. It is how
// long a lock outlives a process that died.
func Watchdog(d time.Duration) Option {
	return func(c *config) {
		if d < minTTL {
			c.fail("Watchdog(%v): must be at least %v", d, minTTL)
			return
		}
		c.watchdog = d
	}
}

// MaxHold bounds how long a renewed lease is held: after d its context ends
// with cause ErrMaxHold and it is no longer renewed, so that a handler that
// hangs cannot keep a lock for ever. Default: no bound.
func MaxHold(d time.Duration) Option {
	return func(c *config) {
		if d <= 0 {
			c.fail("MaxHold(%v): must be positive; leave it out for no bound", d)
			return
		}
		c.maxHold = d
	}
}

// MaxWaiters bounds how many callers of this process wait for one key; one
// more gets ErrQueueFull at once. Default: no bound.
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
// alert somebody. Default: none.
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
