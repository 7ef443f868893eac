package quorum

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/rediswire"
	"github.com/interlock-go/interlock/core/internal/timers"
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
	// plausible is how long an answer may take for its clock to be believed rather than
	// the clock that is known.
	plausible = 20 * time.Millisecond
	// keptFor is for how many budgets of a round its proposals are good: the caller waits
	// for one budget, and an election that was won keeps votes that come later.
	keptFor = 2
)

// errSuspect says that a node was not asked.
var errSuspect = errors.New("it has not answered lately, and was not asked")

// server is what a node needs of rediswire.Node. All of it returns at once but
// Confirm, Meet, Mark and Check; callbacks come from any goroutine, even from within.
type server interface {
	Propose(p rediswire.Proposal, done func(rediswire.Vote, error))
	Withdraw(w rediswire.Withdrawal, done func(waiting driver.Waiters, err error))
	Confirm(ctx context.Context, batch []rediswire.Confirmation, done func(i int, contended bool, err error))
	Watch(key string, since time.Time, wake func(owner string, next driver.Waiters)) (stop func())
	Meet(ctx context.Context) error
	Mark(ctx context.Context, from, to string) error
	Check(ctx context.Context) ([]string, error)
	Close() error
}

// owing is what a node has to be given up at. The mutex of the node guards it.
type owing struct {
	debts    map[string]*debt // by owner
	sweeping bool             // some are being settled
	more     bool             // one was added meanwhile
	pause    time.Duration    // after the last ones; zero: the node answered
}

// nodeClock is what is known of the clock of a node.
type nodeClock struct {
	// offset is the node's clock in µs less the time since the store's epoch; zero while
	// unknown. It is too low by no more than lag, in µs: the answer that told the clock
	// took as long as that.
	offset, lag atomic.Int64
	clocks      logs.Throttle // lines about a clock that is wrong
}

// node is a server and its condition. It keeps a node that is slow, paused or cut off
// from delaying the others: requests to it do not pile up, and no caller waits for it
// unless its vote is needed.
type node struct {
	timers.Slot // of the sweep of its debts

	server server
	store  *Store
	index  int
	name   string

	nodeClock

	// trip is the time that an answer of the node took lately, in ns; zero before the first.
	trip atomic.Int64

	// stale has a token when the node's mark has to be looked at.
	stale chan struct{}

	// unheard counts the requests, of each kind, with senders that do not know the outcome
	// yet.
	unheard [2]atomic.Int32

	mu      sync.Mutex
	open    [2]int    // requests under way, of each kind
	failing time.Time // since when; zero after an answer
	suspect bool

	owing
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

// ended is called when a request has ended, with how long it took and the bound it
// had.
func (n *node) ended(k kind, err error, took, bound time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open[k]--
	switch {
	case took >= bound:
		n.judge(true) // it had its time, and its late answer changes nothing
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

// counts is nil unless the node is the same server as another: then the answer of the
// other counts already.
func (n *node) counts() error {
	if err := n.store.admission.leftOut(n.index, time.Now()); errors.Is(err, driver.ErrConfig) {
		return err
	}
	return nil
}

// sawClock takes the node's time from the answer to a request at the time sent. The
// answer was on its way for a while, so the noted time lags the node's clock and is
// never ahead: tokens do not run away. An answer that took long is worth less than the
// earlier note, unless it shows that the clock was set.
func (n *node) sawClock(clock int64, sent, now time.Time) {
	if clock <= 0 {
		return
	}
	offset, lag := clock-now.Sub(n.store.epoch).Microseconds(), now.Sub(sent).Microseconds()
	known, upTo := n.offset.Load(), n.lag.Load()
	wasSet := offset > known+upTo || offset+lag < known
	if known == 0 || wasSet || now.Sub(sent) < plausible {
		n.lag.Store(lag) // that the two can be read apart costs a proposal at most
		n.offset.Store(offset)
	}
}

// took notes how long an answer of the node was on its way: at once if that is longer than
// the earlier note, and else in part.
func (n *node) took(d time.Duration) {
	trip := n.trip.Load()
	n.trip.Store(max(int64(d), trip-(trip-int64(d))/8, 1))
}

// window is until when a proposal of a round that is good for a time from begin may be
// executed: by the node's clock, zero while that is unknown, and by ours.
func (n *node) window(begin time.Time, good time.Duration) (ends int64, lapses time.Time) {
	lag := n.lag.Load()
	lapses = begin.Add(good + time.Duration(lag)*time.Microsecond)
	if offset := n.offset.Load(); offset != 0 {
		ends = offset + lapses.Sub(n.store.epoch).Microseconds()
	}
	return ends, lapses
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
		n.sawClock(v.Clock, begin, begin.Add(took))
		switch {
		case ask.Token == 0:
			v.Unknown = false // it takes nothing
		case err == nil:
			n.took(took)
		}
		done(v, err)
	})
}

// withdraw gives up a lock on the node. done may be called before it returns.
func (n *node) withdraw(w rediswire.Withdrawal, done func(waiting driver.Waiters, err error)) {
	n.unheard[withdrawing].Add(1)
	if !n.admit(withdrawing) {
		done("", errSuspect)
		n.told(withdrawing)
		return
	}
	begin := time.Now()
	n.server.Withdraw(w, func(waiting driver.Waiters, err error) {
		defer n.told(withdrawing)
		n.ended(withdrawing, err, time.Since(begin), time.Until(w.Deadline)+time.Since(begin))
		done(waiting, err)
	})
}

// giveUp withdraws what an election that was lost has on the node; later, if the node
// does not seem to answer.
func (n *node) giveUp(w rediswire.Withdrawal) {
	if n.suspected() {
		n.owe(debt{Withdrawal: w})
		return
	}
	n.withdraw(w, func(_ driver.Waiters, err error) {
		if err != nil && !errors.Is(err, driver.ErrNotOwner) {
			n.owe(debt{Withdrawal: w})
		}
	})
}

// told notes that the sender of a request knows its outcome, after it does: the
// resulting debts are there when Close settles. It counts first and looks at leaving
// then, Close the other way round, so that at least the second sees the first.
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
