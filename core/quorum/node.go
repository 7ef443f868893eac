package quorum

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

const (
	// maxOpen is how many requests to one node are under way at most, and
	// maxProbes how many when it does not seem to answer: enough to notice that
	// it does again, too few to matter when it executes them all on waking.
	maxOpen   = 8192
	maxProbes = 8
	// manyProbes is the same when nodes that do not seem to answer are a majority:
	// then it may be this process that was slow, and all of them are needed.
	manyProbes = 512
	// suspectAfter is for how long nothing else than failures may come.
	suspectAfter = leastBudget
	// maxDebts is how many locks a node may owe; what is beyond ends by its TTL.
	maxDebts = 4096
	// debtBatch is how many are asked for at a time.
	debtBatch = 32
	// debtPause is the pause after one that failed; it doubles up to a second.
	debtPause = 50 * time.Millisecond
	// plausible is how long an answer may take for its clock to be believed.
	plausible = 20 * time.Millisecond
)

// errSuspect says that a node was not asked.
var errSuspect = errors.New("it has not answered lately, and was not asked")

// server is what a node needs of rediswire.Node. All of it returns at once but
// Renew, Meet and Check; callbacks come from any goroutine, even from within.
type server interface {
	Propose(p rediswire.Proposal, done func(rediswire.Vote, error))
	Withdraw(w rediswire.Withdrawal, done func(error))
	Renew(ctx context.Context, batch []driver.Renewal, done func(i int, contended bool, err error))
	Watch(key string, since time.Time, wake func(owner, next string)) (stop func())
	Meet(ctx context.Context) error
	Check(ctx context.Context) ([]string, error)
	Close() error
}

// node is one of the servers and what is known of its condition. It keeps a node that is slow,
// paused or cut off from delaying the others: requests to it do not pile up, and no
// caller waits for it unless its vote is needed.
type node struct {
	server server
	store  *Store
	index  int
	name   string

	// offset is the node's clock in µs less the time since the store's epoch;
	// zero while unknown.
	offset atomic.Int64

	// unheard counts the requests, of each kind, whose senders have not heard of
	// the outcome yet.
	unheard [2]atomic.Int32

	mu      sync.Mutex
	open    [2]int    // requests under way, of each kind
	failing time.Time // since when; zero after an answer
	suspect bool

	debts    map[string]*debt // by owner
	sweeping bool
	poke     chan struct{}
}

// kind is what a request is for. Withdrawals are tried for longer, and must not
// keep votes from finding out that the node answers again.
type kind int

const (
	voting kind = iota
	withdrawing
)

// admit reports whether a request may be sent.
func (n *node) admit(k kind) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	limit := maxOpen
	if n.suspect {
		limit = maxProbes
		if len(n.store.nodes)-int(n.store.suspects.Load()) < n.store.majority {
			limit = manyProbes
		}
	}
	if n.open[k] >= limit {
		return false
	}
	n.open[k]++
	return true
}

// ended is called when a request is over, with how long it took and the bound it
// had.
func (n *node) ended(k kind, err error, took, bound time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open[k]--
	switch {
	case took >= bound:
		n.judge(true) // it had its time, whatever it said in the end
	case err == nil, errors.Is(err, driver.ErrNotReady), errors.Is(err, driver.ErrNotOwner):
		n.failing = time.Time{}
		n.judge(false)
	case n.failing.IsZero():
		n.failing = time.Now() // refused, cut off or lost: once is nothing
	case time.Since(n.failing) >= suspectAfter:
		n.judge(true)
	}
}

// judge sets whether the node is suspect. Called with n.mu held.
func (n *node) judge(suspect bool) {
	switch {
	case suspect && !n.suspect:
		n.store.suspects.Add(1)
	case !suspect && n.suspect:
		n.store.suspects.Add(-1)
	}
	n.suspect = suspect
}

// mistrust marks a node that is overdue.
func (n *node) mistrust() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.judge(true)
}

func (n *node) suspected() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.suspect
}

// counts is nil unless the node is the same server as another, whose word then
// counts already.
func (n *node) counts() error {
	if err := n.store.admission.leftOut(n.index, time.Now()); errors.Is(err, driver.ErrConfig) {
		return err
	}
	return nil
}

// sawClock takes the node's time. The answer was on its way for a while, so that
// what is noted is behind the node's clock, never ahead: tokens do not run away.
func (n *node) sawClock(clock int64, sure bool) {
	if clock > 0 && (sure || n.offset.Load() == 0) {
		n.offset.Store(clock - time.Since(n.store.epoch).Microseconds())
	}
}

// propose asks for a vote. done may be called before it returns.
func (n *node) propose(ask rediswire.Proposal, bound time.Duration, done func(rediswire.Vote, error)) {
	n.unheard[voting].Add(1) // before the look at leaving, as Close does it after
	if n.store.leaving.Load() {
		done(rediswire.Vote{}, errClosed)
		n.told(voting)
		return
	}
	if !n.admit(voting) {
		done(rediswire.Vote{}, errSuspect)
		n.told(voting)
		return
	}
	begin := time.Now()
	n.server.Propose(ask, func(v rediswire.Vote, err error) {
		defer n.told(voting)
		took := time.Since(begin)
		n.ended(voting, err, took, bound)
		n.sawClock(v.Clock, took < plausible)
		done(v, err)
	})
}

// withdraw gives up a lock on the node. done may be called before it returns.
func (n *node) withdraw(w rediswire.Withdrawal, done func(error)) {
	n.unheard[withdrawing].Add(1)
	if !n.admit(withdrawing) {
		done(errSuspect)
		n.told(withdrawing)
		return
	}
	begin := time.Now()
	n.server.Withdraw(w, func(err error) {
		defer n.told(withdrawing)
		n.ended(withdrawing, err, time.Since(begin), time.Until(w.Deadline)+time.Since(begin))
		done(err)
	})
}

// told notes that the sender of a request has heard of its outcome, after it has:
// what it then owes is there when Close settles. It counts first and looks at leaving
// then, Close the other way round, so that one of the two sees the other.
func (n *node) told(k kind) {
	n.unheard[k].Add(-1)
	if n.store.leaving.Load() {
		select {
		case n.store.stir <- struct{}{}:
		default:
		}
	}
}

// busy reports whether the node may yet do something that it was asked for. Giving
// up a lock is asked for again and again where it fails, which is of no use while
// the node does not answer.
func (n *node) busy() bool {
	return n.unheard[voting].Load() > 0 || n.unheard[withdrawing].Load() > 0 && !n.suspected()
}

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
		// The stricter of the two. An owner without a limit is over for good, and
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
	if !n.sweeping {
		n.sweeping = n.store.spawn(n.sweep)
		return
	}
	select {
	case n.poke <- struct{}{}:
	default:
	}
}

// sweep settles debts until there are none.
func (n *node) sweep() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	pause := debtPause
	for {
		select {
		case <-timer.C:
		case <-n.poke:
		case <-n.store.shut:
			return
		}
		due, next := n.due(time.Now())
		if len(due) > 0 {
			if n.settle(due) {
				pause, next = debtPause, time.Now()
			} else {
				// The node does not answer. All others wait with these.
				next = time.Now().Add(pause)
				pause = min(2*pause, time.Second)
			}
		} else if next.IsZero() {
			return // sweeping was cleared with the list seen empty, in one section
		}
		timer.Reset(max(time.Until(next), 0))
	}
}

// due takes some debts whose time has come, drops those that have ended, and
// returns when the next is.
func (n *node) due(now time.Time) (due []*debt, next time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
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
	if len(n.debts) == 0 {
		n.sweeping = false
	}
	return due, next
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
		n.server.Withdraw(w, func(err error) {
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
