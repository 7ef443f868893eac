// Package riverlock is middleware for River (github.com/riverqueue/river): it works the jobs for
// one resource one after the other, or a limited number at once, in all processes on the same
// store, and carries a job out once.
//
//	func (w *chargeWorker) Middleware(*rivertype.JobRow) []rivertype.WorkerMiddleware {
//		return []rivertype.WorkerMiddleware{riverlock.Guard(w.perAccount), riverlock.Idempotent(w.engine)}
//	}
//
// A job that gets no lock is snoozed: its worker takes the next job, and a hot key holds up no
// other. [Snooze] sets for how long, [GiveUp] until when. A snooze is no attempt of the job.
//
// # The key of a job
//
// A rule reads the fields of the arguments and the metadata that is text, by {account}, by
// {account.id} for a nested field, and by {header.Account} without regard to case. Of one name the
// arguments count. A [core.KeyFunc] finds the *rivertype.JobRow by core.Request.Native. The rule
// has core.Wait(0), also under an engine: a rule that waits would keep a worker from other jobs, and
// is refused.
//
//	perAccount := core.Serialize(locker, "account/{account}", core.Wait(0))
//	perTenant := core.AtMost(locker, 3, "export/{tenant}", core.Wait(0))
//
// # What becomes of a job
//
//	the worker returns nil              completed; with Idempotent stored, and so is a duplicate
//	an error                            not stored: River retries, and the worker runs again
//	once.Final, river.JobCancel         stored: the job is cancelled, and so is a duplicate
//	river.JobSnooze                     not stored: snoozed
//	a panic                             not stored, after MarkEffect stored as an error
//
//	the lock is held, no permit is free snoozed; after GiveUp an error
//	another process carries it out      snoozed; after GiveUp an error
//	the store is unreachable            snoozed; after GiveUp an error; the worker does not run
//	the claim or the lock was lost      an error: River retries
//	the outcome is unknown              an error: River retries, and finds the result after an
//	                                    operator has called Engine.Resolve
//	a rule makes no key of the job      an error: River retries
//	the key was used with other         cancelled
//	arguments; the result is not to be
//	had; a ticket that is damaged
//
// River discards a job after its last attempt, and deletes cancelled jobs after a day
// (CancelledJobRetentionPeriod).
//
// # A job is carried out once
//
// River works a job at least once: again after a crash, and also beside a worker that still runs,
// after RescueStuckJobsAfter. [Idempotent] keeps one record for each job ([KeyOf]): a second run
// is completed and not carried out again, without the output of the first (river.RecordOutput).
// The arguments count ([idempotency.ErrKeyReused]), the metadata does not. An engine with
// [idempotency.Global] fits jobs. The records outlive the jobs' retries if the
// [idempotency.Retention] is longer.
//
// With records in PostgreSQL, in the database of the jobs, the effect, the record and the end of
// the job are one commit:
//
//	return w.store.InTx(ctx, func(tx *pgstore.Transaction) error {
//		own, err := pgxstore.TxOn(tx.Conn())
//		if err != nil {
//			return err
//		}
//		if _, err := own.Exec(ctx, "INSERT INTO ledger (job, account) VALUES ($1, $2)", job.ID, job.Args.Account); err != nil {
//			return err
//		}
//		_, err = river.JobCompleteTx[*riverpgxv5.Driver](ctx, own, job)
//		return err
//	})
//
// A client with riverdatabasesql takes tx.SQL(). The engine commits when the worker has returned.
//
// The context of the worker ends with Worker.Timeout, and under Idempotent not with
// Client.StopAndCancel, nor with Client.JobCancel: the worker comes to its end within
// [idempotency.MaxHold]. [With] and [once.Cancelable] change that.
package riverlock
