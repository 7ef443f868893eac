// Package idemcases has the cases of idempotent endpoints, as one table. [Run] runs the
// table over all frameworks, for a store in memory. [RunOn] runs it on the server of a
// store over net/http and gRPC, since memory could hide the effects of statements and
// scripts: with effects outside of the store, or by [RunInTransactions] in the transaction
// that stores the answer. [RunProcesses] has the cases of processes that are killed or
// stopped.
//
// The package knows no store. A case changes a store by the methods of [Records], which the
// tests of each store implement.
package idemcases

import (
	"context"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/pace"
)

// Records is a server that keeps records, as one case sees it: no other case has the
// same records, and they are empty at first. The results of its methods end with the test.
type Records interface {
	// Store returns the store of a service, the same for the same name. Services
	// share no records.
	Store(tb testing.TB, service string) idempotency.Store
	// Locks returns the store of locks that goes with the records.
	Locks(tb testing.TB) core.Store
	// LoseLock deletes the lock of a key, and reports whether it was there.
	LoseLock(tb testing.TB, key string) bool

	// Count counts the records of a service.
	Count(tb testing.TB, service string) int
	// Dump returns all that the server has of records, names and values.
	Dump(tb testing.TB) string
	// Waiting counts the duplicates that wait for the end of a request.
	Waiting(tb testing.TB) int
	// Empty deletes all records, as a server does that has lost its data.
	Empty(tb testing.TB)
	// Lapse ends the leases of all claims, as if their engines had been silent for so long.
	// A server that was killed does nothing: there the leases end by themselves.
	Lapse(tb testing.TB)
	// Damage makes the only record unreadable for each store.
	Damage(tb testing.TB)
	// Forget makes the server forget its state of clients between requests.
	Forget(tb testing.TB)

	// Kill ends the server at once, and Restart starts it again. They are for cases
	// that have the server for themselves.
	Kill(tb testing.TB)
	Restart(tb testing.TB)

	// LoseClaim loses the reply to the next claim, LoseCommit that to the next commit,
	// and Lost counts replies that were lost since.
	LoseClaim()
	LoseCommit()
	Lost() int

	// Pace is how fast the server answers.
	Pace() pace.Pace
	// Measure returns the costs of run, and Costs their limits.
	Measure(tb testing.TB, run func()) Cost
	Costs() Costs
}

// Transactions are records in the database of the effects.
type Transactions interface {
	Records
	// Enter makes an effect, which has a number, in the transaction of the request
	// that ctx belongs to.
	Enter(ctx context.Context, number int) error
	// Gather returns a function that makes an effect, which has a number, in a transaction that the
	// requests of a batch share.
	Gather(tb testing.TB, locker *core.Locker, opts ...gather.Option) func(ctx context.Context, key string, number int) error
	// Entered returns the numbers of the effects that were committed.
	Entered(tb testing.TB) []int
}

// Cost is how often the server of the records was asked: the round trips, and the
// requests in them.
type Cost struct{ Trips, Requests int64 }

// Costs are the costs of requests once all connections are open: of a request that is
// carried out, also with a mark and under a lock, of a replay, and of a duplicate of a
// request in flight.
type Costs struct{ Fresh, Marked, Locked, Replay, Conflict Cost }
