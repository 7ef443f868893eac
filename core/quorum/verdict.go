package quorum

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// errLate is in place of the vote of a node that has not answered in its time.
var errLate = errors.New("no answer")

// verdict is the result of a round.
type verdict int

const (
	wait        verdict = iota
	granted             // a majority has granted the ballot
	higher              // a majority would grant a higher one
	taken               // a majority says that one owner holds the lock
	lagging             // the same, but that owner has released it
	split               // no owner has a majority
	doubtful            // no owner is known to have a majority, but one may
	unreachable         // fewer than a majority have answered
)

// judge returns the result of the answers. When the budget has ended, a pending request
// counts as no answer.
func (e *election) judge(over bool) verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	most := e.store.majority
	var n [out + 1]int
	slow, waiting := 0, 0 // nodes to wait for if need be, and in any case
	for i := range e.nodes {
		part := &e.nodes[i]
		if part.answer == pending {
			switch {
			case over:
				e.store.nodes[i].mistrust()
				part.answer, part.err = dead, fmt.Errorf("%w within %v", errLate, e.bound)
			case e.store.nodes[i].suspected():
				slow++
			default:
				waiting++
			}
		}
		n[part.answer]++
	}
	answered := n[yes] + n[low] + n[held]
	if answered+waiting < most {
		waiting += slow // it cannot be done without them
	}
	holder, votes := e.leader()
	switch {
	case n[yes] >= most:
		// Certain, also without the others: two majorities have a node in common,
		// and that one has granted this ballot.
		return granted
	case n[yes]+waiting >= most:
		return wait
	case n[yes]+n[low] >= most && e.ballot == 0 && waiting > 0 && e.store.clocksDiffer():
		return wait // for the clock that tells which of these are right
	case n[yes]+n[low] >= most:
		// A proposal that is a few µs too low would win with the next number.
		return higher
	case n[yes]+n[low]+waiting >= most:
		return wait
	case votes >= most && e.store.gone.has(holder):
		// The announcement of a release can be here before the release is on all
		// nodes. To wait for that owner would be to wait for its TTL: what we wait
		// for has been said already.
		return lagging
	case votes >= most:
		return taken
	case votes+waiting >= most:
		return wait
	case answered < most && answered+waiting >= most:
		return wait
	case answered < most:
		return unreachable
	case e.store.gone.has(holder):
		return lagging
	case votes+n[dead]+n[out] >= most:
		// It may hold the nodes that this process cannot reach, or be another
		// candidate. Only a further round can show it.
		return doubtful
	}
	return split
}

// leader is the other owner that holds most nodes. Called with e.mu held.
func (e *election) leader() (holder string, votes int) {
	for i := range e.nodes {
		if e.nodes[i].answer != held {
			continue
		}
		n := 0
		for j := range e.nodes {
			if e.nodes[j].answer == held && e.nodes[j].vote.Holder == e.nodes[i].vote.Holder {
				n++
			}
		}
		if n > votes {
			holder, votes = e.nodes[i].vote.Holder, n
		}
	}
	return holder, votes
}

// barred reports whether a majority is out of reach for as long as nodes have no
// vote, which another round would not change.
func (e *election) barred() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.nodes)
	for i := range e.nodes {
		if e.nodes[i].answer == out {
			n--
		}
	}
	return n < e.store.majority
}

// describe fills in the owner that holds the lock instead. Called with e.mu held.
func (e *election) describe(rep *driver.Reply, v verdict) {
	listed := 0
	rep.TTL = -1
	rep.Holder, _ = e.leader()
	for i := range e.nodes {
		vote := &e.nodes[i].vote
		if e.nodes[i].answer != held || vote.Holder != rep.Holder {
			continue
		}
		if vote.Listed {
			listed++
		}
		// The first node to become free may be what a majority lacked.
		if vote.TTL >= 0 && (rep.TTL < 0 || vote.TTL < rep.TTL) {
			rep.TTL = vote.TTL
		}
	}
	// A release reaches a majority of the nodes, and so a node among these. Where that
	// is not certain the caller looks again from time to time.
	rep.Listed = v == taken && listed >= e.store.majority
}

// complaint is the error when a majority is out of reach: not ready if nodes that
// have no vote now will have one, else unavailable. It counts the nodes that failed,
// not the nodes that voted: it is made as soon as too many have failed, when others may
// still be about to answer. The nodes' errors are included as text, since each by
// itself could match another situation. Called with e.mu held.
func (e *election) complaint() error {
	var text []string
	var slowest time.Duration
	n, soon := len(e.nodes), 0
	for i := range e.nodes {
		if err := e.nodes[i].err; err != nil {
			if errors.Is(err, driver.ErrNotReady) {
				soon++
			}
			if errors.Is(err, errLate) {
				slowest = max(slowest, time.Duration(e.store.nodes[i].trip.Load()), 1)
			}
			text = append(text, e.store.nodes[i].name+": "+err.Error())
		}
	}
	kind := driver.ErrUnavailable
	if n-len(text)+soon >= e.store.majority {
		kind = driver.ErrNotReady
	}
	return because(kind, "%d of %d nodes gave no vote, and %d votes are needed (%s)%s",
		len(text), n, e.store.majority, strings.Join(text, "; "), e.advice(slowest))
}

// advice says what helps if answers were late because the nodes are far or busy: the
// slowest of these nodes has taken so long for an earlier answer. Zero: none was late.
func (e *election) advice(slowest time.Duration) string {
	if slowest == 0 {
		return ""
	}
	most := e.store.mostBudget(e.ask.TTL)
	switch least := slowest * budgetShare * 3 / 2; {
	case most == e.ask.TTL/budgetShare && slowest >= most:
		return fmt.Sprintf("; answers take %v and a lease of %v leaves a node %v: take a lease of at least %v",
			slowest.Round(time.Millisecond), e.ask.TTL, most, least.Round(100*time.Millisecond))
	case most == e.ask.TTL/budgetShare:
		return fmt.Sprintf("; a lease of %v leaves a node %v for its answer: if the nodes are only slow, take a longer lease",
			e.ask.TTL, most)
	}
	return fmt.Sprintf("; a node has %v for its answer: if the nodes are only slow, give them more by NodeTimeout", most)
}

// divided is the reply when the votes stayed split over all rounds. If other owners hold
// so many nodes that no owner can get a majority, the lock is held elsewhere: those
// owners have had the time to give way. The caller should look again when the first of
// their leases ends, and soon in any case, because owners without a majority give up
// without an announcement. Called with e.mu held.
func (e *election) divided(rep *driver.Reply) error {
	taken, failed, n := 0, 0, len(e.nodes)
	for i := range e.nodes {
		switch e.nodes[i].answer {
		case held:
			taken++
		case dead, out:
			failed++
		}
	}
	if n-taken >= e.store.majority {
		return because(driver.ErrNotReady, "split vote: other owners hold %d of %d nodes, %d gave no vote, and %d votes are needed",
			taken, n, failed, e.store.majority)
	}
	e.describe(rep, split)
	if rep.TTL < 0 || rep.TTL > maxSplit {
		rep.TTL = maxSplit
	}
	return nil
}
