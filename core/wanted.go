package core

import "github.com/interlock-go/interlock/core/internal/lock"

// Attentive informs a holder within milliseconds when another process waits for its lock
// ([Lease.Wanted]), or when an operator releases the lock (interlock release). The locker then
// subscribes to its channel at the store, from the first attentive lock until [Locker.Close];
// a request that is refused says there that it waits.
//
// Packages redisstore, memstore and, with pgstore.Listen, pgstore have stores with such messages. In other stores the option
// has no effect: there, and where a message is lost, the holder learns it at its next renewal,
// at a third of the lease. A message is only a hint, and the locker asks the store about it:
// no message by itself ends a lease, or says that others wait. Of more than 16 holders of
// permits or of a shared lock none gets a message. Default: none.
func Attentive() Option {
	return option(func(c *config) { c.terms.Attentive = true })
}

// WholeLease has the caller begin only when at least two thirds of the lease are left. It is for
// work that cannot be stopped within a second, such as a process of another program, or that is
// planned by [Lease.Deadline]. Without it a caller can begin with a lease that is valid for 1.5 to
// 3 s until its first renewal: with an offer of the store, by the message of a release (Offer in
// package driver). With it the caller asks, which takes a round trip more where processes hand
// the lock over. A lease that is not renewed ([TTL]), [Attentive] and [Lead] ask in any case.
// Default: the caller begins with an offer.
func WholeLease() Option {
	return option(func(c *config) { c.terms.Whole = true })
}

// Wanted returns a channel that is closed when another process waits for a lock of the lease,
// or another caller of this process; at once, if one waits already. It is for long work that
// can stop at a step: an upload, a stream, a job. The lease stays valid, and is renewed until
// it is released; Wanted asks for nothing that the holder must do. With [Attentive] the channel
// closes within milliseconds when another process waits. Without the option it closes at a
// renewal, up to a third of the lease later, and under a fixed lease ([TTL]) not at all. A
// caller that does not wait ([Locker.TryLock]) does not close it. The channel stays closed if
// that caller leaves.
//
// In a handler it is LeaseFromContext(ctx).Wanted(). Every call returns the same channel. For a
// lock that the lease has re-entered, the channel belongs to the lease which holds the lock;
// together with other locks it says nothing about a lock that was re-entered. Of a nil lease it
// is nil; a receive waits for ever.
func (lease *Lease) Wanted() <-chan struct{} {
	if lease == nil {
		return nil
	}
	var own []*lock.Waiter
	var outer *Lease
	for _, w := range lease.locks() {
		if lease.took(w) {
			own = append(own, w)
		} else {
			outer = (*Lease)(w.Holder.(*holder)) //nolint:forcetypeassert // there is no other
		}
	}
	if len(own) == 0 && outer != nil {
		return outer.Wanted()
	}
	lease.mu.Lock()
	m := lease.needMore()
	first := m.wanted == nil
	if first {
		m.wanted = make(chan struct{})
	}
	lease.mu.Unlock()
	if first {
		for _, w := range own {
			lease.config.locker.locks.Heed(w)
		}
	}
	return m.wanted
}

// Wanted implements [lock.Holder].
func (h *holder) Wanted(*lock.Waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.more.Load(); m != nil && m.wanted != nil && !m.told {
		m.told = true
		close(m.wanted)
	}
}
