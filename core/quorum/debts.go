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
	// maxDebts is how many locks a node may owe; what is beyond ends by its TTL.
	maxDebts = 4096
	// debtBatch is how many are asked for at a time.
	debtBatch = 32
	// debtPause is the pause after a try that failed; it doubles up to a second.
	debtPause = 50 * time.Millisecond
)

// debt is a lock that has to go from a node: one whose withdrawal has not been
// confirmed, or a proposal of unknown outcome that may yet be executed.
type debt struct {
	rediswire.Withdrawal
	next  time.Time
	until time.Time // when it has ended by itself
	again bool      // also after it was confirmed: it may come back
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
		d.Token, d.again = max(d.Token, old.Token), d.again || old.again
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

// sweep settles debts of nodes, each on a goroutine of its own: a node that does not
// answer delays no other. It is called by the store's timers.
func (s *Store) sweep(nodes []*node, _ clock.Instant) {
	for _, n := range nodes {
		if due := n.due(time.Now()); len(due) > 0 {
			s.spawn(func() { n.swept(n.settle(due)) })
		}
	}
}

// due takes some debts whose time has come, and drops debts that have ended. If none
// is due, they are looked at again when the next is. It returns none while others are
// being settled.
func (n *node) due(now time.Time) (due []*debt) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sweeping {
		n.more = true
		return nil
	}
	var next time.Time
	for owner, d := range n.debts {
		switch {
		case !now.Before(d.until):
			delete(n.debts, owner)
		case d.next.After(now):
			if next.IsZero() || d.next.Before(next) {
				next = d.next
			}
		case len(due) < debtBatch:
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
		n.pause = min(2*n.pause, time.Second)
	}
	if !n.more {
		again = again.Add(n.pause)
	}
	n.sweeping, n.more = false, false
	n.sweepAt(again)
}

// settleAll asks once for all debts, whether due or not, and begins nothing after
// end. The sweep may ask for the same at the same time, which does no harm: giving
// up what is not held does nothing.
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
	deadline := time.Now().Add(time.Millisecond) // once; the sweep tries again
	for _, d := range due {
		w := d.Withdrawal
		w.Deadline = deadline
		n.server.Withdraw(w, func(_ string, err error) {
			ok := err == nil || errors.Is(err, driver.ErrNotOwner)
			n.mu.Lock()
			switch {
			case ok && d.again:
				d.next = time.Now().Add(max(d.TTL/3, time.Millisecond))
			case ok:
				d.until = time.Time{}
			}
			if ok {
				n.failing = time.Time{}
				n.judge(false)
			}
			n.mu.Unlock()
			results <- ok
		})
	}
	for range due {
		select {
		case ok := <-results: // there is room for all, so that none is held up
			answered = ok || answered
		case <-n.store.shut:
			return answered
		}
	}
	return answered
}
