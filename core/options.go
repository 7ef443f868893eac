package core

import (
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/lock"
	"github.com/interlock-go/interlock/core/observe"
)

// Option changes how locks are taken. Every function of this package that takes
// options takes these: [New], [Serialize] ([NewGuard]) and [Locker.Lock]. An option of
// a call overrides the same option of its guard, and an option of a guard overrides the
// same option of the locker.
//
// If an option cannot work, the function that gets it returns an error that matches
// [ErrConfig]. A nil option has no effect. Each option states its default. An option
// that has no meaning in a place has another type, and does not compile there.
type Option interface {
	RequestOption
	TakeOverOption
	GatherOption
	applyToCall(*config)
}

// RequestOption is an option for [New], where it serves all guards, and for a guard
// ([Serialize], [NewGuard]).
type RequestOption interface {
	LockerOption
	GuardOption
}

// LockerOption is an option for [New]. Every [Option] and [RequestOption] is one.
type LockerOption interface{ applyToLocker(*config) }

// GuardOption is an option for a guard ([Serialize], [NewGuard]). Every [Option] and
// [RequestOption] is one.
type GuardOption interface{ applyToGuard(*config) }

// The four kinds of options, by the places that they have a meaning in.
type (
	option        func(*config)
	requestOption func(*config)
	lockerOption  func(*config)
	guardOption   func(*config)
)

func (o option) applyToLocker(c *config)        { o(c) }
func (o option) applyToGuard(c *config)         { o(c) }
func (o option) applyToCall(c *config)          { o(c) }
func (o option) applyToTakeOver(c *config)      { o(c) }
func (o requestOption) applyToLocker(c *config) { o(c) }
func (o requestOption) applyToGuard(c *config)  { o(c) }
func (o lockerOption) applyToLocker(c *config)  { o(c) }
func (o guardOption) applyToGuard(c *config)    { o(c) }

// config is the sum of the options that apply to a lock. It is immutable once made, and
// shared by all the calls without options.
type config struct {
	err error // the first bad option; reported where they are applied

	locker   *Locker
	terms    lock.Terms
	watchdog time.Duration // renewed lease; 0 when ttl is set
	ttl      time.Duration // fixed lease
	waitSet  bool
	kindSet  bool // by an option of this list
	orLock   bool // of a call of TakeOver
	standby  bool // the caller waits to lead
	name     string
	onLost   func(Loss)

	// For the locker alone.
	observer  observe.Observer
	turnTime  time.Duration
	turnCount int
	heldWait  time.Duration
	unlisted  bool
	service   [2]string // name, version

	guard guardConfig // for a guard alone; see guard_options.go
}

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
		terms:     lock.Terms{Wait: waitForever},
		turnTime:  defaultTurnTime,
		turnCount: defaultTurnCount,
		heldWait:  defaultHeldWait,
	}
}

// forLocker, forGuard and forCall return c changed by the options of a place, or the
// first error among them.
func (c config) forLocker(opts []LockerOption) (config, error) {
	base := c
	c.begin()
	for _, o := range opts {
		if o != nil {
			o.applyToLocker(&c)
		}
	}
	if c.terms.Kind.Place() {
		c.fail("Shared and Permits are for a guard or for a call: a locker has no use for them")
	}
	if c.terms.Line != driver.InTurn {
		c.fail("%s is for a guard or for a call: not all locks of a locker are for the newest caller, or for one waiter", lines[c.terms.Line])
	}
	return c, c.finish(&base)
}

func (c config) forGuard(opts []GuardOption) (config, error) {
	base := c
	c.begin()
	for _, o := range opts {
		if o != nil {
			o.applyToGuard(&c)
		}
	}
	return c, c.finish(&base)
}

func (c *config) forCall(opts []Option) (*config, error) {
	call := *c
	call.begin()
	for _, o := range opts {
		if o != nil {
			o.applyToCall(&call)
		}
	}
	return &call, call.finish(c)
}

// begin makes ready for a list of options.
func (c *config) begin() {
	c.err = nil
	c.ttl, c.watchdog, c.kindSet = 0, 0, false
}

// finish sets the values that depend on several options, after all of a list are
// applied. base is the config before them.
func (c *config) finish(base *config) error {
	switch {
	case c.err != nil:
		return c.err
	case c.ttl > 0 && c.watchdog > 0:
		return fmt.Errorf("%w: TTL and Watchdog together: a fixed lease is not renewed; give one of them", ErrConfig)
	case c.ttl == 0 && c.watchdog == 0:
		c.ttl, c.watchdog = base.ttl, base.watchdog
	}
	c.terms.Fixed, c.terms.Lease = c.ttl > 0, max(c.ttl, c.watchdog)
	return c.checkLine()
}

func (c *config) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
}

// set sets a duration, and reports whether it is within its limits.
func (c *config) set(to *time.Duration, option string, d, least, most time.Duration) (ok bool) {
	wrong := clock.Limits(d, least, most)
	if wrong != "" {
		c.fail("%s(%v): %s", option, d, wrong)
		return false
	}
	*to = d
	return true
}

// Wait bounds how long [Locker.Lock] waits for a lock that is held: it returns
// [ErrHeld] after d. d is at most 366 days. Zero does not wait at all, as
// [Locker.TryLock]. Default: Lock waits until the context ends, a guard waits 5 s.
func Wait(d time.Duration) Option {
	return option(func(c *config) { c.waitSet = c.set(&c.terms.Wait, "Wait", d, 0, clock.LongestTime) })
}

// TTL asks for a fixed lease, which is never renewed: the lock ends after d, even
// if the work still runs. In other libraries TTL or expiry is a lease that is renewed;
// that is [Watchdog] here.
//
// d is at least 10 ms and at most 31 days. The context of the lease ends a little
// before d (by 1 % of d and 2 ms). The lock stays until the store ends it after d,
// or until [Lease.Release]; no other caller gets it before. Work that cannot be
// interrupted, and that takes less than d for certain, therefore overlaps with no
// other holder. A fixed lease is never handed off. TTL together with Watchdog in
// one list of options is an error; TTL in a call or guard replaces an outer
// Watchdog. Default: a renewed lease (Watchdog).
//
// If the process cannot tell whether an acquire reached the store, it takes the
// lock back for as long as requests can be late: up to 15 minutes after the store
// has answered again. A request that arrives even later keeps the lock for d.
func TTL(d time.Duration) Option {
	return option(func(c *config) { c.set(&c.ttl, "TTL", d, minTTL, clock.LongestLease) })
}

// Watchdog sets the length of a renewed lease. The locker renews it each time a
// third of it has passed, for as long as the lock is held. d is at least 10 ms and
// at most 31 days. Default: 30 s.
//
// A lock outlives a process that died by at most d. Other libraries call this the
// TTL or the expiry of a lock.
func Watchdog(d time.Duration) Option {
	return option(func(c *config) { c.set(&c.watchdog, "Watchdog", d, minTTL, clock.LongestLease) })
}

// MaxHold bounds how long a lock is held, so that a handler that hangs cannot keep
// it for ever. When d has passed since the grant, the context of the lease ends
// with cause [ErrMaxHold] and the locker renews the lease no longer. The lock is
// free when the handler releases it, or when the rest of its lease has passed. d is
// positive and at most 366 days. A fixed lease ([TTL]) that is shorter than d ends
// first. Default: no bound.
func MaxHold(d time.Duration) Option {
	return option(func(c *config) { c.set(&c.terms.MaxHold, "MaxHold", d, 1, clock.LongestTime) })
}

// MaxWaiters bounds how many callers of this process wait for one key, not counting its
// holder. One more caller gets [ErrQueueFull] at once. The caller that asks the store at
// the moment does not count, unless the store has said that another process holds the
// lock. Callers that want places ([Shared], [Permits]) count only when the store has
// said that they have to wait: until then they may stand in the queue, and callers with
// more than n others before them get ErrQueueFull when the store says so. n is at least
// 1. Default: no bound.
func MaxWaiters(n int) Option {
	return option(func(c *config) {
		if n < 1 {
			c.fail("MaxWaiters(%d): must be at least 1; Wait(0) does not wait", n)
			return
		}
		c.terms.MaxWaiters = n
	})
}

// Name names the guard or the lock for observers, in [observe.Operation] and [Loss].
// Use a text with few different values, never a key. Default: the templates of a
// guard, joined with commas; "takeover" for [Locker.TakeOver]; else empty.
func Name(s string) Option {
	return option(func(c *config) { c.name = s })
}

// OnLost sets a function that the locker calls, on a separate goroutine, whenever a lease is lost:
// while it is held, after its context has ended, or when its release finds that the lock was
// already another owner's. Use it to raise an alert. Up to 256 calls run at the same time;
// [Locker.Undelivered] counts calls that are dropped because too many have not returned. If f
// panics, the panic is logged through [slog.Default] with its stack, at most once a minute, and
// ends there. f must be safe for concurrent use. Default: none.
func OnLost(f func(Loss)) Option {
	return option(func(c *config) { c.onLost = f })
}

// WithObserver sets the observer. The locker calls it on events of locks. Package
// otellock has one; [observe.Observer] says how another is written. Default: none.
func WithObserver(o observe.Observer) LockerOption {
	return lockerOption(func(c *config) { c.observer = o })
}

// Turn bounds how long, and for how many grants, one process passes a lock among
// its own waiters. After that the process lets other processes have the lock if
// they wait for it. A longer turn gives more throughput on a hot key, a shorter
// turn gives other processes a shorter wait. Both values are positive, and d is at most
// 366 days. Default: 20 ms, 10,000 grants.
func Turn(d time.Duration, grants int) LockerOption {
	return lockerOption(func(c *config) {
		if wrong := clock.Limits(d, 1, clock.LongestTime); wrong != "" || grants < 1 {
			c.fail("Turn(%v, %d): both must be positive, and the time at most %v", d, grants, clock.LongestTime)
			return
		}
		c.turnTime, c.turnCount = d, grants
	})
}

// NestedWait bounds the wait for a further lock while the context already holds a
// lock, without regard to [Wait]. Two callers that each want the other's lock then end
// with [ErrHeld] and do not wait for ever. d is positive and at most 366 days. Default: 5 s.
func NestedWait(d time.Duration) LockerOption {
	return lockerOption(func(c *config) { c.set(&c.heldWait, "NestedWait", d, 1, clock.LongestTime) })
}

// maxService is the length of the longest name or version of a service, in bytes.
const maxService = 128

// Service sets the name and version of the service that the locker belongs to. If the
// store can keep entries about lockers (redisstore can), operators see both, with the
// host and the process number, for each holder and waiter; [Unlisted] has more. Both
// texts have at most 128 bytes, and may be empty. Default: both are empty.
func Service(name, version string) LockerOption {
	return lockerOption(func(c *config) {
		if len(name) > maxService || len(version) > maxService {
			c.fail("Service: a name of %d and a version of %d bytes; at most %d are accepted", len(name), len(version), maxService)
			return
		}
		c.service = [2]string{name, version}
	})
}

// Unlisted keeps the locker out of the store's list of lockers. Default: a locker that is
// used writes an entry about itself, if the store can keep one ([driver.Registry]): its
// random id, host name, process number, [Service], and when it was made. It does so in
// the background, once in 20 s while locks are held or awaited; the entry ends a minute
// after the last time, or with [Locker.Close]. No lock depends on it, and no caller waits
// for it. The command interlock shows it.
func Unlisted() LockerOption {
	return lockerOption(func(c *config) { c.unlisted = true })
}
