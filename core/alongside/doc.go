// Package alongside holds a lock of another library together with a lock of this one, for
// the release between the old and the new in a rolling change.
//
// The same key in two libraries is two locks. If processes of the old release, which take
// the lock of the other library, run at the same time as processes that take the lock of
// this library alone, a key has two holders. So a change takes two deployments:
//
//   - old to both: the release in the middle takes both locks. The lock of the other library
//     excludes old processes; among themselves both do.
//   - both to new: the lock of this library excludes new processes. The second deployment
//     begins when the last process of the old release has ended.
//
// The release in the middle takes the lock of this library first, and the other lock
// inside it ([Do]):
//
//	err := locker.Do(ctx, "account/42", func(ctx context.Context) error {
//		return alongside.Do(ctx, other, settle)
//	})
//
// # Why this order
//
// Old processes take one of the two locks and new processes the other, so that either order
// is free of deadlocks, as long as all processes in the middle have the same one. This order
// is better where a caller has the first lock and waits for the second. The lease of this
// library is renewed during that wait. A lock of another library seldom is: it could end
// before the work begins, and a process of the old release would come in. Taken last, it has
// its whole lease for the work. It also costs less: of all processes in the middle one at a
// time asks for the other lock, where all would poll for it.
//
// The release is in the opposite order. The next holder in the middle then finds the other
// lock free; otherwise it would begin with a pause of the other library.
//
// # Limits
//
//   - The other lock excludes as well as it did before. Do renews it, and ends the context
//     of the function when the lock is lost. [core.Check], [core.Commit], [core.CheckAnswer]
//     and [core.OnLost] know only the lease: with the function's context Check and Commit
//     return an error once Do has noticed the loss.
//   - Fencing tokens: a process of the old release has none. A fence that refuses writes
//     without a token comes with the release after the change.
//   - Turns: a process in the middle passes a key on at once, and an old process polls. If
//     the processes in the middle want a key all the time, the old processes wait
//     longer than before, and give up more often.
package alongside
