package quorum

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

const (
	// maxDebts bounds the locks that a node may owe; further locks end by their TTL.
	maxDebts = 4096
	// debtBatch is how many are asked for at a time.
	debtBatch = 32
	// debtPause is the pause after a try that failed; it doubles up to mostDebtPause.
	debtPause     = 50 * time.Millisecond
	mostDebtPause = time.Second
)

// debt is a lock that has to go from a node: its withdrawal has not been confirmed, or
// it is a proposal of unknown outcome that may yet be executed. It is owed until the
// node has answered, however long that takes: a node that was stopped carries requests
// out when it runs again.
type debt struct {
	rediswire.Withdrawal
	next  time.Time
	until time.Time // when a lock that the node had at once has ended by itself
	// lapses is when the proposal is executed no more: a lock withdrawn before that may
	// come back. Zero: the outcome is known.
	lapses time.Time
}

// owe notes a debt for the background. No caller needs to wait for it: an owner without
// a majority does not hold the lock. But a node that keeps the vote cannot vote for
// another owner.
func (n *node) owe(d debt) {
	now := time.Now()
	d.next, d.until = now, now.Add(d.TTL)
	n.mu.Lock()
	defer n.mu.Unlock()
	if old := n.debts[d.Owner]; old != nil {
		// The stricter of the two. An owner without a limit has ended for good, and
		// of two limits the higher includes the lower.
		if old.Limit == 0 {
			d.Limit = 0
		} else if d.Limit > 0 {
			d.Limit = max(d.Limit, old.Limit)
		}
		d.Token = max(d.Token, old.Token)
		if old.lapses.After(d.lapses) {
			d.lapses = old.lapses
		}
	} else if len(n.debts) >= maxDebts {
		return
	}
	if n.debts == nil {
		n.debts = make(map[string]*debt)
	}
	n.debts[d.Owner] = &d
	if n.sweeping {
		n.more = true
		return
	}
	n.sweepAt(now)
}

// sweepAt has the node's debts looked at. Called with n.mu held.
func (n *node) sweepAt(when time.Time) {
	n.store.sweeps.Schedule(n, n.store.clock.Of(when), 0)
}

// sweep settles debts of nodes, each on a separate goroutine: a node that does not
// answer delays no other. It is called by the store's timers.
func (s *Store) sweep(nodes []*node, _ clock.Instant) {
	for _, n := range nodes {
		if due := n.due(time.Now()); len(due) > 0 {
			s.work.Go(func() { n.swept(n.settle(due)) })
		}
	}
}

// due takes some debts that are due, or one to ask whether the node answers. If none is
// due, they are looked at again when the next is. It returns none while others are
// being settled.
func (n *node) due(now time.Time) (due []*debt) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sweeping {
		n.more = true
		return nil
	}
	most := debtBatch
	if n.pause > 0 {
		most = 1
	}
	var next time.Time
	for _, d := range n.debts {
		switch {
		case d.next.After(now):
			if next.IsZero() || d.next.Before(next) {
				next = d.next
			}
		case len(due) < most:
			due = append(due, d)
		}
	}
	n.sweeping = len(due) > 0
	if !n.sweeping && !next.IsZero() {
		n.sweepAt(next)
	}
	return due
}

// swept is called when the debts that were due have been asked for. If the node did
// not answer, all others wait with these, unless there is a new one.
func (n *node) swept(answered bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	again := time.Now()
	switch {
	case answered:
		n.pause = 0
	case n.pause == 0:
		n.pause = debtPause
	default:
		n.pause = min(2*n.pause, mostDebtPause)
	}
	if !n.more {
		again = again.Add(n.pause)
	}
	n.sweeping, n.more = false, false
	n.sweepAt(again)
}

// settleAll asks once for all debts, whether due or not, and begins nothing after
// end. The sweep may ask for the same at the same time, which does no harm: giving up a
// lock that is not held does nothing.
func (n *node) settleAll(end time.Time) {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.debts))
	n.mu.Unlock()
	for batch := range slices.Chunk(all, debtBatch) {
		if !n.settle(batch) || time.Now().After(end) {
			return // the node does not answer, or is too slow for so many
		}
	}
}

// settle sends withdrawals and reports whether the node answered. Once the store is
// shut it waits no longer: Close would wait for it as long again as a node has.
func (n *node) settle(due []*debt) (answered bool) {
	results := make(chan bool, len(due))
	sent := time.Now()
	for _, d := range due {
		w := d.Withdrawal
		w.Deadline = sent.Add(time.Millisecond) // once; the sweep tries again
		n.server.Withdraw(w, func(_ driver.Waiters, err error) {
			results <- n.settled(d, sent, err)
		})
	}
	for range due {
		select {
		case ok := <-results: // there is room for all, so that none is held up
			answered = ok || answered
		case <-n.store.work.Life().Done():
			return answered
		}
	}
	return answered
}

// settled takes the outcome of a withdrawal that was sent at a time, and reports whether
// the node answered. A node may refuse for good what its user may not do; then the lock
// ends by itself.
func (n *node) settled(d *debt, sent time.Time, err error) (answered bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ok := err == nil || errors.Is(err, driver.ErrNotOwner)
	if ok {
		n.failing = time.Time{}
		n.judge(false)
	}
	refused := rediswire.IsReply(err) && !errors.Is(err, driver.ErrNotReady)
	switch {
	case ok && sent.Before(d.lapses):
		d.next = d.lapses
	case ok, refused && sent.After(d.until):
		if n.debts[d.Owner] == d {
			delete(n.debts, d.Owner) // else there is a stricter one by now
		}
	case refused:
		d.next = sent.Add(mostDebtPause)
	}
	return ok || refused
}
