// Package asynqlock is middleware for Asynq (github.com/hibiken/asynq): it carries a task
// out once, and runs the tasks for one resource one after the other, in all processes on
// the same store.
//
//	mux := asynq.NewServeMux()
//	mux.Use(asynqlock.Idempotent(engine.With(idempotency.Under(perAccount))))
//	mux.HandleFunc("charge", charge)
//	server := asynq.NewServer(queue, asynq.Config{
//		RetryDelayFunc: asynqlock.RetryDelay(asynq.DefaultRetryDelayFunc),
//		IsFailure:      asynqlock.IsFailure,
//	})
//
// Asynq delivers a task at least once. It delivers it again after a crash, after the
// task's timeout and after a shutdown that did not wait long enough, also while the
// handler of the first delivery still runs. [Idempotent] keeps one record for each
// task: a second delivery is acknowledged and not carried out again.
//
// # What becomes of a task
//
//	the handler returns nil             stored: the task is done, and so is a duplicate
//	an error                            not stored: Asynq retries, and the handler runs again
//	once.Final, asynq.SkipRetry         stored: the task is archived, and so is a duplicate
//	asynq.RevokeTask                    stored: the task is dropped, and so is a duplicate
//	a panic                             not stored, after MarkEffect stored as an error
//
//	another process runs the task       retried after a second
//	the lock of the rule is held        retried after a second
//	the store is unreachable            retried after a second; the handler does not run
//	the claim or the lock was lost      retried after the lease
//	the outcome is unknown              archived (asynq.SkipRetry): an operator calls
//	                                    Engine.Resolve, and runs the task again
//	the ID was used with another        archived
//	payload; the result is not to be
//	had; the metadata makes no key
//
// [RetryDelay] has the delays, without which Asynq takes its own. Such a retry
// does not count ([IsFailure]). Asynq archives a task without retries left also for
// them, so give tasks at least one (asynq.MaxRetry).
//
// # The record of a task
//
// The key is the type and the ID of the task ([Key] changes that). Asynq makes a random
// ID; an application that sets one (asynq.TaskID, [NewTask]) says that tasks with this ID are the
// same work, also after the first is done, for the [idempotency.Retention]. Its payload
// counts ([idempotency.ErrKeyReused]), its headers do not.
//
// A periodic task (asynq.Scheduler) with a fixed asynq.TaskID is such a task: it runs once
// in the Retention, and each later one is acknowledged without a run. Give periodic tasks no
// TaskID. Several schedulers on one schedule need asynq.Unique, or a handler that calls
// [once.Per].
//
// A task that was archived for a stored error gets that error again when an operator runs it
// by the inspector. To carry it out again, delete its record first:
//
//	err := engine.Forget(ctx, once.ScopeOf(""), "charge/"+taskID)
//
// An engine with [idempotency.Global] fits tasks, because their IDs are unique. A function
// given to [idempotency.Scope] reads the headers of the task by core.Request.Header.
//
// The context of the handler does not end with the context of the task: after a timeout Asynq
// takes the task back, the handler goes on to its end within [idempotency.MaxHold], and the
// retry finds its result. [With] and [once.Cancelable] change that. Only the run of the
// handler writes to asynq.ResultWriter.
//
// # Locks
//
// [Guard] runs tasks under a rule, and keeps no record. A rule reads the headers of the
// task, by {account} and by {header.Account}, so that one rule serves HTTP and tasks. A
// [core.KeyFunc] finds the *asynq.Task by core.Request.Native.
package asynqlock
