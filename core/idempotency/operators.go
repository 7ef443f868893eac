package idempotency

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/steplog"
)

// Resolve settles a request with an unknown outcome ([reason.OutcomeUnknown]): an
// operator, or a job that asks the bank, has found the outcome out. Call it on an
// [Engine] with the options of the endpoint. scope is the principal; key is the key
// without quotes. Under [PerEndpoint] and under a [Profile] [EndpointScope] makes the
// scope, and for the key of a function once.ScopeOf.
//
// Resolve changes a record only if its outcome is unknown at that moment; otherwise
// it returns [ErrNotUnknown], also if another step than the step of [admin.StepDone] is open. It is therefore safe while clients retry. If several
// callers resolve one record, the first one counts. After it the claim belongs to no
// attempt. A process that was only stopped, and wakes, cannot mark an effect, and answers
// with the stored response. It can still perform an effect that it marked earlier: use
// [admin.NotCarriedOut] only when the bank will not accept that effect any more, or when
// the process is known to be dead.
//
// Its other errors are [endpoint.ErrNoPrincipal] for a principal that the endpoint refuses (it begins
// with "interlock "), [core.ErrConfig] for a [admin.Resolution] that cannot be used, and
// the errors of the store. After an error of the store it is not known whether the
// record was changed: call Resolve again.
func (e *Engine) Resolve(ctx context.Context, scope, key string, found admin.Resolution) error {
	id, err := e.config.named(scope, key, true)
	if err != nil {
		return fmt.Errorf("interlock: resolving a record: %w", err)
	}
	return e.ResolveRecord(ctx, id, found)
}

// ResolveRecord is [Engine.Resolve] for a record of which only the hash is known: the log, spans
// and the tool name records by it.
func (e *Engine) ResolveRecord(ctx context.Context, id string, found admin.Resolution) error {
	c := e.config
	protocol, answer, ok := found.Answer()
	if !ok {
		return fmt.Errorf("%w: an empty Resolution; CarriedOut and NotCarriedOut make one", core.ErrConfig)
	}
	_, token := newToken()
	req := record.ResolveRequest{
		ID: id, Token: token, Strict: c.strict,
		Retention: c.retention, Tombstone: c.tombstone, Deadline: time.Now().Add(storeWait),
	}
	if step, result, ok := found.Step(); ok {
		if !validStep(step) {
			return errStepName
		}
		payload, err := c.sealStep(result)
		if err != nil {
			return fmt.Errorf("interlock: resolving a record: %w", err)
		}
		req.Step, req.Log = step, steplog.Append(nil, steplog.Entry{Kind: steplog.Done, Name: step, Payload: string(payload)})
	}
	if answer != nil {
		if err := checkAnswer(protocol, answer, c.maxResponse); err != nil {
			return err
		}
		req.Response = c.seal(encode(protocol, *answer, c.storedHeader(protocol, answer.Header)))
		if req.Response == nil {
			return fmt.Errorf("interlock: resolving a record: %w", errSeal)
		}
	}
	if err := e.store.Resolve(ctx, req); err != nil {
		return fmt.Errorf("interlock: resolving a record: %w", err)
	}
	return nil
}

// checkAnswer returns core.ErrConfig for an answer that no client could be given.
func checkAnswer(protocol string, answer *endpoint.Response, limit int64) error {
	err := checkStatus(protocol, answer.Status)
	if err == nil && int64(len(answer.Body)) > limit {
		err = fmt.Errorf("%w: a body of %d bytes, MaxResponse is %d", core.ErrConfig, len(answer.Body), limit)
	}
	return err
}

// checkStatus returns core.ErrConfig for a status that no answer has.
func checkStatus(protocol string, status int) error {
	var low, high int
	switch protocol {
	case endpoint.HTTP:
		low, high = 200, 999
	case endpoint.GRPC:
		low, high = 0, 16
	case endpoint.Func:
		low, high = endpoint.FuncDone, endpoint.FuncFailed
	default:
		return fmt.Errorf("%w: an answer of the protocol %q: it is HTTP, GRPC or Func", core.ErrConfig, protocol)
	}
	if status < low || status > high {
		return fmt.Errorf("%w: an answer of status %d", core.ErrConfig, status)
	}
	return nil
}

// Forget deletes the record of a key in any state, so that the next request
// with the key is carried out. scope and key are as for [Engine.Resolve].
// If the outcome of a request was unknown, and an operator found it out,
// [Engine.Resolve] is safer. Its errors are the store's, and [endpoint.ErrNoPrincipal] as there.
func (e *Engine) Forget(ctx context.Context, scope, key string) error {
	id, err := e.config.named(scope, key, true)
	if err == nil {
		err = e.store.Forget(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("interlock: forgetting a record: %w", err)
	}
	return nil
}

// Pending returns how many answers, and claims given up, the store has not confirmed yet.
// The engine tries them again in the background.
func (e *Engine) Pending() int { return e.background.pending() }

// PendingClaims lists the claims of this process, the oldest first, also the claims of
// engines made by [Engine.With]. The list can be out of date when it is returned: use
// it for debugging, not for decisions. It costs the requests nothing.
func (e *Engine) PendingClaims() []admin.Claim {
	all := e.background.claims()
	all = append(all, e.watchdog.claims()...)
	slices.SortStableFunc(all, func(a, b admin.Claim) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Record, b.Record))
	})
	return all
}

// claims are the claims of running handlers, as far as they can be lost or renewed.
func (w *watchdog) claims() (all []admin.Claim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.events.Items() {
		if l.running && !l.decided {
			all = append(all, l.attempt.describe(w, admin.Running))
		}
	}
	return all
}

// claims are the claims that the store has not confirmed.
func (b *background) claims() (all []admin.Claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watchdog.mu.Lock()
	defer b.watchdog.mu.Unlock()
	for j := range b.jobs {
		state := admin.Releasing
		if j.commit != nil {
			state = admin.Storing
		}
		all = append(all, j.attempt.describe(b.watchdog, state))
	}
	return all
}

// describe describes the claim of an attempt. Called with the watchdog's mutex held.
func (a *attempt) describe(r *watchdog, state admin.State) admin.Claim {
	return admin.Claim{
		Rule: a.engine.config.name, Record: a.id, State: state, Generation: a.generation,
		Since: a.sent, Deadline: r.clock.Time(a.lease.deadline),
	}
}
