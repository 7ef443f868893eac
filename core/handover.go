package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/observe"
)

// ErrHandedOver says that the lease was handed over ([Lease.HandOver]). It is the cause of the context
// of such a lease after [Lease.Release]. It matches [ErrReleased].
var ErrHandedOver = fmt.Errorf("%w: handed over", ErrReleased)

const (
	// ticketNoted bounds the time after the end of a ticket while the store knows whether it was taken over.
	ticketNoted = time.Hour
	// clocksDiffer bounds the difference between the clocks of two processes: above it an error about a
	// ticket names the wrong reason. Nothing else depends on it: the store decides by its own clock.
	clocksDiffer = 5 * time.Second
)

// HandOver ends the lease in this process without freeing the lock: the store keeps the lock for the
// time keep, for the caller that brings the [Ticket] ([Locker.TakeOver]). It is for work that goes on
// elsewhere: a handler answers 202 and sends the ticket with the message to a worker. If no caller
// brings the ticket in time, the lock is free.
//
// After HandOver no renewal and no release of this process touches the lock. [Lease.Err] and
// [Lease.Check] return [ErrHandedOver], and [OnLost] is not called. The context of the lease does not
// end yet, since the caller has to send the ticket and to answer. It ends with [Lease.Release], which
// does nothing else then, or after the handler of a guard. Change nothing that the lock protects once
// the ticket has left.
//
// HandOver waits for the store for at most 2 s, and uses only the values of ctx. keep is from 10 ms to
// 31 days.
//
// If the error matches [ErrConfig] or [ErrKey], nothing has happened and the lease goes on. The reason may
// be a store without tickets (package quorum), a
// shared hold, a lease of several keys, a lock with other holds ([Lease], re-entry), a key above
// 158 bytes, or a bad keep. With [ErrLost], [ErrMaxHold] and [ErrReleased] the lease had ended
// before. After [ErrUnavailable] and any other error of the store there is no ticket. The lease goes on
// if the store has refused the request, as for a missing right, and has confirmed the lease since. Without
// a clear answer the lease has ended as by Release: the lock is freed in the background, also if the store has
// carried the request out. [Lease.Err] returns nil if the lease goes on.
func (lease *Lease) HandOver(ctx context.Context, keep time.Duration) (Ticket, error) {
	if lease == nil {
		return Ticket{}, ErrNoLease
	}
	space, err := lease.mayHandOver(keep)
	if err != nil {
		return Ticket{}, err
	}
	locks, w := lease.config.locker.locks, lease.locks()[0]
	permits := 0
	if w.Terms.Kind == driver.Permit {
		permits = w.Terms.AtMost
	}
	begin := locks.Clock.Now()
	t := newTicket(w.Key(), permits, locks.ID, space, locks.Clock.Time(begin).Add(keep))
	token, r, refused := locks.HandOver(ctx, w, t.owner(), keep, lease.hands, lease.keeps)
	if refused != nil {
		return Ticket{}, lease.handedBefore(refused)
	}
	t.token = token
	var lost *Loss
	if r.Lost != 0 {
		lost = lease.lostAtRelease(w, reasons[r.Lost])
	}
	lease.handed(r.Err)
	if m := lease.more.Load(); m != nil && m.observed && m.obs.Released != nil {
		told := observe.Released{
			Err: r.Err, Held: begin.Sub(w.Since()), Took: locks.Clock.Now().Sub(begin), Ticket: r.Err == nil, Lost: lost,
		}
		c := &lease.config.locker.calls
		c.released.Await(func() { c.told("Observation.Released", func() { m.obs.Released(told) }) }, observerWait)
	}
	if r.Err != nil {
		return Ticket{}, r.Err
	}
	return Ticket{t}, nil
}

// HandOver hands over the lock that ctx runs under: in a handler the lock of its guard. It is
// [Lease.HandOver] of [LeaseFromContext], with [ErrNoLease] where no lock is held. The guard releases
// nothing then, and the answer of the handler is as usual.
func HandOver(ctx context.Context, keep time.Duration) (Ticket, error) {
	return LeaseFromContext(ctx).HandOver(ctx, keep)
}

// mayHandOver refuses a lease that cannot be handed over. It returns the name of the store's locks.
func (lease *Lease) mayHandOver(keep time.Duration) (space string, err error) {
	l, all := lease.config.locker, lease.locks()
	if space, err = l.space(); err != nil {
		return "", err
	}
	if wrong := clock.Limits(keep, minTTL, clock.LongestLease); wrong != "" {
		return "", fmt.Errorf("%w: HandOver for %v: %s", ErrConfig, keep, wrong)
	}
	switch {
	case len(all) != 1:
		return "", fmt.Errorf("%w: a lease of %d keys cannot be handed over: take the key that goes on with a call of Lock", ErrConfig, len(all))
	case !lease.took(all[0]):
		return "", fmt.Errorf("%w: the lease has re-entered %q: the lease that took the lock can be handed over, after the release of this one",
			ErrConfig, all[0].Key())
	case len(all[0].Key()) > maxTicketKey:
		return "", fmt.Errorf("%w: a ticket has no room for a key of %d bytes; at most %d are accepted", ErrKey, len(all[0].Key()), maxTicketKey)
	}
	return space, nil
}

// space returns the name of the store's locks, or an error for a store that moves no locks.
func (l *Locker) space() (string, error) {
	turns, ok := l.store.(driver.Turns)
	if !ok {
		return "", fmt.Errorf("%w: the store %T keeps no lock for a ticket", ErrConfig, l.store)
	}
	if err := l.limits(driver.Hold{Moves: true}); err != nil {
		return "", err
	}
	return turns.Space(), nil
}

// hands notes that the hold has ended by a hand-over, unless a release came first. It is called with
// the mutex of the lock held.
func (lease *Lease) hands() bool {
	lease.mu.Lock()
	defer lease.mu.Unlock()
	if lease.stage != unreleased {
		return false
	}
	lease.stage = handing
	lease.left--
	return true
}

// keeps notes that the lease goes on after a hand-over that the store has refused, unless a release came meanwhile.
// It is called with the mutex of the lock held.
func (lease *Lease) keeps() bool {
	lease.mu.Lock()
	defer lease.mu.Unlock()
	if m := lease.more.Load(); m != nil && m.parted {
		return false
	}
	lease.stage = unreleased
	lease.left++
	return true
}

// handedBefore replaces ErrReleased as the error of a lease that was handed over.
func (lease *Lease) handedBefore(err error) error {
	lease.mu.Lock()
	defer lease.mu.Unlock()
	if errors.Is(err, ErrReleased) && (lease.stage == handing || lease.stage == handedOver) {
		return ErrHandedOver
	}
	return err
}

// handed notes the outcome of a hand-over. The context ends if the handler has returned meanwhile, or
// nothing is handed over.
func (lease *Lease) handed(err error) {
	lease.mu.Lock()
	m := lease.more.Load()
	cause := ErrHandedOver
	ends := m != nil && m.parted
	if lease.stage = handedOver; err != nil {
		lease.stage, cause, ends = released, ErrReleased, true
		if errors.Is(err, ErrLost) {
			cause = ErrLost
		}
		m = lease.needMore()
		m.result = err
	}
	if m != nil && m.released != nil {
		close(m.released)
	}
	lease.mu.Unlock()
	if ends {
		lease.end(cause)
	}
}

// TakeOverOption is an option for [Locker.TakeOver]. Every [Option] is one.
type TakeOverOption interface{ applyToTakeOver(*config) }

type takeOverOption func(*config)

func (o takeOverOption) applyToTakeOver(c *config) { o(c) }

// OrLock has [Locker.TakeOver] wait for the lock in turn, as [Locker.Lock] does, if the ticket was
// taken over before ([ErrTicketTaken]), its time has passed ([ErrTicketRanOut]), or the store has lost
// its lock. It is for messages that are delivered again. The lease does not tell the two ways apart, so the worker has to find out
// whether the work was done before, as under any lock. Bound the wait ([Wait]): the lock may be kept for
// a message that needs a free worker, and workers that all wait for such locks would stop the queue until the
// tickets run out. Default: TakeOver returns the error.
func OrLock() TakeOverOption {
	return takeOverOption(func(c *config) { c.orLock = true })
}

// takeOverName is the name of a lease of [Locker.TakeOver] without the option [Name].
const takeOverName = "takeover"

// TakeOver goes on with a lock that was handed over ([Lease.HandOver]). The lease that it returns is a
// lease like any other: its token is greater than the token of the former lease, the locker renews it, and
// it can be handed over again. Kind and number of permits come from the ticket, everything else
// from the options.
//
// A ticket is taken over once. The errors for a ticket match [ErrTicket]: [ErrTicketTaken],
// [ErrTicketRanOut] and [ErrTicketRevoked] say why the ticket is used up, with [OrLock] only the last does. A
// ticket of another store or prefix is refused before a request. An hour after its end the store does not
// know any more whether a ticket was taken over; ErrTicket says so alone.
//
// TakeOver does not wait for a holder, and for at most 2 s for the store. After [ErrUnavailable] the
// caller holds nothing. The store may have carried the request out: then the ticket is used up,
// and the lock is freed in the background. The other errors are as in [Locker.Lock].
func (l *Locker) TakeOver(ctx context.Context, by Ticket, opts ...TakeOverOption) (*Lease, error) {
	c, err := l.takeOverConfig(by, opts)
	if err != nil {
		return nil, err
	}
	if c.orLock {
		return l.takeOverOrLock(ctx, by.t, c)
	}
	return l.takeOver(ctx, by.t, c)
}

// takeOverOrLock is takeOver with [OrLock].
func (l *Locker) takeOverOrLock(ctx context.Context, t *ticket, c *config) (*Lease, error) {
	lease, err := l.takeOver(ctx, t, c)
	if errors.Is(err, ErrTicket) && !errors.Is(err, ErrTicketRevoked) {
		return l.lockOne(ctx, t.key, c)
	}
	return lease, err
}

// takeOverConfig makes the configuration of a lease that begins with a ticket.
func (l *Locker) takeOverConfig(by Ticket, opts []TakeOverOption) (*config, error) {
	c := l.base
	c.begin()
	for _, o := range opts {
		if o != nil {
			o.applyToTakeOver(&c)
		}
	}
	if c.terms.Line == driver.Newest {
		c.fail("Newest is not for TakeOver: the store knows no order of the callers that bring tickets, so none is superseded")
	}
	if c.name == "" {
		c.name = takeOverName // or its spans would look like those of any lock without a name
	}
	if c.kindSet {
		c.fail("Shared and Permits are not for TakeOver: the kind of the hold comes from the ticket")
	}
	if err := c.finish(&l.base); err != nil {
		return nil, err
	}
	if by.t == nil {
		return nil, fmt.Errorf("%w: there is none", ErrTicket)
	}
	if err := l.keeps(by.t); err != nil {
		return nil, err
	}
	c.terms.Kind, c.terms.AtMost = by.t.kind(), by.t.permits
	return &c, l.serves(&c)
}

// keeps returns an error for a ticket of another store.
func (l *Locker) keeps(t *ticket) error {
	space, err := l.space()
	if err == nil && t.space != hashOfSpace(space) {
		err = fmt.Errorf("%w: it is of another store, or of another prefix or database, than %s", ErrTicket, space)
	}
	return err
}

// takeOver takes the lock of a ticket.
func (l *Locker) takeOver(ctx context.Context, t *ticket, c *config) (*Lease, error) {
	left := t.expires.Sub(l.locks.Clock.Time(l.locks.Clock.Now()))
	lease := &Lease{config: c, parent: ctx, left: 1}
	lease.noteRequest()
	w := &lease.own
	w.Terms, w.Holder, lease.one[0] = &c.terms, (*holder)(lease), w
	var start clock.Instant
	if l.base.observer != nil {
		start = l.locks.Clock.Now()
		ctx = lease.observe(ctx, l, c, []string{t.key})
	}
	err := ticketError(l.locks.TakeOver(ctx, w, t.key, t.owner(), t.token, ticketNoted), t.key, left)
	if l.base.observer != nil {
		lease.observedOne(l, err, start)
	}
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// ticketError makes the error of a caller whose ticket keeps no lock.
func ticketError(err error, key string, left time.Duration) error {
	switch {
	case !errors.Is(err, driver.ErrNotOwner):
		return err
	case errors.Is(err, driver.ErrPassedOn):
		return fmt.Errorf("%w: %q", ErrTicketTaken, key)
	case errors.Is(err, driver.ErrRevoked):
		return fmt.Errorf("%w: %q", ErrTicketRevoked, key)
	case left > clocksDiffer:
		return fmt.Errorf("%w: %q: the store keeps no lock for it, although %v are left: it is another store than that of the ticket, or has lost the lock",
			ErrTicket, key, left.Round(time.Second))
	case left < clocksDiffer-ticketNoted:
		return fmt.Errorf("%w: %q: its time has passed for so long that it is not known any more whether it was taken over", ErrTicket, key)
	}
	return fmt.Errorf("%w: %q", ErrTicketRanOut, key)
}
