package lock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// longWait is longer than a store keeps new places from others for an exclusive
// waiter, unless that asks again.
const longWait = 2 * time.Second

// ownOfferWait is after how long a caller asks again that was refused because of an offer to
// its own process. The end of that offer wakes it earlier, unless that came before the refusal.
const ownOfferWait = 50 * time.Millisecond

// mostKept bounds the time for which a caller that does not wait for a holder waits for a lock without one: the
// lock is kept for lockers, and they may have ended.
const mostKept = 200 * time.Millisecond

// inTheDark is how long a caller may wait for a store that is not ready without a line in the
// log: its error says the cause then.
const inTheDark = 5 * time.Second

// try is a request for a lock, on its way. It belongs to the queue and not to the waiter
// that sent it: if that one leaves, the next takes the grant.
type try struct {
	lock    *lock
	acq     *acquisition          // that counts it; once it is another than the lock's, the try is for no caller
	sender  *Waiter               // has the mark asking while the try is on its way, unless it has left
	request driver.AcquireRequest // unchanged while it is on its way
	seq     uint64                // of its owner
	fixed   bool
	blind   bool // when it was sent, the release of a place of this process was on its way
	doubted bool // when it was sent, a request was on its way that takes the process out of the list
	busy    bool // it is on its way
	sent    clock.Instant
	others  bool // the call that it follows said that others wait as well
}

// listed reports whether it asks to be listed.
func (t *try) listed() bool { return t.request.Waiter != "" }

// try begins a try of a waiter.
func (l *lock) try(w *Waiter, now, deadline clock.Instant) *try {
	table, acq := l.shard.table, l.acquisition()
	t := &acq.tries.one
	if t.busy {
		t = new(try)
	}
	seq := acq.owner
	var mark uint64
	if w.Terms.Attentive {
		mark = table.mark()
	}
	if acq.owner = 0; seq == 0 || seq&attentive != mark {
		seq = table.owners.seq.Add(1) | mark
	}
	acq.tries.n++
	acq.tries.kind, acq.tries.asked = w.Terms.Kind, now
	w.attempts = max(w.attempts, w.attempts+1)
	w.marks = w.marks&^(refused|blind) | asking
	*t = try{
		lock: l, acq: acq, sender: w, busy: true, seq: seq, fixed: w.Terms.Fixed, blind: l.places != nil && l.places.releases > 0,
		doubted: l.listing.leaving > 0,
		sent:    now, others: acq.next.others,
		request: driver.AcquireRequest{
			Key: l.key, Owner: table.owner(seq), Kind: w.Terms.Kind, AtMost: w.Terms.AtMost,
			TTL: w.Terms.Lease, Late: t.late,
		},
	}
	acq.next.turn, acq.next.others = 0, false
	req := &t.request
	if w.Terms.Line != driver.InTurn {
		req.Line = w.Terms.Line
		req.Number, req.Order = w.number()
	}
	if w.Terms.Wait != 0 {
		req.Waiter = table.name(driver.Exclusive, acq.refusal.contended) // the store knows for what
		if table.calls.reached.Load() && w.Terms.takesOffers() {
			req.Waiter = table.owners.names.Load().offers
		}
	}
	if req.Kind == driver.Exclusive && req.Waiter != "" {
		req.Offer = acq.offer.named
	}
	if w.Terms.Wait != 0 && req.Kind == driver.Exclusive {
		req.Left = longWait
		if deadline != 0 {
			req.Left = min(deadline.Sub(now), longWait)
		}
	}
	if deadline != 0 {
		// A short wait for the holder must not become a short wait for the store's
		// answer, or it would never see one.
		req.Deadline = table.Clock.Time(max(deadline, now.Add(answerWait)))
	}
	return t
}

// answer is the outcome of a try.
type answer struct {
	driver.Reply
	err      error
	orphaned bool // the reaper is releasing the holder
}

// done takes the outcome of a try, and looks at the lock for w, which sent it, unless w has
// left.
func (t *try) done(w *Waiter, a answer, deadline clock.Instant) (s step) {
	l := t.lock
	table := l.shard.table
	if a.err == nil && !a.Granted {
		// A try of ours may be late: its release is under way.
		a.orphaned = table.reaper.reap(l.key, a.Holder)
	}
	told := a.err == nil && !a.Granted && table.Hooks.Refused != nil
	kind := t.request.Kind // the try may be used again after the event
	now := table.Clock.Now()
	l.shard.event(l, func(fx *effects) {
		l.answered(now, t, w, a, fx)
		if fx.wakes.handed == w {
			fx.wakes.handed = nil // it is awake
		}
		if w != nil {
			s = l.look(w, now, deadline, fx)
		}
	})
	if told {
		// After the holder was noted: HeldBy has it, or the caller that asks is listed.
		table.Hooks.Refused(l.key, kind, Owners{a.Holder, a.Full})
	}
	table.life.work.done()
	return s
}

// late takes the outcome of a try after its waiter has left.
func (t *try) late(rep driver.Reply, err error) { t.done(nil, answer{Reply: rep, err: err}, 0) }

// answered is the event that a try has its outcome. That belongs to the waiter w that
// sent it, if w still waits. Else it belongs to the waiter that is the first now; w is nil
// then, or has failed. A sender that is about to leave may still have the mark.
func (l *lock) answered(now clock.Instant, t *try, w *Waiter, a answer, fx *effects) {
	acq := l.acq
	if t.acq != acq {
		// A caller has taken the lock over meanwhile (handover.go).
		l.listing.in = l.listing.in || a.Listed
		if a.Granted || a.Ambiguous {
			l.abandonOwner(t, fx)
		}
		return
	}
	acq.tries.n--
	t.busy = false
	if t.sender.marks&asking != 0 {
		t.sender.marks &^= asking
	} else {
		acq.tries.strays--
		w = nil
	}
	if o := uint64(acq.offer.named); o != 0 && a.err == nil && !a.Out && (a.Granted || a.Holder != l.shard.table.owner(o)) { //nolint:gosec // a token is positive
		// Used, or at an end. Else it is still this process's: a try that failed may not have been
		// carried out, and a caller that does not wait, or wants a place, names no offer.
		acq.offer.named = 0
	}
	lease := t.request.TTL
	reusable := !a.Ambiguous || a.Granted
	if !reusable {
		// A try may yet be executed: this owner could become the holder at any time,
		// and must not be used again.
		l.abandonOwner(t, fx)
	}
	switch sent, ahead := l.shard.table.Clock.At(a.Sent); {
	case errors.Is(a.err, driver.ErrNotReady):
		acq.retry(now, a.err)
		if left := t.request.Deadline.Sub(l.shard.table.Clock.Time(now)); acq.outage.backoff == maxBackoff && (t.request.Deadline.IsZero() || left > inTheDark) {
			fx.unserved = a.err
		}
	case errors.Is(a.err, driver.ErrConfig):
		// The store refuses what this caller asks for. That says nothing of the store's
		// health, and nothing to callers that ask for something else.
		acq.outage.why, acq.next.tryAt = nil, 0
		if w != nil {
			l.failOne(w, a.err, fx)
		}
	case a.err != nil:
		err := a.err
		if !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrNotReplicated) &&
			!errors.Is(err, driver.ErrKeyOccupied) {
			err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
		}
		if w == nil || t.request.Deadline != (time.Time{}) && !t.request.Deadline.After(l.shard.table.Clock.Time(now)) {
			// The waiter that sent the try has left, or had no more patience: how long it
			// was ready to wait says nothing to the others. Each asks for itself.
			acq.retry(now, err)
			break
		}
		acq.outage.why, acq.next.tryAt = nil, 0
		l.fail(err, asking, fx)
	case a.Out:
		acq.outage.why, acq.next.tryAt = nil, 0
		if w != nil {
			l.failOne(w, w.outError(), fx)
		}
	case !a.Granted:
		known := acq.refusal.contended
		l.refused(now, t, w, a)
		fx.listens = t.listed()
		if a.Token > acq.offer.anchor.token && a.Holder == l.shard.table.owner(uint64(a.Token)) { //nolint:gosec // a token is positive
			acq.offer.pending = offer{token: a.Token, contended: true, room: a.Room} // to this process, but the message is late or lost
		} else {
			acq.offer.answered(a.Token, sent, ahead)
		}
		if t.listed() {
			l.wanted(fx)
		}
		if !known || l.asking() == 0 {
			l.failSurplus(fx) // not once for each of many that are refused together
		}
	case now >= sent.Add(lease-clock.Drift(lease)) || w == nil && t.fixed:
		// The grant took longer than the lease lasts; or part of a fixed lease is
		// over, and the next waiter wants it whole.
		l.abandonOwner(t, fx)
		reusable = false
		acq.retry(now, fmt.Errorf("%w: %w", driver.ErrUnavailable, errTooLate))
	default:
		l.granted(now, sent, ahead, t, w, a.Reply, fx)
		return
	}
	if reusable && acq.owner == 0 {
		acq.owner = t.seq // nothing was granted to it
	}
	if acq.offer.pending.token != 0 {
		l.dealPending(now, fx)
	}
	if l.phase == acquiring { // else the pending offer gave the lock to a caller
		l.proceed(fx)
	}
}

// abandonOwner leaves the owner of a try to the reaper.
func (l *lock) abandonOwner(t *try, fx *effects) {
	req := &t.request
	fx.sends.orphan = &orphan{key: l.key, owner: req.Owner, kind: req.Kind, atMost: req.AtMost, ttl: req.TTL}
}

// refused plans the next try after another owner was found to hold the lock.
func (l *lock) refused(now clock.Instant, t *try, w *Waiter, a answer) {
	acq := l.acq
	acq.outage, acq.refusal.room = outage{}, 0
	acq.refusal.contended, acq.refusal.full, acq.refusal.blind = true, a.Full, t.blind
	acq.refusal.note, acq.refusal.noted = a.Note, a.TTL
	l.listing.in = l.listing.in || a.Listed
	acq.refusal.holder = a.Holder
	if a.orphaned {
		acq.retry(now, fmt.Errorf("%w: %w", driver.ErrNotReady, errOrphan))
		return
	}
	kept := l.shard.table.store.turns != nil && a.Holder == "" && !a.Full && a.TTL > 0 && a.TTL <= mostKept
	if acq.refusal.kept = kept; w != nil && w.Terms.Wait == 0 && !kept {
		w.marks |= refused | waited
		if t.blind {
			w.marks |= blind
		}
	}
	acq.next.tryAt = now.Add(a.TTL + time.Millisecond)
	switch {
	case kept && w != nil && w.Terms.Wait == 0:
		// Nobody holds the lock. If none of the lockers comes that it is kept for, the caller has it.
	case a.Holder == l.shard.table.owner(uint64(a.Token)): //nolint:gosec // a token is positive
		// An offer to this process, which is taken or passed on meanwhile. Its time says nothing
		// of when the lock is free.
		acq.next.tryAt = now.Add(ownOfferWait)
	case !t.listed():
		// It asked without getting into the list; the next waiter has to.
		acq.next.tryAt = 0
	case a.TTL < 0:
		acq.next.tryAt = now.Add(blindWait)
	case !a.Listed && a.TTL > blindWait:
		// A full list has left it out, and no call comes. If all that were left out asked at the same time, the
		// same of them would always be the first.
		acq.next.tryAt = now.Add(blindWait/2 + rand.N(blindWait))
	}
	if t.doubted {
		l.doubts(now)
	}
	if w != nil && w.Terms.Line != driver.InTurn {
		w.token = a.Number
		acq.next.tryAt = min(acq.next.tryAt, now.Add(linePoll))
		if acq.tries.hinted >= t.sent {
			acq.tries.hinted, acq.next.tryAt = 0, 0 // it may have been displaced since
		}
	}
	if acq.next.turn != 0 {
		acq.next.tryAt = min(acq.next.tryAt, acq.next.turn) // the call is newer than the answer
	}
}

// granted makes the process the owner, and the first waiter the holder, where that would have
// asked the same. A number is good for the waiter w alone, which asked ([driver.Newest]): another
// caller that took it would be older, to the store, than callers that came before it.
func (l *lock) granted(
	now, sent clock.Instant, ahead time.Duration, t *try, w *Waiter, rep driver.Reply, fx *effects,
) {
	acq, req := l.acq, &t.request
	l.listing.in = false // the grant has taken it out
	own := &ownership{
		lock: l, seq: t.seq, kind: req.Kind, atMost: int32(req.AtMost), //nolint:gosec // at most 1024
		lease:  lease{length: req.TTL, fixed: t.fixed, sent: sent, ahead: ahead},
		tokens: tokens{last: rep.Token, base: rep.Token, room: rep.Room, number: rep.Number, replied: now},
		turn:   share{began: now, contended: t.others || acq.next.others}, renew: renewing{at: sent.Add(req.TTL / 3)},
		ambiguous: rep.Ambiguous,
	}
	if own.seq&attentive != 0 && acq.tries.hinted != 0 && acq.tries.hinted >= t.sent {
		own.renew.hint = now // its event may have happened before the reply came
	}
	if l.asking() == 0 && !acq.refusal.contended {
		l.forgetAcquisition()
	} else {
		acq.got()
	}
	if own.kind.Place() {
		l.placed(own, w, now, fx)
		return
	}
	l.own, l.phase = own, held
	if l.away.since != 0 {
		l.away.ends(now)
	}
	if w != nil && req.Line == driver.OneWaiter {
		w.token = 0 // the grant has told the store that it waits no more
	}
	switch first := l.waiters.first; {
	case first == nil, own.tokens.number != 0 && w == nil, !own.suits(first.Terms):
		l.giveUp(own, fx) // the caller that asked for this lease has left
		return
	case first.Terms.Whole && !own.lease.fixed && own.tokens.number == 0 && own.lease.aging(now):
		fx.renewNow(own, now) // no caller begins before
	default:
		own.grant(first, rep.Token, now, fx)
		fx.more = 1
	}
	fx.schedule = own
}
