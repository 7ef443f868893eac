package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// A holder hands its lock over: the store moves the lock to an owner that belongs to a ticket, and to no
// process ([driver.AcquireRequest], From). The hold ends here before the request is sent, so that neither a renewal
// nor a hand-off can follow. Waiters of this process wait for the answer, as for the answer to a
// release, and then ask the store as for any other holder.
//
// A caller that brings the ticket does not join the queue, since the lock is held by the ticket and
// no caller in the queue can get it. Its request goes out beside the request of the first waiter. The
// grant makes this process the owner, and tries that are on their way then are for no caller any
// more (disown). A release that is on its way, or a hold, may be older or newer: the tokens decide.

// HandOver ends the hold of w without giving the lock up: the store keeps it for the owner to, for ttl,
// and returns the token of that owner. refuse, unless nil, says that the hold goes on, since it cannot
// be handed over or is lost already, or the store has refused. Else the hold has ended. If the Err of the
// Released is not nil, nothing is handed over: to and the former owner are released in the background. It uses
// only the values of ctx.
//
// claims is called when the hold is about to end, and keeps when it is about to go on after a refusal, both with
// the mutex of the shard held. If one returns false, the hold is released at this moment, and does not
// go on.
func (t *Table) HandOver(
	ctx context.Context, w *Waiter, to string, ttl time.Duration, claims, keeps func() bool,
) (token int64, r Released, refuse error) {
	if refuse = t.settle(ctx, w); refuse != nil {
		return 0, r, refuse
	}
	now := t.Clock.Now()
	w.lock.shard.event(w.lock, func(fx *effects) { refuse = w.handOver(now, claims, fx) })
	if refuse != nil {
		return 0, r, refuse
	}
	own := w.own
	sent := t.Clock.Now()
	req := driver.AcquireRequest{
		Key: w.lock.key, Owner: to, Kind: own.kind, AtMost: int(own.atMost), TTL: ttl, From: t.owner(own.seq),
		Deadline: t.Clock.Time(sent.Add(releaseWait)), Late: func(driver.Reply, error) {},
	}
	if own.unknown(sent) {
		req.Above = own.tokens.last
	}
	rep, err := t.store.Acquire(context.WithoutCancel(ctx), req)
	if err == nil && !rep.Granted {
		err = fmt.Errorf("%w: the store has refused to move the lock", driver.ErrUnavailable)
	}
	if err != nil && !rep.Ambiguous && !errors.Is(err, driver.ErrPending) && !errors.Is(err, driver.ErrNotOwner) &&
		t.keep(ctx, w, sent.Add(2*releaseWait), keeps) {
		return 0, r, fmt.Errorf("handing over %q: %w", req.Key, unavailable(err))
	}
	now = t.Clock.Now()
	w.lock.shard.event(w.lock, func(fx *effects) { w.lock.moved(own, now, err, fx) })
	t.ended()
	if err == nil {
		return rep.Token, Released{}, nil
	}
	if !errors.Is(err, driver.ErrNotOwner) {
		// The request may have been carried out, or may yet be. Once the former owner is released, it
		// cannot be: so the release of either owner frees the lock, and no caller gets the ticket.
		t.reaper.add(&orphan{key: req.Key, owner: to, kind: req.Kind, atMost: req.AtMost, ttl: ttl})
		return 0, Released{Err: fmt.Errorf("handing over %q: %w", req.Key, unavailable(err))}, nil
	}
	return 0, Released{Lost: reasonOf(err), Err: fmt.Errorf("%w: %q: %w", ErrLost, req.Key, err)}, nil
}

// unavailable is the error of a caller for an error of the store.
func unavailable(err error) error {
	for _, known := range []error{driver.ErrUnavailable, driver.ErrNotReplicated, driver.ErrKeyOccupied, driver.ErrConfig} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
}

// settle confirms a hold that began with an offer: the store moves no lock that is only offered.
func (t *Table) settle(ctx context.Context, w *Waiter) error {
	sh := w.lock.shard
	sh.mu.Lock()
	offered := w.state == granted && w.own.lease.offered
	sh.mu.Unlock()
	if !offered {
		return nil
	}
	return t.Confirm(context.WithoutCancel(ctx), w)
}

// handOver is the event that a hold ends, and that the lock is to be handed over.
func (w *Waiter) handOver(now clock.Instant, claims func() bool, fx *effects) error {
	l, own := w.lock, w.own
	switch {
	case w.err != nil:
		return w.lostError()
	case w.state != granted:
		return ErrReleased
	case now >= own.lease.deadline():
		return fmt.Errorf("%w: %q", ErrLost, l.key) // the watchdog is about to say so
	case own.kind == driver.Shared:
		return fmt.Errorf("%w: %q is held as a shared lock, which other callers hold as well: it cannot be handed over", driver.ErrConfig, l.key)
	case w.holds > 1:
		return fmt.Errorf("%w: %q cannot be handed over while it has %d holds: release the others first", driver.ErrConfig, l.key, w.holds)
	case !claims():
		return ErrReleased
	}
	// From here no renewal touches the hold, as in release.
	w.holds, w.state = 0, gone
	l.retire(own, true, fx)
	return nil
}

// keep lets the hold of w go on after the store has refused to move the lock, if the store confirms the hold until the
// deadline. It reports whether the hold goes on. A server that refuses a request may have carried out a
// part of it, so the refusal alone proves no hold.
func (t *Table) keep(ctx context.Context, w *Waiter, deadline clock.Instant, keeps func() bool) (kept bool) {
	own := w.own
	req := driver.Renewal{Key: w.lock.key, Owner: own.owner(), Kind: own.kind, Asked: true}
	if !own.lease.fixed && !own.stopped {
		req.TTL = own.lease.length
	}
	r := renewal{extended: req.TTL > 0, err: driver.ErrUnavailable}
	r.sent, r.ahead = t.Clock.Read()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(own.lease.within(r.sent), deadline.Sub(r.sent)))
	defer cancel()
	t.store.Renew(ctx, []driver.Renewal{req}, func(_ int, contended bool, err error) { r.contended, r.err = contended, err })
	if r.err != nil {
		return false
	}
	now, ahead := t.Clock.Read()
	w.lock.shard.event(w.lock, func(fx *effects) { kept = w.goesOn(r, now, ahead, keeps, fx) })
	return kept
}

// goesOn is the event that a hold goes on which was to be handed over. It reports whether the hold does.
func (w *Waiter) goesOn(r renewal, now clock.Instant, ahead time.Duration, keeps func() bool, fx *effects) bool {
	l, own := w.lock, w.own
	place := own.kind.Place()
	if now >= own.lease.deadline() || l.shard.table.life.over.Load() || !place && l.own != own ||
		l.acq != nil && l.acq.offer.pending.token != 0 || !keeps() {
		return false
	}
	w.holds, w.state, own.over, fx.schedule = 1, granted, false, own
	if place {
		l.places.releases--
		l.places.all = append(l.places.all, own)
	} else {
		l.phase = held
	}
	own.confirmed(r, now, ahead, fx)
	return true
}

// moved is the event that the request which hands a lock over has its outcome.
func (l *lock) moved(own *ownership, now clock.Instant, err error, fx *effects) {
	if own.ambiguous || err != nil && !errors.Is(err, driver.ErrNotOwner) {
		fx.sends.orphan = own.orphan(now) // a late try of the acquire may find the lock free later, or the move failed
	}
	if own.kind.Place() {
		l.left(own, now, false, fx)
		return
	}
	if l.own != own {
		return // its lease had ended before: it has been outlived
	}
	l.own = nil
	if l.acq != nil {
		l.acq.next.tryAt = 0 // the next caller here asks, and learns for how long the lock is kept
	}
	if l.acq != nil && l.acq.offer.pending.token != 0 {
		l.dealPending(now, fx)
	}
	if l.phase != held {
		l.proceed(fx)
	}
}

// TakeOver takes the lock of a key from an owner that keeps it for a ticket, and notes that for the
// time noted after the end of that owner's lease. It waits for the store's answer only, until the
// deadline. On nil w holds the lock. The error matches [driver.ErrNotOwner] if the owner does not
// hold the lock.
func (t *Table) TakeOver(ctx context.Context, w *Waiter, key, from string, above int64, noted time.Duration) error {
	switch {
	case ctx.Err() != nil:
		return ended(ctx, key)
	case t.life.closed.Load():
		return fmt.Errorf("%w: %q", ErrClosed, key)
	}
	t.life.work.begin() // so that Close waits for it
	defer t.life.work.done()
	var mark uint64
	if w.Terms.Attentive {
		t.listen()
		mark = t.mark()
	}
	seq := t.owners.seq.Add(1) | mark
	lost := &orphan{key: key, owner: t.owner(seq), kind: w.Terms.Kind, atMost: w.Terms.AtMost, ttl: w.Terms.Lease}
	w.attempts = 1
	asked := t.Clock.Now()
	rep, err := t.store.Acquire(ctx, driver.AcquireRequest{
		Key: key, Owner: lost.owner, Kind: w.Terms.Kind, AtMost: w.Terms.AtMost, TTL: w.Terms.Lease,
		From: from, Above: above, Noted: noted, Deadline: t.Clock.Time(t.Clock.Now().Add(2 * answerWait)),
		Late: func(rep driver.Reply, _ error) {
			if rep.Granted || rep.Ambiguous {
				t.reaper.add(lost) // at once, also if it was released before
			}
		},
	})
	if errors.Is(err, driver.ErrPending) || err != nil && rep.Ambiguous {
		t.reaper.add(lost)
	}
	switch {
	case err == nil && rep.Granted:
		return t.takes(w, key, seq, rep)
	case err == nil:
		err = fmt.Errorf("%w: the store has refused to move the lock", driver.ErrUnavailable)
	case errors.Is(err, driver.ErrPending) && ctx.Err() != nil && t.Clock.Now().Sub(asked) >= silent:
		return fmt.Errorf("%w: %w: %w", ended(ctx, key), driver.ErrUnavailable, errSilent)
	case errors.Is(err, driver.ErrPending) && ctx.Err() != nil:
		return ended(ctx, key)
	case errors.Is(err, driver.ErrPending):
		err = errNoAnswer
	case errors.Is(err, driver.ErrNotOwner):
		return err
	}
	return fmt.Errorf("taking over %q: %w", key, unavailable(err))
}

// takes makes w the holder by a grant to the owner of seq.
func (t *Table) takes(w *Waiter, key string, seq uint64, rep driver.Reply) (err error) {
	now := t.Clock.Now()
	sent, ahead := t.Clock.At(rep.Sent)
	sh := t.shardOf(key)
	sh.event(nil, func(fx *effects) {
		l := sh.locks[key]
		if l == nil {
			l = &lock{shard: sh, key: key}
			sh.locks[key] = l
		}
		w.lock, fx.lock = l, l
		own := &ownership{
			lock: l, seq: seq, kind: w.Terms.Kind, atMost: int32(w.Terms.AtMost), //nolint:gosec // at most 1024
			lease:  lease{length: w.Terms.Lease, fixed: w.Terms.Fixed, sent: sent, ahead: ahead},
			tokens: tokens{last: rep.Token, base: rep.Token, room: rep.Room, replied: now},
			turn:   share{began: now}, renew: renewing{at: sent.Add(w.Terms.Lease / 3)},
			ambiguous: rep.Ambiguous,
		}
		if err = l.takes(own, w, now, fx); err != nil {
			fx.sends.orphan = own.orphan(now)
		}
	})
	if err == nil && !t.registry.running.Load() {
		t.registry.use()
	}
	return err
}

// takes is the event that a caller has taken the lock over.
func (l *lock) takes(own *ownership, w *Waiter, now clock.Instant, fx *effects) error {
	switch {
	case l.shard.table.life.closed.Load():
		return fmt.Errorf("%w: %q", ErrClosed, l.key)
	case now >= own.lease.deadline(), l.own != nil && l.own.tokens.last > own.tokens.last:
		return fmt.Errorf("%w: %q: %w", driver.ErrUnavailable, l.key, errTooLate)
	case l.phase == held:
		// The ticket had the lock, so this process had lost it, and did not know.
		l.own.lose(TakenOver, driver.ErrNotOwner, now, fx)
	case l.phase == releasing && !own.kind.Place():
		l.own = nil // its release was carried out, and only the answer is late
	}
	if !own.kind.Place() {
		for _, place := range slices.Clone(l.places.held()) {
			place.lose(TakenOver, driver.ErrNotOwner, now, fx) // likewise
		}
		l.disown()
	}
	fx.schedule, fx.more = own, 1
	if own.kind.Place() {
		if l.places == nil {
			l.places = &places{}
		}
		l.places.all = append(l.places.all, own)
	} else {
		if l.away.since != 0 {
			l.away.ends(now)
		}
		if l.acq != nil {
			l.acq.got()
		}
		l.own, l.phase = own, held
	}
	own.hold(w, own.tokens.last, now, fx)
	fx.wakes.handed = nil // it is awake
	return nil
}

// disown leaves the tries on their way to the requests that sent them. The store has refused these
// tries, or will, or the grant was lost before the lock was taken over: no caller here can get
// the lock by them. A sender that still waits looks at the lock again when it has the outcome.
func (l *lock) disown() {
	if l.asking() == 0 {
		return
	}
	for w := l.waiters.first; w != nil; w = w.next {
		if w.marks&asking != 0 && w.Terms.Wait == 0 {
			w.marks |= refused | waited // its own process has the lock now
		}
		w.marks &^= asking
	}
	l.acq = &acquisition{}
}
