// Package otellock turns what happens to locks into OpenTelemetry traces and
// metrics, and lost leases into log records. Give its Observer to a locker, and
// every rule, in every framework, is watched:
//
//	observer, err := otellock.New()
//	locker, err := core.New(store, core.WithObserver(observer))
//
// It uses the global providers unless told otherwise (WithTracerProvider,
// WithMeterProvider), and only the OpenTelemetry API: which SDK and exporters
// there are is the application's choice.
//
// # In a trace
//
// A request that waits for its lock shows where the time went:
//
//	POST /accounts/{id}/debit            the span of the framework's middleware
//	├─ lock acquire account/{id}         from the call to the grant, or the refusal
//	│  └─ evalsha                        the store's commands, if they are traced
//	├─ UPDATE accounts                   what the handler does is not below the lock
//	└─ lock release account/{id}         what the release took off the answer
//
// A renewal that fails is a span too, "lock renew <rule>"; those that succeed,
// every ten seconds for as long as a handler works, are only counted (and so is
// each Lease.Check, which is the same request to the store). All are
// children of the span that the lock was asked for under. Put the tracing
// middleware outside the lock's, or there is none.
//
//	interlock.rule         the rule's name (core.Name), else its templates
//	interlock.key_hash     core.KeyHash of the key; of several, interlock.key_hashes
//	                       (at most 16) and interlock.key_count; with
//	                       WithRawKeys also interlock.key, interlock.keys
//	interlock.outcome      how it ended, see below
//	interlock.contended    the lock was not free at once
//	interlock.attempts     requests to the store
//	interlock.reentered    a hold was added to a lock that the context had
//	interlock.disordered   another lock, that sorts after it, was held already:
//	                       two such callers can wait for each other
//	interlock.token        the fencing token
//	interlock.handed_over  the lock went to a waiter of this process
//	interlock.loss_reason  why the release, or before it the watchdog, found the
//	                       lease lost
//	error.type             the outcome, if that is not a success
//
// A request to an idempotent endpoint has no span of its own. The span that it
// came under gets interlock.idempotent.outcome, see below, and
// interlock.idempotent.generation: 1 when its handler ran for the first time, more
// when a process that had begun the request was heard of no more, 0 when it did not
// run.
//
// A span's status is Error when something is out of order: the store, the
// replicas, the configuration, a lost lease. A lock that was held elsewhere, a
// full queue, a client that left or ran out of time are the lock's daily work
// and leave the status unset.
//
// # Metrics
//
//	interlock.acquire.duration     histogram, s    rule, outcome
//	interlock.hold.duration        histogram, s    rule, outcome
//	interlock.waiters              up-down counter rule
//	interlock.leases               up-down counter rule
//	interlock.attempts             counter         rule
//	interlock.renewals             counter         rule, outcome
//	interlock.lost                 counter         rule, loss reason
//	interlock.bypassed             counter         rule
//	interlock.rejected             counter         rule, outcome
//	interlock.replays              counter         rule
//	interlock.idempotent.requests  counter         rule, outcome
//
// Waiters are the callers between their call and its outcome, leases those that
// were granted and are neither released nor lost. A re-entered lock is no new
// lease: it is not in the durations, nor counted as a lease. A lease of several
// locks counts once, also when it is lost. A hold ends when it is released or
// lost, whichever is first. Bypassed are requests whose rule fails open, and
// which ran without their lock or their record; rejected are those no key could be
// made of, and those whose principal is over its limit. Of idempotent endpoints all
// requests with a key are counted, replays once more on their own; the rule is the
// engine's (idempotency.Name).
//
// Measurements are made under the span they belong to, so that exemplars lead
// from a slow bucket to a trace. Labels are names of rules and outcomes, of
// which there are few: rules after the first 1,000 names are all called _OTHER.
// A name that is made of a request's values is a mistake (core.Name).
//
// # Outcomes
//
// The outcomes are those that clients see as problem types, with underscores:
//
//	granted, renewed, released   success
//	held, queue_full             somebody else has it
//	principal_limit              the caller has too many locks (core.PerPrincipal)
//	deadline, canceled           the caller's own context ended
//	unavailable, not_replicated  the store, or too few replicas
//	key_occupied                 the lock's key in Redis is no lock
//	closing                      this process shuts down
//	lost, max_hold               the lease was lost
//	bad_key, body_too_large      the request does not name a resource
//	misconfigured, internal      the rule, or a function that it calls, failed
//
// and those of idempotent endpoints:
//
//	stored                       the handler ran, its response is stored
//	pending                      the same, but the store has not confirmed it yet
//	released                     the handler failed; the next request runs it again
//	replayed                     the stored response was sent
//	unknown                      the handler ran, and lost its claim or its lock
//	idempotency_in_flight, ...   the request was refused, for this reason
//
// Worth an alert: any interlock.lost with reason deleted, taken_over, not_owner or
// unavailable (two handlers may have worked on one resource at once; fencing tokens decide),
// interlock.bypassed above zero, and outcome unavailable; of idempotent endpoints
// idempotency_outcome_unknown (somebody has to find out), idempotency_unavailable
// and pending.
//
// # Keys
//
// Keys name users and accounts. They are never labels; spans and log records
// have their hash, unless WithRawKeys says otherwise. Who looks for a resource
// computes it with core.KeyHash. It hides a key from the eye, not from somebody who
// can try out all the keys there are. Texts of errors that hold a key are left
// out.
//
// # Logs
//
// Each lost lease is one record, with the request's context, so that a handler
// such as otelslog's adds the trace: at level Error if somebody else may have
// held the lock meanwhile, else Warn. It says what core.Loss does: the reason, how
// long the lease was held, its owner and token, and of the request the route, the
// principal's hash and whether it was answered. See WithLogger.
package otellock
