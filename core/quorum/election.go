package quorum

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

const (
	// maxRounds bounds the rounds of one Acquire; then its caller decides.
	maxRounds = 24
	// maxFails is how often too few nodes may fail to answer: a message that was
	// lost, or a pause of this process, is no outage yet.
	maxFails = 2
	// maxLags is how often a lock is asked for again at once if its release was announced,
	// but has not reached all nodes.
	maxLags = 6
	// maxDoubts is how often an owner is met on as many nodes as can be reached,
	// though on no majority, before it is taken for the holder.
	maxDoubts = 4
	// minSplit and maxSplit bound the random pause after a split vote.
	minSplit = 2 * time.Millisecond
	maxSplit = 100 * time.Millisecond
	// roundSlack is what a round before a caller's deadline is given on a busy
	// machine, beyond the time that the rounds before it took.
	roundSlack = 50 * time.Millisecond
)

// course is how an election went so far. It is of the goroutine that runs the rounds.
type course struct {
	rounds int
	chases int // higher ballots in a row
	lags   int
	fails  int    // rounds in a row that too few nodes answered
	doubts int    // rounds in a row with an owner that may have had a majority
	rival  string // that owner
	pause  time.Duration
	// longest is the time from the first proposal of a round until its verdict, of
	// the slowest round so far.
	longest time.Duration
}

// present is the round under way. The mutex of the election guards it.
type present struct {
	round  int
	ballot int64
	sent   time.Time     // before the first proposal of the round left
	budget time.Duration // of a node for its vote in the round
	// bound is how long the round lasts at most: the budget. Before a majority can be
	// proposed to, it is the time to meet the nodes. That is no part of a lease: the next
	// round has the first votes that can win.
	bound time.Duration
}

// election is one Acquire: rounds of proposals to all nodes, until a majority has
// granted one or it is known that none will.
//
// A round has a ballot, the fencing token it proposes, above the ballot of the round
// before. Only votes for the round's own ballot count. A node that takes a higher
// ballot of the same owner gives it a whole lease anew, so that all votes that
// count were given after the round's sent, and the lease counts from there.
//
// The rounds are run by one goroutine at a time. Answers come from the nodes'
// goroutines, also long after the election was decided.
type election struct {
	store *Store
	ask   driver.AcquireRequest

	course

	mu    sync.Mutex
	nodes []part
	present
	least  int64 // the highest token that any node has told
	phase  phase
	voted  bool          // a node has granted a proposal, or may do so yet
	doubt  bool          // the caller knows that outcomes are unknown
	open   int           // proposals under way, of all rounds
	lapses time.Time     // when no proposal, of all rounds, is executed any more
	poke   chan struct{} // an answer has come
}

// errUnmarked is in place of the vote of a node that does not have the mark that is known.
var errUnmarked = because(driver.ErrNotReady, "it does not show that it has kept its votes")

type phase int

const (
	undecided phase = iota
	won
	lost
)

// part is a node's part in an election.
type part struct {
	answer answer // to the present round's proposal
	vote   rediswire.Vote
	err    error

	open    int    // proposals under way, of all rounds
	mark    string // the mark in the present round's proposal; see mark
	ends    int64  // when that proposal ends, by the node's clock
	holds   bool   // it has granted a proposal that was not withdrawn since
	unknown bool   // a proposal may yet be executed, until the election lapses
}

type answer int

const (
	pending answer = iota
	yes
	low  // the lock is free, and the ballot too low
	held // by another owner
	dead // no answer, or none that is a vote
	out  // it has no vote at present
)

// Acquire implements [driver.Store], by the steps of Redlock. It notes the time and asks
// all nodes at once. The lock is granted when a majority has granted it within the
// validity. Otherwise the store gives it up on all nodes; after a split vote it tries
// again after a random pause. Acquire returns as soon as the outcome is certain, and
// does not wait for slower nodes. For a lease longer than [MaxTTL], and for a place
// ([driver.Kind]), it returns an error at once.
func (s *Store) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	if err := s.Serves(driver.Hold{Kind: ask.Kind, TTL: ask.TTL}); err != nil {
		return driver.Reply{}, err
	}
	if s.leaving.Load() {
		return driver.Reply{}, errClosed
	}
	s.start()
	if !s.pauses.wait(ctx, ask.Key) {
		return leftUnsent(&ask)
	}
	late := ask.Late
	ask.Late = func(rep driver.Reply, err error) { late(s.asked(&ask, rep, err)) }
	e := &election{
		store: s, ask: ask, course: course{pause: minSplit},
		nodes: make([]part, len(s.nodes)), poke: make(chan struct{}, 1),
	}
	for {
		begin := time.Now()
		e.propose()
		v, ok := e.await(ctx, ask.Deadline)
		if e.bound == e.budget {
			e.longest = max(e.longest, time.Since(begin))
		}
		if !ok {
			// The caller leaves while votes are out. Their outcome goes to Late;
			// nothing is proposed any more.
			if !s.work.Go(func() {
				v, _ := e.await(context.Background(), time.Time{})
				ask.Late(e.conclude(v))
			}) {
				return e.conclude(unreachable)
			}
			return driver.Reply{}, driver.ErrPending
		}
		if !e.again(ctx, v) {
			rep, err := e.conclude(v)
			return s.asked(&ask, rep, err)
		}
	}
}

// Serves implements [driver.Limited]: a quorum keeps exclusive locks only, with leases of
// at most [MaxTTL].
func (s *Store) Serves(h driver.Hold) error {
	switch {
	case h.Kind.Place():
		return fmt.Errorf("%w: a quorum keeps exclusive locks only: for shared locks and permits use package redisstore",
			driver.ErrConfig)
	case h.TTL > s.maxTTL:
		return fmt.Errorf("%w: a lease of %v is longer than MaxTTL, %v: give core.Watchdog or core.TTL less, or all processes a greater MaxTTL",
			driver.ErrConfig, h.TTL, s.maxTTL)
	}
	return nil
}

// propose begins a round and sends its proposals to all nodes at once.
func (e *election) propose() {
	e.rounds++
	now := time.Now()
	e.mu.Lock()
	e.round++
	least := max(e.least, e.ballot)
	if e.chases > 1 {
		// Where a holder has died, the least ballot of a node grows with the clock. It has
		// passed the node's answer by the time that we are back.
		least += now.Sub(e.sent).Microseconds() << min(e.chases, 8)
	}
	if e.ballot = 0; e.round > 1 || !e.store.clocksDiffer() {
		e.ballot = e.store.ballot(e.ask.Owner, least)
	}
	e.sent = now
	// Answers that are late may be so because the nodes are far, or busy.
	e.budget = min(e.store.budget(e.ask.TTL)<<e.fails, e.store.mostBudget(e.ask.TTL))
	round, ballot, known := e.round, e.ballot, 0
	for i := range e.nodes {
		part := &e.nodes[i]
		part.vote, part.err = rediswire.Vote{}, e.store.admission.leftOut(i, now)
		part.mark = e.store.admission.mark(i)
		if part.err != nil {
			// It is not asked either: a vote that it took now would only have to go again.
			part.answer = out
			continue
		}
		part.answer = pending
		part.open++
		e.open++
		var lapses time.Time
		if part.ends, lapses = e.store.nodes[i].window(now, keptFor*e.budget); lapses.After(e.lapses) {
			e.lapses = lapses
		}
		if part.mark != "" && part.ends != 0 {
			known++
		}
	}
	if e.bound = e.budget; known < e.store.majority {
		e.bound = meetTrips * cmp.Or(e.store.timeout, mostBudget)
	}
	bound := e.bound
	e.mu.Unlock()
	ask := rediswire.Proposal{
		Key: e.ask.Key, Owner: e.ask.Owner, TTL: e.ask.TTL, Keep: e.ask.TTL + fenceTime, Waiter: e.ask.Waiter,
		Deadline: now.Add(bound),
	}
	for i, n := range e.store.nodes {
		var ok bool
		// The answers of this round are written by answered alone, which may be
		// at work already. Which nodes have no vote was decided above and does not
		// change.
		if ask.Mark, ask.Ends, ok = e.terms(i); !ok {
			continue
		}
		if ask.Token = ballot; ask.Mark == "" || ask.Ends == 0 {
			ask.Token = 0 // it is not known yet, and has a proposal in the next round
		}
		n.propose(ask, bound, func(v rediswire.Vote, err error) { e.answered(i, round, ballot, v, err) })
	}
}

// terms are the mark and the end of the present round's proposal to a node; not ok if the
// node has no vote.
func (e *election) terms(i int) (mark string, ends int64, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	part := &e.nodes[i]
	return part.mark, part.ends, part.answer != out
}

// answered takes a node's answer to the proposal of a round.
func (e *election) answered(i, round int, ballot int64, v rediswire.Vote, err error) {
	e.mu.Lock()
	part := &e.nodes[i]
	part.open--
	e.open--
	part.unknown = part.unknown || v.Unknown
	part.holds = part.holds || v.Granted
	e.voted = e.voted || v.Granted || v.Unknown
	if err == nil && v.Holder == "" {
		e.least = max(e.least, v.Token)
	}
	if e.phase != undecided {
		late := e.lateAnswer(i, v)
		e.forgetBallot()
		e.mu.Unlock()
		late()
		return
	}
	// Whether it may vote is asked now and not when it was asked: over a new
	// connection it has introduced itself before it answered.
	barred, mark := e.store.admission.leftOut(i, time.Now()), e.store.admission.mark(i)
	if v.Unmarked {
		e.store.nodes[i].refresh()
		if mark == part.mark {
			barred = errUnmarked
		}
	}
	if round == e.round && part.answer == pending {
		part.vote, part.err = v, err
		switch {
		case barred != nil:
			part.answer, part.err = out, barred
		case err != nil:
			part.answer = dead
		case v.Granted && v.Token == ballot && mark == part.mark:
			part.answer = yes
		case v.Holder == "":
			// Or the node was not known well enough when it was asked: its mark, or a
			// clock that was set. Or it is ours by another ballot, which a higher one
			// replaces.
			part.answer = low
		default:
			part.answer = held
		}
	}
	e.mu.Unlock()
	select {
	case e.poke <- struct{}{}:
	default:
	}
}

// lateAnswer takes an answer that came after the decision, and returns what to do
// about it without the mutex. An election that was won keeps a late vote: one node
// more. The release goes to all nodes, and a proposal that comes after it comes too late.
// If the election was lost, the vote has to go. Called with e.mu held.
func (e *election) lateAnswer(i int, v rediswire.Vote) (after func()) {
	if e.phase == won || e.ballot == 0 || !v.Granted && (!v.Unknown || e.doubt) {
		// No node takes a lock for zero: a vote belongs to another election of the
		// owner. And a limit of zero would mean no limit.
		return func() {}
	}
	n, d := e.store.nodes[i], debt{Withdrawal: e.withdrawal(true), lapses: e.lapses}
	if v.Granted {
		return func() { n.giveUp(d.Withdrawal) }
	}
	return func() { n.owe(d) }
}

// forgetBallot forgets the ballot of an election that was lost without a vote: nothing of
// it is on its way. Called with e.mu held.
func (e *election) forgetBallot() {
	if e.phase == lost && e.open == 0 && !e.voted {
		e.store.ballots.drop(e.ask.Owner, e.ballot)
	}
}

// unknown reports whether a proposal with a lost answer may yet be executed. Called
// with e.mu held.
func (e *election) unknown() bool {
	for i := range e.nodes {
		if e.nodes[i].unknown {
			return true
		}
	}
	return false
}

// await waits until the round is decided, at most for the nodes' budget. It
// reports false when ctx ended or the deadline, unless zero, passed before.
func (e *election) await(ctx context.Context, deadline time.Time) (verdict, bool) {
	e.mu.Lock()
	over := time.NewTimer(time.Until(e.sent.Add(e.bound)))
	e.mu.Unlock()
	defer over.Stop()
	var late <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		late = timer.C
	}
	for {
		if v := e.judge(false); v != wait {
			return v, true
		}
		select {
		case <-e.poke:
		case <-over.C:
			return e.judge(true), true
		case <-ctx.Done():
			return wait, false
		case <-late:
			return wait, false
		}
	}
}
