package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// Resolution is what an operator or a job has found out about a request whose
// outcome was unknown. [CarriedOut] and [NotCarriedOut] make one. The zero value is
// none, and [Engine.Resolve] refuses it.
type Resolution struct {
	found    bool
	protocol string // empty: it was not carried out
	answer   Response
}

// CarriedOut says that the request had its effect. From now on requests with its
// key get this answer. For [HTTP] it has status, header and body. For [GRPC] it has
// the code, and the bytes of the message if the code is OK, else those of a
// google.rpc.Status. For [Func] it has status 0 and the encoded result. The protocol
// is that of the request; an answer of another protocol is never sent
// ([reason.NoRecord]).
func CarriedOut(protocol string, answer Response) Resolution {
	return Resolution{true, protocol, answer}
}

// NotCarriedOut says that the request had no effect, and will have none. The next
// request with its key is carried out.
func NotCarriedOut() Resolution { return Resolution{found: true} }

// check returns core.ErrConfig for an answer that no client could be given.
func (r Resolution) check(limit int64) error {
	low, high := 200, 999
	switch r.protocol {
	case GRPC:
		low, high = 0, 16
	case Func:
		low, high = funcDone, funcFailed
	}
	switch {
	case !r.found:
		return fmt.Errorf("%w: an empty Resolution; CarriedOut and NotCarriedOut make one", core.ErrConfig)
	case r.protocol == "":
		return nil
	case r.protocol != HTTP && r.protocol != GRPC && r.protocol != Func:
		return fmt.Errorf("%w: CarriedOut(%q): the protocol is HTTP, GRPC or Func", core.ErrConfig, r.protocol)
	case r.answer.Status < low || r.answer.Status > high:
		return fmt.Errorf("%w: CarriedOut: status %d", core.ErrConfig, r.answer.Status)
	case int64(len(r.answer.Body)) > limit:
		return fmt.Errorf("%w: CarriedOut: a body of %d bytes, MaxResponse is %d", core.ErrConfig, len(r.answer.Body), limit)
	}
	return nil
}

// Resolve settles a request whose duplicates are refused with
// [reason.OutcomeUnknown], with what an operator, or a job that asks the bank,
// has found out. Call it on an [Engine] with the options of the endpoint. scope is
// the principal; key is the key without quotes. For the key of a function ([Do])
// [FuncScope] makes the scope.
//
// Resolve changes a record only if its outcome is unknown at that moment; otherwise
// it returns [ErrNotUnknown]. It is therefore safe beside clients that retry. If
// several callers resolve one record, the first one counts. After it the claim
// belongs to no attempt. A process that was only stopped, and wakes, cannot mark an
// effect, and answers with what was stored. It can still perform an effect that it
// marked earlier: use [NotCarriedOut] only when the bank will not accept that
// effect any more, or when the process is known to be dead.
//
// Its other errors are [core.ErrConfig] for a [Resolution] that cannot be used, and
// the errors of the store. After an error of the store it is not known whether the
// record was changed: call Resolve again.
func (e *Engine) Resolve(ctx context.Context, scope, key string, found Resolution) error {
	c := e.config
	if err := found.check(c.maxResponse); err != nil {
		return err
	}
	req := record.ResolveRequest{
		ID: recordID(scope, key), Token: e.tokens.next(), Strict: c.strict,
		Retention: c.retention, Tombstone: c.tombstone, Deadline: time.Now().Add(storeWait),
	}
	if found.protocol != "" {
		req.Response = c.seal(ctx, encode(found.protocol, found.answer, c.storedHeader(found.protocol, found.answer.Header)))
		if req.Response == nil {
			return fmt.Errorf("interlock: resolving a record: %w", errSeal)
		}
	}
	if err := e.store.Resolve(ctx, req); err != nil {
		return fmt.Errorf("interlock: resolving a record: %w", err)
	}
	return nil
}
