// Package otellock turns lock events into OpenTelemetry traces and metrics, and lost
// leases into log records. Give its [Observer] to a locker, and the observer sees
// every rule in every framework:
//
//	observer, err := otellock.New()
//	locker, err := core.New(store, core.WithObserver(observer))
//
// Idempotent endpoints under a rule (idempotency.Under) take the observer of the rule's
// locker. Endpoints without a rule need it by idempotency.WithObserver.
//
// The observer uses the global providers unless [WithTracerProvider] or
// [WithMeterProvider] sets others. The package imports only the OpenTelemetry API:
// the application chooses the SDK and the exporters.
//
// # In a trace
//
// A request that waits for its lock shows where the time was spent:
//
//	POST /accounts/{id}/debit            the span of the framework's middleware
//	├─ lock acquire account/{id}         from the call to the grant or the refusal
//	├─ UPDATE accounts                   the handler's work is not below the lock's span
//	└─ lock release account/{id}         the time that the release added to the response
//
// A process that waits to lead ([core.Lead]) may do so for as long as it lives. Its span
// "lock acquire" has no duration and stands at the end of the wait. The wait is not
// measured, and its caller is no waiter; a store that fails is counted.
//
// A renewal that fails is also a span, "lock renew <rule>". Renewals that succeed,
// every ten seconds while a handler works, are only counted. A [core.Lease.Check] is
// neither: its caller has the outcome. All spans are children of the span in the context
// of the acquisition. Put the tracing middleware outside
// the lock middleware; otherwise that context has no span.
//
//	interlock.rule         the rule's name (core.Name), else its templates;
//	                       _UNNAMED for a lock that has neither
//	interlock.kind         shared or permit; without it the lock is exclusive
//	interlock.key_hash     core.Hashed.Hash of the key; for several keys
//	                       interlock.key_hashes (at most 16) and
//	                       interlock.key_count; with WithRawKeys also
//	                       interlock.key or interlock.keys
//	interlock.outcome      the outcome, see below
//	interlock.contended    the lock was not free at once
//	interlock.attempts     requests to the store
//	interlock.reentered    the context already held the lock
//	interlock.disordered   the context held another lock that sorts after this one:
//	                       two such callers can wait for each other
//	interlock.token        the fencing token
//	interlock.handed_over  the lock went to a waiter of this process
//	interlock.loss_reason  why the lease was lost, as the release or an earlier
//	                       renewal found
//	error.type             the outcome, if it is not a success
//
// A request to an idempotent endpoint gets no extra span. The observer adds three attributes
// to the span in the request's context: interlock.idempotent.outcome, see below,
// interlock.idempotent.generation, and interlock.idempotent.record, the hash of the record.
// The generation is 1 if the handler ran for the first time. It is greater if another process
// had begun the request and stopped responding, and 0 if the handler did not run.
//
// The status of a span is Error if something is out of order: the store, the
// replicas, the configuration, a lost lease. Some outcomes are normal for a lock and
// leave the status unset: a lock that is held elsewhere, a full queue, a client that
// left or ran out of time.
//
// # Metrics
//
//	interlock.acquire.duration     histogram, s    rule, outcome
//	interlock.hold.duration        histogram, s    rule, outcome
//	interlock.batch.items          histogram       rule
//	interlock.batch.queue.duration histogram, s    rule
//	interlock.waiters              up-down counter rule
//	interlock.leases               up-down counter rule
//	interlock.attempts             counter         rule
//	interlock.renewals             counter         rule, outcome
//	interlock.lost                 counter         rule, loss reason
//	interlock.bypassed             counter         rule
//	interlock.rejected             counter         rule, outcome
//	interlock.replays              counter         rule
//	interlock.idempotent.requests  counter         rule, outcome
//	interlock.rule.wait            gauge, s        rule
//	interlock.rule.max_hold        gauge, s        rule
//	interlock.hold.oldest          gauge, s        rule
//	interlock.queue.longest        gauge           -
//	interlock.undelivered          counter         -
//	interlock.idempotent.unknown   gauge           - (see [Observer.WatchUnknown])
//
// A rule for shared holds or permits has the label kind (interlock.kind) as well.
//
// Waiters are callers that have asked for a lock and have no outcome yet. Leases are
// counted when they were granted and are neither released nor lost. A re-entered lock is
// not a new lease: the durations and the count of leases leave it out. A lease of
// several locks counts once, also when it is lost. A hold ends at the release or the
// loss, at the first of the two. Bypassed requests have a rule that fails open, and
// ran without their lock or their record. Rejected requests have no valid key,
// or a principal that exceeds its limit. For idempotent endpoints
// the observer counts all requests that have a key, and counts replays a second time
// on their own; there the rule is the name of the engine (idempotency.Name). A batch is a section of
// package gather: interlock.acquire.duration counts the caller that led it alone.
//
// The gauges are computed when metrics are collected, and cost a lock nothing. The
// times of a rule are the latest [core.Wait] and [core.MaxHold] that a caller asked
// with, so that a dashboard can compare durations with them; a rule without such a
// bound has no such gauge. The oldest hold, the longest queue of one key, and the calls
// and lines that were dropped because an observer or a log blocks, cover the lockers
// that the application gives to [Observer.Watch]; without that they are missing.
// Several observers of one provider of meters add up.
//
//	observer.Watch(locker)
//
// The observer records each measurement under the span that it belongs to, so that
// exemplars lead from a slow bucket to a trace. Labels are names of rules and
// outcomes. There are few: after the first 1,000 names, all further rules
// are called _OTHER. Do not make a name from values of a request (see [core.Name]).
//
// # Outcomes
//
// The outcomes are the problem types that clients see, with underscores:
//
//	granted, renewed, released   success
//	handed_over                  the lock is kept for a ticket (core.HandOver)
//	held, queue_full             another request has the lock, or too many wait
//	superseded                   a newer request has come while this one waited (core.Newest)
//	full                         all permits are taken (core.Permits)
//	principal_limit              the principal has too many locks (core.PerPrincipal)
//	deadline, canceled           the caller's own context ended
//	unavailable, not_replicated  the store is unreachable, or had not answered for 250 ms when
//	                             the caller gave up; too few replicas
//	key_occupied                 the lock's key in Redis holds another value
//	closing                      this process shuts down
//	lost, max_hold               the lease was lost
//	bad_key, body_too_large,     the request does not name a resource, or its
//	body_incomplete,             body is too long, broken or late
//	body_timeout
//	misconfigured, internal      the rule, or a function that it calls, failed
//
// and for idempotent endpoints:
//
//	stored                       the handler ran, its response is stored
//	pending                      the same, but the store has not confirmed it yet
//	released                     the handler failed; the next request runs it again
//	idempotency_rolled_back      the same, because its transaction was rolled back
//	replayed                     the stored response was sent
//	unknown                      the handler ran, and lost its claim or its lock
//	idempotency_in_flight, ...   the request was refused, for this reason
//
// Alert on these: any interlock.lost with reason deleted, taken_over, not_owner or
// unavailable (two handlers may have worked on one resource at once; fencing tokens
// decide); interlock.bypassed above zero; the outcome unavailable. The reason revoked is
// a release by an operator. For idempotent endpoints, alert on
// idempotency_outcome_unknown (an operator must find out the outcome),
// idempotency_unavailable and pending.
//
// # Keys
//
// Keys name users and accounts. The observer never uses a key as a label. Spans and
// log records contain the hash of a key, unless [WithRawKeys] is given. To look for
// one resource, compute core.Hashed(key).Hash(). A hash hides a key from a reader, but
// not from an attacker that can try all possible keys. The observer leaves out the
// text of an error that contains a key.
//
// # Logs
//
// Each lost lease makes one record, with the request's context, so that a handler
// such as otelslog's adds the trace. The level is Error if another holder may have
// held the lock meanwhile, else Warn. The record has the data of [core.Loss]: the
// reason, how long the lease was held, its owner and token, and of the request the
// route, the hash of the principal and whether it was answered. See [WithLogger].
package otellock
