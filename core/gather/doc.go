// Package gather carries out the requests of many callers for one key in one section, under one
// lock. The busier a key is, the more requests share a section: a hot account then costs a lock and
// a transaction for all requests that came meanwhile. Databases call this group commit.
//
//	debits := gather.New(locker, func(ctx context.Context, key string, batch []Debit) ([]int, error) {
//		return debitAll(ctx, key, batch) // one transaction
//	}, core.MaxHold(10*time.Second))
//
//	balance, err := debits.Do(ctx, "account/42", Debit{Amount: 5})
//
// # What happens to a request
//
// [Group.Do] brings the request as an item. The first caller of a key asks for the lock; the
// others of its process wait. The caller that gets the lock leads: it takes all items of the key
// that have come, in their order, and runs the section for them. Each caller then gets the result
// or the error of its item. Items that come meanwhile are the next batch, and the lock goes to
// it in memory, or to another process when the turn of this one has ended (core.Turn). A caller
// leads at most one batch without its item, and in the usual case only the batch with its item. No
// goroutine is started. A batch of one item costs the requests and the allocations of a lock.
//
// # When something goes wrong
//
// An item is carried out once, or its caller gets an error. If the error matches [ErrUnknown], the
// item may have been carried out. Any other error of this package or of the lock says that it was not.
// The section defines the meaning of its errors: a section that cannot know whether its
// transaction was committed returns an error that matches ErrUnknown. In detail:
//
//   - Repeated: an item that is brought twice is two items. Package core/idempotency finds
//     duplicates.
//   - A caller that leaves before its item was taken takes it along: the item is not carried out.
//     A caller that leaves later gets the error of its context with ErrUnknown, and the item is
//     carried out. A caller that leads cannot leave: it gets the result.
//   - The wait for the lock ends ([core.Wait]) for each item by itself. If that was the leader's,
//     the next caller leads; the process keeps its place among other processes if two items or
//     more had been waiting.
//   - The store fails: all items that wait for the key get the error.
//   - The section returns an error: all its items get the error, or each item gets its error of an
//     [Errors].
//   - The section panics: the panic goes on in the leader, and the other callers get [ErrPanicked]
//     and ErrUnknown.
//   - The lease is lost, or core.MaxHold has passed: all items get the results that the section
//     returned, together with [core.ErrLost] or [core.ErrMaxHold], and ErrUnknown.
//   - The process dies: its callers die with it. A transaction that the section had committed stays. The next
//     process gets the lock when the lease has ended.
//   - A section that is late, and has lost its lock, is refused by the resource if that checks the
//     fencing token: core.LeaseFromContext(ctx).Token().
//   - A section that calls Do for its key, or for a key that its callers hold, would wait for
//     itself. It gets [core.ErrHeldByCaller] at once, also through another group or another service
//     (core.HeldHeader).
//
// # The context of a section
//
// It is the context of the lease: it ends when the lock is lost or after core.MaxHold. It has no
// values, no deadline and no cancellation of any caller, since it works for all of them: a
// transaction or a principal of one caller must not serve the others. Put what an item needs
// into the item. [Values] adds values, of a trace for example.
//
// # Costs
//
// A waiting caller costs its goroutine and one item. A key costs memory only while callers wait for
// it: 1,000 idle keys cost nothing. Keys do not wait for each other.
package gather
