package quorum

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// Renew implements [driver.Store]. A lease is extended when a majority of the nodes has
// extended it (Redlock, "Making the algorithm more reliable: extending the lock"). If
// a majority answers that the owner does not hold the lock, the lease is lost. If
// neither has a majority, the renewal has failed, and the caller may try again. A vote
// that is left of an earlier proposal becomes one for the proposal that won, before it
// counts: else that proposal's withdrawal could take it away after it was counted. Renew
// does not give the lock back to nodes that have lost it: that would need a new vote.
func (s *Store) Renew(ctx context.Context, batch []driver.Renewal, done func(i int, contended bool, err error)) {
	if len(batch) == 0 {
		return
	}
	c := &tallies{
		store: s, each: make([]tally, len(batch)), decided: make(chan int, len(batch)),
	}
	asks := make([]rediswire.Confirmation, len(batch))
	for i := range batch {
		asks[i] = rediswire.Confirmation{Renewal: batch[i], Ballot: s.ballots.of(batch[i].Owner)}
	}
	// The nodes that are slower than a majority go on afterwards, also when the caller ends
	// its context on return: a request that was sent should count for as long as it can.
	behind := context.WithoutCancel(ctx)
	deadline, bounded := ctx.Deadline()
	for _, n := range s.nodes {
		fail := func(err error) {
			for i := range batch {
				c.count(i, false, err)
			}
		}
		if err := n.counts(); err != nil {
			fail(err)
			continue
		}
		if !s.work.Go(func() {
			ctx, cancel := behind, context.CancelFunc(func() {})
			if bounded {
				ctx, cancel = context.WithDeadline(behind, deadline)
			}
			defer cancel()
			n.server.Confirm(ctx, asks, c.count)
		}) {
			fail(errClosed)
		}
	}
	// done is called from here alone, so that none comes after the return.
	for n := range batch {
		select {
		case i := <-c.decided:
			t := &c.each[i] // no longer changed
			done(i, t.contended, t.outcome)
		case <-ctx.Done():
			c.abort(n, done)
			return
		}
	}
}

var errClosed = because(driver.ErrUnavailable, "the quorum is closed")

// because is an error of package driver, and why it is returned. The reason is a separate
// error, and the last: logs have the root cause of an error (observe.RootCause).
func because(kind error, format string, args ...any) error {
	return fmt.Errorf("%w: %w", kind, fmt.Errorf(format, args...))
}

// tallies counts the nodes' answers to a batch of renewals.
type tallies struct {
	store   *Store
	decided chan int // indices, each once; room for all

	mu   sync.Mutex
	each []tally
}

// tally is the count for one lease.
type tally struct {
	ok, not, failed int
	contended       bool
	decided         bool
	outcome         error
	last            string // what failed
}

// count takes a node's answer for one lease.
func (c *tallies) count(i int, contended bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.each[i]
	if t.decided {
		return // a node that is late changes nothing: the caller has its answer
	}
	switch {
	case err == nil:
		t.ok++
	case errors.Is(err, driver.ErrNotOwner):
		t.not++
	default:
		t.failed++
		t.last = err.Error()
	}
	t.contended = t.contended || contended
	n, most := len(c.store.nodes), c.store.majority
	left := n - t.ok - t.not - t.failed
	switch {
	case t.ok >= most:
	case t.not >= most:
		t.outcome = driver.ErrNotOwner
	case t.ok+left >= most || t.not+left >= most:
		return
	default:
		t.outcome = because(driver.ErrUnavailable, "%d of %d nodes renewed the lease, %d are needed; %d do not know it, %d failed (%s)",
			t.ok, n, most, t.not, t.failed, t.last)
	}
	t.decided = true
	c.decided <- i
}

// abort reports the undecided items when the caller's time has ended; n have been
// reported. An item that was decided at the same moment is in the channel still.
func (c *tallies) abort(n int, done func(int, bool, error)) {
	c.mu.Lock()
	for i := range c.each {
		if t := &c.each[i]; !t.decided {
			t.decided = true
			t.outcome = because(driver.ErrUnavailable, "%d of %d nodes renewed the lease in time, %d are needed",
				t.ok, len(c.store.nodes), c.store.majority)
			c.decided <- i
		}
	}
	c.mu.Unlock()
	for range len(c.each) - n {
		i := <-c.decided
		done(i, c.each[i].contended, c.each[i].outcome)
	}
}

// Release implements [driver.Store]. It gives the lock up on all nodes, also on nodes
// that did not answer the acquisition. It succeeds when the lock is gone from a
// majority. If a majority did not hold the lock for the owner, it returns
// [driver.ErrNotOwner]. In the background the store repeats the request to nodes that do
// not answer, until they do.
func (s *Store) Release(_ context.Context, ask driver.ReleaseRequest) (found driver.Waiting, err error) {
	sent := time.Now()
	s.gone.add(ask.Owner)
	if ask.Deadline.IsZero() {
		ask.Deadline = time.Now().Add(s.budget(ask.TTL))
	}
	w := rediswire.Withdrawal{
		Key: ask.Key, Owner: ask.Owner, Token: max(ask.Token, s.ballots.of(ask.Owner)), TTL: ask.TTL,
		Keep: ask.TTL + fenceTime, Waiter: ask.Waiter, Deadline: ask.Deadline,
	}
	s.ballots.forget(ask.Owner)
	r := &returning{store: s, w: w, answers: make([]error, len(s.nodes)), open: len(s.nodes), decided: make(chan struct{})}
	for i := range r.answers {
		r.answers[i] = errOpen
	}
	for i, n := range s.nodes {
		if err := n.counts(); err != nil {
			r.answered(i, "", err)
			continue
		}
		n.withdraw(w, func(waiting driver.Waiters, err error) { r.answered(i, waiting, err) })
	}
	// A node that is slow is waited for only if it is needed. Requests that are open then
	// end by the nodes' deadline and timeout.
	timer := time.NewTimer(s.budget(ask.TTL))
	defer timer.Stop()
	select {
	case <-r.decided:
	case <-timer.C:
		r.overdue()
		<-r.decided
	}
	found, err = r.list().Found(ask.Waiter), r.err
	if err == nil && found.Others > 0 && ask.Waiter == "" {
		s.pauses.after(ask.Key, time.Since(sent))
	}
	if err == nil && ask.Waiter != "" {
		s.awaits(place{ask.Waiter.ID(), ask.Key}, sent, sent.Add(ask.TTL+spare))
	}
	return found, err
}

var errOpen = errors.New("no answer yet")

// returning is a release on its way.
type returning struct {
	store   *Store
	w       rediswire.Withdrawal
	decided chan struct{} // closed when it is decided

	mu      sync.Mutex
	answers []error // by node
	open    int
	late    bool // the nodes have had their time
	done    bool
	err     error
	waiting driver.Waiters // the longest list of a node
}

func (r *returning) answered(i int, waiting driver.Waiters, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(waiting) > len(r.waiting) {
		r.waiting = waiting
	}
	r.answers[i] = err
	r.open--
	r.progress(i, err)
}

// list returns the lockers that wait, as far as the nodes have said. A release was
// announced to them only if it succeeded.
func (r *returning) list() driver.Waiters {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return ""
	}
	return r.waiting
}

// overdue has the nodes that have not answered by now be waited for only if there
// is no majority without them.
func (r *returning) overdue() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = true
	r.progress(-1, nil)
}

// progress decides the release if that can be done, and sees to the rest on the nodes.
// Called with r.mu held, after an answer.
func (r *returning) progress(i int, err error) {
	failed := err != nil && !errors.Is(err, driver.ErrNotOwner)
	if failed {
		// In any case this node still has to give it up, as soon as
		// it can be reached.
		r.store.nodes[i].owe(debt{Withdrawal: r.w})
	}
	if !r.done && r.decide() {
		r.done = true
		close(r.decided)
	}
}

// decide reports whether the outcome is certain. Called with r.mu held.
func (r *returning) decide() bool {
	yes, not, waiting := 0, 0, 0
	for i, err := range r.answers {
		switch {
		case err == nil:
			yes++
		case errors.Is(err, driver.ErrNotOwner):
			not++
		case errors.Is(err, errOpen) && !r.late && !r.store.nodes[i].suspected():
			waiting++
		}
	}
	most := r.store.majority
	switch {
	case yes >= most:
		return true
	case not >= most:
		r.err = driver.ErrNotOwner
		return true
	case waiting > 0:
		return false
	case yes+not >= most:
		// On nodes that never granted it, it is not the owner's either. It is
		// gone from a majority, and was the owner's where it was.
		return true
	case r.open > 0:
		return false // without the nodes that do not seem to answer it is none
	}
	r.err = because(driver.ErrUnavailable, "the lock is gone from %d of %d nodes, %d are needed",
		yes+not, len(r.answers), most)
	return true
}
