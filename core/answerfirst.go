package core

import (
	"context"

	"github.com/interlock-go/interlock/core/internal/lock"
)

// AnswerFirst lets the answer of a request leave while the release of its lock is on the way
// to the store. The client waits for one round trip, to take the lock, in place of two. That
// saves time where the store is a network away, and no work. When the client has its answer,
// the lock may not be free yet, for a round trip or, if the store fails, for longer: a test
// that asserts that it is free has to wait for that.
//
// The next request for the lock waits: in this process for the answer to the release, in
// another process for the lock. So the rule must wait. With [Wait](0) the constructor returns
// [ErrConfig], because a client that asks again at once would be refused for its own lock.
//
// A lock that the next caller of this process waits for is handed over before the answer, as
// without the option. The result of the release reaches [OnLost] and the [observe.Observer] as
// without the option, only later. The share of a principal ([PerPrincipal]) ends with its
// handler. Before its answer, a rule with [CheckAnswer] still waits for the check.
//
// At most 256 requests of a locker can have their releases under way like this; further
// requests wait for their releases, as without the option. [Locker.Close] waits for all
// releases.
//
// The answer of an idempotent request (package idempotency) always waits until the store has
// it. On one Redis the release shares a pipeline with the answer and takes no extra time, so
// there the option changes nothing. On PostgreSQL, and where a transaction ends first, the
// release comes after it, and the answer does not wait for that.
//
// Default: off; the lock is free when the client has its answer.
func AnswerFirst() GuardOption {
	return guardOption(func(c *config) { c.guard.answerFirst = true })
}

// releaseBehind is the first call of release for a caller that does not wait for the store.
// In this process the lease has ended, and its lock is handed over or under release, when
// releaseBehind returns.
func (lease *Lease) releaseBehind(ctx context.Context) {
	l, all := lease.config.locker, lease.locks()
	parted := make([]lock.Parting, len(all))
	unsent := false
	for i, w := range all {
		l.locks.Part(w, &parted[i])
		unsent = unsent || parted[i].Unsent()
	}
	// The values of ctx belong to a request that may have ended by then: gin uses its contexts
	// again. A panic of the store or the observer would reach no server that recovers.
	if !unsent || !l.locks.Behind(func() {
		l.calls.told("release behind an answer", func() { _ = lease.releaseObserved(context.Background(), parted) })
	}) {
		_ = lease.releaseObserved(ctx, parted)
	}
}
