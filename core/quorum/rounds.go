package quorum

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// again reports whether there is another round, after the pause that it takes.
func (e *election) again(ctx context.Context, v verdict) bool {
	var pause time.Duration
	if e.chases++; v != higher {
		e.chases = 0
	}
	switch v {
	case higher:
		// At once, above the ballots that the nodes have named. Their votes stay, and take the
		// higher ballot.
	case lagging:
		// The votes stay too: the waiter that learned of the release first is the
		// next holder, and the release is about to reach the remaining nodes.
		if e.lags++; e.lags > maxLags {
			return false
		}
		pause = time.Millisecond * time.Duration(e.lags)
	case doubtful:
		// Another candidate that cannot reach these nodes either gives way, as this
		// election does. An owner that is met in every round holds the lock.
		e.mu.Lock()
		rival, _ := e.leader()
		e.mu.Unlock()
		if rival != e.rival {
			e.rival, e.doubts = rival, 0
		}
		if e.doubts++; e.doubts > maxDoubts {
			return false
		}
		fallthrough
	case split, unreachable:
		if v == unreachable {
			if e.fails++; e.fails > maxFails || e.barred() {
				return false
			}
		} else {
			e.fails = 0
		}
		// All candidates give way, and each returns after its own random pause
		// (Redlock, "Retry on failure").
		e.withdraw()
		pause = e.pause/2 + rand.N(e.pause)
		e.pause = min(2*e.pause, maxSplit)
	default:
		return false
	}
	if e.rounds >= maxRounds {
		return false
	}
	if pause > 0 {
		if !e.fits(pause) {
			return false
		}
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		case <-e.store.work.Life().Done():
			return false
		}
	}
	return true
}

// fits reports whether a round that begins after a pause can be decided before the
// caller leaves. A round that was cut off there would leave the caller without an
// outcome, though the outcome of this round is known.
func (e *election) fits(pause time.Duration) bool {
	if e.ask.Deadline.IsZero() {
		return true
	}
	return time.Now().Add(pause + 2*e.longest + roundSlack).Before(e.ask.Deadline)
}

// withdraw gives up the votes that the nodes have granted so far.
//
// It announces that to waiters only if the owner may have had a majority without
// knowing it: then others saw the lock held and wait for its release. In every other
// case no waiter waits for this owner. An announcement would wake the waiters of the
// real holder, and they would take and give up the free nodes in turns.
func (e *election) withdraw() {
	e.mu.Lock()
	var nodes []int
	maybe := 0
	for i := range e.nodes {
		part := &e.nodes[i]
		if part.holds || part.unknown || part.open > 0 {
			maybe++
		}
		if part.holds {
			part.holds = false
			nodes = append(nodes, i)
		}
	}
	w := e.withdrawal(maybe < e.store.majority)
	e.mu.Unlock()
	if w.Limit == 0 {
		return // as in lateAnswer
	}
	for _, i := range nodes {
		e.store.nodes[i].giveUp(w)
	}
}

// withdrawal gives up the votes of an election, but not a vote for a higher proposal: the
// owner may try again with that. Called with e.mu held.
func (e *election) withdrawal(quiet bool) rediswire.Withdrawal {
	return rediswire.Withdrawal{
		Key: e.ask.Key, Owner: e.ask.Owner, TTL: e.ask.TTL, Keep: e.ask.TTL + fenceTime, Limit: e.ballot, Quiet: quiet,
		Deadline: time.Now().Add(e.budget),
	}
}

// conclude decides the election and makes its reply.
func (e *election) conclude(v verdict) (driver.Reply, error) {
	e.mu.Lock()
	rep := driver.Reply{Sent: e.sent}
	inTime := time.Now().Before(e.sent.Add(e.ask.TTL - clock.Drift(e.ask.TTL)))
	if v == granted && inTime {
		e.phase = won
		rep.Granted, rep.Token, rep.Ambiguous = true, e.ballot, e.unknown()
		e.mu.Unlock()
		return rep, nil
	}
	e.phase = lost
	e.forgetBallot()
	for i := range e.nodes {
		part := &e.nodes[i]
		// If nodes did not answer in their time, the caller gets the result that they may yet
		// carry the request out. Other open requests are cared for here, by lateAnswer.
		if part.unknown || part.answer == dead && part.open > 0 {
			rep.Ambiguous = true
		}
	}
	rep.Ambiguous = rep.Ambiguous || v == granted
	e.doubt = rep.Ambiguous
	var err error
	switch v {
	case granted:
		err = because(driver.ErrUnavailable, "a majority granted the lock after the end of its lease")
	case taken, lagging, doubtful:
		e.describe(&rep, v)
	case unreachable:
		err = e.complaint()
	case wait, higher, split:
		err = e.divided(&rep)
	}
	e.mu.Unlock()
	e.withdraw()
	return rep, err
}
