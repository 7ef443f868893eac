package quorum

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

const (
	// maxRounds bounds the rounds of one Acquire; then its caller decides.
	maxRounds = 24
	// maxFails is how often too few nodes may fail to answer: a message that was
	// lost, or a pause of this process, is no outage yet.
	maxFails = 2
	// maxLags is how often a lock whose release was heard of, but has not reached
	// all nodes, is asked for again at once.
	maxLags = 6
	// maxDoubts is how often an owner is met on as many nodes as can be reached,
	// though on no majority, before it is taken for the holder.
	maxDoubts = 4
	// minSplit and maxSplit bound the random pause after a split vote.
	minSplit = 2 * time.Millisecond
	maxSplit = 100 * time.Millisecond
)

// election is one Acquire: rounds of proposals to all nodes, until a majority has
// granted one or it is known that none will.
//
// A round has a ballot, the fencing token it proposes, above that of the round
// before. Only votes for the round's own ballot count. A node that takes a higher
// ballot of the same owner gives it a whole lease anew, so that all votes that
// count were given after the round's sent, and the lease counts from there.
//
// The rounds are run by one goroutine at a time. Answers come from the nodes'
// goroutines, also long after the election was decided.
type election struct {
	store  *Store
	ask    driver.AcquireRequest
	budget time.Duration

	// Of the goroutine that runs the rounds.
	rounds int
	chases int // higher ballots in a row
	lags   int
	fails  int    // rounds in a row that too few nodes answered
	doubts int    // rounds in a row in which one owner may have had a majority
	rival  string // that owner
	pause  time.Duration

	mu     sync.Mutex
	seats  []seat
	round  int
	ballot int64
	sent   time.Time // before the first proposal of the round left
	least  int64     // the highest token that any node has told
	phase  phase
	freed  bool          // won, and given up since
	doubt  bool          // the caller was told that outcomes are unknown
	open   int           // proposals under way, of all rounds
	poke   chan struct{} // an answer has come
}

type phase int

const (
	undecided phase = iota
	won
	lost
)

// seat is a node's part in an election.
type seat struct {
	answer answer // to the present round's proposal
	vote   rediswire.Vote
	err    error

	open    int  // proposals under way, of all rounds
	holds   bool // it has granted a proposal that was not withdrawn since
	unknown bool // a proposal may yet be executed
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
// does not wait for slower nodes. For a lease longer than [MaxTTL] it returns an
// error at once.
func (s *Store) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	if ask.TTL > s.maxTTL {
		return driver.Reply{}, s.tooLong(ask.TTL)
	}
	if s.leaving.Load() {
		return driver.Reply{}, errClosed
	}
	e := &election{
		store: s, ask: ask, budget: s.budget(ask.TTL), pause: minSplit,
		seats: make([]seat, len(s.peers)), poke: make(chan struct{}, 1),
	}
	s.remember(e)
	for {
		e.propose()
		v, ok := e.await(ctx, ask.Deadline)
		if !ok {
			// The caller leaves while votes are out. Their outcome goes to Late;
			// nothing is proposed any more.
			if !s.spawn(func() {
				v, _ := e.await(context.Background(), time.Time{})
				ask.Late(e.conclude(v))
			}) {
				return e.conclude(unreachable)
			}
			return driver.Reply{}, driver.ErrPending
		}
		if !e.again(ctx, v) {
			return e.conclude(v)
		}
	}
}

func (s *Store) tooLong(ttl time.Duration) error {
	return fmt.Errorf("%w: %w: a lease of %v; MaxTTL allows %v, and has to be the same in all processes",
		driver.ErrUnavailable, driver.ErrConfig, ttl, s.maxTTL)
}

// propose begins a round and sends its proposals to all nodes at once.
func (e *election) propose() {
	e.rounds++
	now := time.Now()
	e.mu.Lock()
	e.round++
	least := max(e.least, e.ballot)
	if e.chases > 1 {
		// Where a holder has died, what a node demands goes on with the clock,
		// and has passed what it said by the time that we are back.
		least += now.Sub(e.sent).Microseconds() << min(e.chases, 8)
	}
	e.ballot = e.store.ballot(least)
	e.sent = now
	round, ballot := e.round, e.ballot
	for i := range e.seats {
		seat := &e.seats[i]
		seat.vote, seat.err = rediswire.Vote{}, e.store.members.leftOut(i, now)
		if seat.err != nil {
			// It is not asked either: what it took now would only have to go again.
			seat.answer = out
			continue
		}
		seat.answer = pending
		seat.open++
		e.open++
	}
	e.mu.Unlock()
	ask := rediswire.Proposal{
		Key: e.ask.Key, Owner: e.ask.Owner, TTL: e.ask.TTL, Token: ballot, Waiter: e.ask.Waiter, Rest: e.ask.Rest,
		Deadline: now.Add(e.budget),
	}
	for i, p := range e.store.peers {
		// The answers of this round are written by answered alone, which may be
		// at work already. Which nodes have no vote was decided above and does not
		// change.
		if e.isOut(i) {
			continue
		}
		p.propose(ask, e.budget, func(v rediswire.Vote, err error) { e.answered(i, round, ballot, v, err) })
	}
}

func (e *election) isOut(i int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seats[i].answer == out
}

// answered takes a node's answer to the proposal of a round.
func (e *election) answered(i, round int, ballot int64, v rediswire.Vote, err error) {
	e.mu.Lock()
	seat := &e.seats[i]
	seat.open--
	e.open--
	seat.unknown = seat.unknown || v.Unknown
	seat.holds = seat.holds || v.Granted
	if err == nil && v.Holder == "" {
		e.least = max(e.least, v.Token)
	}
	if e.phase != undecided {
		late := e.straggler(i, v)
		e.mu.Unlock()
		late()
		return
	}
	// Whether it may vote is asked now and not when it was asked: over a new
	// connection it has introduced itself before it answered.
	barred := e.store.members.leftOut(i, time.Now())
	if round == e.round && seat.answer == pending {
		seat.vote, seat.err = v, err
		switch {
		case barred != nil:
			seat.answer, seat.err = out, barred
		case err != nil:
			seat.answer = dead
		case v.Granted && v.Token == ballot:
			seat.answer = yes
		case v.Holder == "":
			seat.answer = low // or ours by another ballot, which a higher one replaces
		default:
			seat.answer = held
		}
	}
	e.mu.Unlock()
	select {
	case e.poke <- struct{}{}:
	default:
	}
}

// straggler takes an answer that came after the decision, and returns what to do
// about it without the mutex. An election that was won keeps a late vote: one node
// more. Once the lock was given up, or if it was never won, the vote has to go,
// whichever of the two came first: the giving up was sent when this proposal may
// not have been executed. Called with e.mu held.
func (e *election) straggler(i int, v rediswire.Vote) (after func()) {
	p := e.store.peers[i]
	w := rediswire.Withdrawal{Key: e.ask.Key, Owner: e.ask.Owner, TTL: e.ask.TTL, Quiet: true}
	if e.phase == lost {
		w.Limit = e.ballot // the owner may try again, with a higher one
	}
	gone := e.phase == lost || e.freed
	switch {
	case gone && (v.Granted || v.Unknown && !e.doubt):
		return func() { p.owe(debt{Withdrawal: w, again: v.Unknown}) }
	case !gone && v.Unknown && !e.doubt:
		// While the lock is held it may be executed, but not afterwards. The
		// release looks here, for as long as anything can be on the way.
		time.AfterFunc(e.ask.TTL, func() { e.store.forget(e) })
	case e.settled():
		return func() { e.store.forget(e) }
	}
	return func() {}
}

// unknown reports whether a proposal may yet be executed whose answer was lost.
// Called with e.mu held.
func (e *election) unknown() bool {
	for i := range e.seats {
		if e.seats[i].unknown {
			return true
		}
	}
	return false
}

// settled reports whether a release needs nothing from the election: all answers have
// come, and the caller was told of the lost ones and takes care of them. Called with
// e.mu held.
func (e *election) settled() bool { return e.open == 0 && (e.doubt || !e.unknown()) }

// await waits until the round is decided, at most for the nodes' budget. It
// reports false when ctx ended or the deadline, unless zero, passed before.
func (e *election) await(ctx context.Context, deadline time.Time) (verdict, bool) {
	e.mu.Lock()
	over := time.NewTimer(time.Until(e.sent.Add(e.budget)))
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

// again reports whether there is another round, after the pause that it takes.
func (e *election) again(ctx context.Context, v verdict) bool {
	var pause time.Duration
	if e.chases++; v != higher {
		e.chases = 0
	}
	switch v {
	case higher:
		// At once, above what the nodes have told. What they hold stays, and
		// takes the higher ballot.
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
		if !e.ask.Deadline.IsZero() && time.Now().Add(pause).After(e.ask.Deadline) {
			return false
		}
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		case <-e.store.shut:
			return false
		}
	}
	return true
}

// withdraw gives up what the nodes have granted so far.
//
// It announces that to waiters only if the owner may have had a majority without
// knowing it: then others saw the lock held and wait for its release. In every other
// case no waiter waits for this owner. An announcement would wake the waiters of the
// real holder, and they would take and give up the free nodes in turns.
func (e *election) withdraw() {
	e.mu.Lock()
	limit := e.ballot
	var nodes []int
	maybe := 0
	for i := range e.seats {
		seat := &e.seats[i]
		if seat.holds || seat.unknown || seat.open > 0 {
			maybe++
		}
		if seat.holds {
			seat.holds = false
			nodes = append(nodes, i)
		}
	}
	quiet := maybe < e.store.majority
	e.mu.Unlock()
	w := rediswire.Withdrawal{
		Key: e.ask.Key, Owner: e.ask.Owner, TTL: e.ask.TTL, Limit: limit, Quiet: quiet,
		Deadline: time.Now().Add(e.budget),
	}
	for _, i := range nodes {
		p := e.store.peers[i]
		p.withdraw(w, func(err error) {
			if err != nil && !errors.Is(err, driver.ErrNotOwner) {
				p.owe(debt{Withdrawal: w})
			}
		})
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
		e.doubt = rep.Ambiguous
		settled := e.settled()
		e.mu.Unlock()
		if settled {
			e.store.forget(e) // a release has nothing to know
		}
		return rep, nil
	}
	e.phase = lost
	for i := range e.seats {
		seat := &e.seats[i]
		// Of nodes that did not answer in their time the caller is told that they
		// may yet do what they were asked. Others that are still out are cared
		// for here, by straggler.
		if seat.unknown || seat.answer == dead && seat.open > 0 {
			rep.Ambiguous = true
		}
	}
	rep.Ambiguous = rep.Ambiguous || v == granted
	e.doubt = rep.Ambiguous
	var err error
	switch v {
	case granted:
		err = fmt.Errorf("%w: a majority granted the lock after the end of its lease", driver.ErrUnavailable)
	case taken, lagging, doubtful:
		e.describe(&rep, v)
	case unreachable:
		err = e.complaint()
	case wait, higher, split:
		err = e.divided(&rep)
	}
	e.mu.Unlock()
	e.store.forget(e)
	e.withdraw()
	return rep, err
}
