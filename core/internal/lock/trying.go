package lock

import (
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// longWait is longer than a store keeps new places from others for an exclusive
// waiter, unless that asks again.
const longWait = 2 * time.Second

// try begins a try of the first waiter.
func (l *lock) try(w *Waiter, now, deadline clock.Instant) {
	table, acq := l.shard.table, l.acquisition()
	if acq.seq == 0 {
		acq.seq = table.seq.Add(1)
	}
	l.asking, acq.sent, acq.heard = true, now, acq.signals
	acq.kind, acq.atMost = w.Terms.Kind, int32(w.Terms.AtMost)
	acq.lease, acq.fixed, acq.listed = w.Terms.Lease, w.Terms.Fixed, w.Terms.Wait != 0
	acq.releases, acq.blind = 0, l.places.releasing()
	if acq.restUntil != 0 && now >= acq.restUntil {
		acq.rest = ""
	}
	w.attempts = max(w.attempts, w.attempts+1)
	req := driver.AcquireRequest{
		Key: l.key, Owner: table.owner(acq.seq), Kind: acq.kind, AtMost: w.Terms.AtMost,
		TTL: acq.lease, Rest: acq.rest, Late: l.late,
	}
	if acq.listed {
		req.Waiter = table.ID
	}
	if acq.listed && acq.kind == driver.Exclusive {
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
	acq.request = req
}

// answer is the outcome of a try.
type answer struct {
	driver.Reply
	err      error
	late     bool // the waiter that sent it has left
	orphaned bool // the reaper is releasing the holder
}

// answered is the event that a try has its outcome. That belongs to the waiter that
// is the first now.
func (l *lock) answered(now clock.Instant, a answer, fx *effects) {
	acq := l.acq
	l.asking = false
	rest := acq.rest
	acq.rest = ""
	if a.Ambiguous && !a.Granted {
		// A try may yet be executed: this owner could become the holder at any time,
		// and must not be anybody.
		l.abandonOwner(fx)
	}
	switch sent := l.shard.table.Clock.Of(a.Sent); {
	case errors.Is(a.err, driver.ErrNotReady):
		acq.retry(now, a.err)
	case a.err != nil:
		err := a.err
		if !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrNotReplicated) &&
			!errors.Is(err, driver.ErrKeyOccupied) {
			err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
		}
		if a.late || acq.request.Deadline != (time.Time{}) && !acq.request.Deadline.After(l.shard.table.Clock.Time(now)) {
			// The waiter that sent the try has left, or had no more patience: how long it
			// was ready to wait says nothing to the others. Each asks for itself.
			acq.retry(now, err)
			break
		}
		acq.failed, acq.next = nil, 0
		l.fail(err, fx)
	case !a.Granted:
		l.refused(now, a, rest)
		l.failSurplus(fx)
	case now >= sent.Add(acq.lease-clock.Drift(acq.lease)) || a.late && acq.fixed:
		// The grant took longer than the lease lasts; or part of a fixed lease is
		// over, and the next waiter wants it whole.
		l.abandonOwner(fx)
		acq.retry(now, fmt.Errorf("%w: a grant came after the end of its lease", driver.ErrUnavailable))
	default:
		l.granted(now, sent, a.Reply, rest, fx)
		return
	}
	l.proceed(fx)
}

// abandonOwner leaves the owner of the last try to the reaper.
func (l *lock) abandonOwner(fx *effects) {
	acq := l.acq
	fx.orphan = &orphan{
		key: l.key, owner: l.shard.table.owner(acq.seq), kind: acq.kind, atMost: int(acq.atMost), ttl: acq.lease,
	}
	l.acq.seq = 0
}

// refused plans the next try after another owner was found to hold the lock.
func (l *lock) refused(now clock.Instant, a answer, rest string) {
	acq := l.acq
	acq.failed, acq.backoff = nil, 0
	acq.contended, acq.full = true, a.Full
	switch {
	case a.orphaned:
		acq.retry(now, fmt.Errorf("%w: a late request of this process holds it", driver.ErrNotReady))
		return
	case acq.signals != acq.heard:
		// A release was announced while the try was on its way; what it saw is
		// older than what the signal said.
		acq.rest = rest
		return
	}
	acq.next, acq.passed = now.Add(a.TTL+time.Millisecond), false
	switch {
	case !acq.listed:
		// It asked without getting into the list; the next waiter has to.
		acq.next = 0
	case a.TTL < 0 || !a.Listed && a.TTL > blindWait:
		// The release may not be announced to us.
		acq.next = now.Add(blindWait)
	}
}

// granted makes the process the owner, and the first waiter the holder.
func (l *lock) granted(now, sent clock.Instant, rep driver.Reply, rest string, fx *effects) {
	acq, table := l.acq, l.shard.table
	own := &ownership{
		lock: l, seq: acq.seq, kind: acq.kind, atMost: acq.atMost,
		lease: acq.lease, fixed: acq.fixed, ambiguous: rep.Ambiguous,
		sent: sent, ahead: table.Clock.Ahead(rep.Sent, sent), renewAt: sent.Add(acq.lease / 3),
		token: rep.Token, base: rep.Token, replied: now, began: now, contended: rest != "",
	}
	if acq.unwatch == nil {
		l.forgetAcquisition()
	} else {
		*acq = acquisition{contended: true, unwatch: acq.unwatch}
	}
	if own.kind.Place() {
		l.placed(own, rest, now, fx)
		return
	}
	l.own, l.phase = own, held
	if l.first == nil || !own.suits(l.first.Terms) {
		l.giveUp(own, fx) // the caller that asked for this lease has left
		return
	}
	own.grant(l.first, rep.Token, now, fx)
	fx.more, fx.schedule = 1, own
}
