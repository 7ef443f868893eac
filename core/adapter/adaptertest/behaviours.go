package adaptertest

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
)

// behaviour is a row of the table.
type behaviour struct {
	name  string
	logs  bool // it reads the log, so it runs alone
	over  scope
	holds func(w *world)
}

// scope selects the frameworks of a row.
type scope int

const (
	everywhere scope = iota
	overHTTP         // no other protocol has methods, bodies and connections of HTTP
	inStreams        // a unary call has one reply
)

// has reports whether a framework is among them.
func (o scope) has(f Framework) bool {
	switch o {
	case overHTTP:
		return f.HTTP
	case inStreams:
		return f.Parts && !f.HTTP
	}
	return true
}

// behaviours are the behaviours that hold in every framework.
var behaviours = []behaviour{
	{name: "calls for one key run one after the other, those for other keys beside", holds: (*world).exclusion},
	{name: "a handler re-enters its own lock", holds: (*world).reentry},

	{name: "requests that read share, others run alone", over: overHTTP, holds: (*world).shareReads},
	{name: "as many at once as the request says", holds: (*world).numbered},

	// However a handler ends, the lock is free when the call comes out of it.
	{name: "free after a return", holds: ends(true, func(context.Context, *Call) error { return nil })},
	{name: "free after an answer", holds: ends(true, say("done"))},
	{name: "free after an error", holds: ends(false, func(context.Context, *Call) error { return ErrHandler })},
	{name: "free after the handler has released it", holds: ends(true, func(ctx context.Context, call *Call) error {
		return errors.Join(core.LeaseFromContext(ctx).Release(ctx), call.Send("done"))
	})},
	{name: "free after a panic, which passes through", holds: panics("a value")},
	{name: "free after http.ErrAbortHandler, which passes through", holds: panics(http.ErrAbortHandler)},
	{name: "free after the client has left the handler", holds: (*world).disconnect},
	{name: "answered before the lock is free, where the rule says so", holds: (*world).answerFirst},

	// A client that leaves while it waits makes room at once.
	{name: "waiter leaves, empty body", holds: leaves(http1, "")},
	{name: "waiter leaves, body read", over: overHTTP, holds: leaves(bodyRead, "body")},
	{name: "waiter leaves, HTTP/2 and body unread", over: overHTTP, holds: leaves(http2, "body")},
	{name: "waiter that left is not granted the lock", holds: (*world).leftBehind},

	// Refusals: the handler does not run, and the answer is in the table.
	{name: "held, no wait", logs: true, holds: refusal{want: reason.Held, held: true, opts: []core.GuardOption{core.Wait(0)}}.holds},
	{name: "principal where authentication leaves it in the framework", holds: (*world).principalSet},
	{name: "principal that is not found is logged", logs: true, holds: (*world).principalNotFound},
	{name: "own deadline over while queued", holds: (*world).deadline},
	{name: "locker closed", logs: true, holds: refusal{want: reason.Closing, closed: true}.holds},
	{name: "store down", logs: true, holds: refusal{want: reason.Unavailable, down: true, opts: []core.GuardOption{core.Wait(10 * time.Millisecond)}}.holds},
	{name: "number of permits that is none", logs: true, holds: (*world).notNumbered},
	{name: "store down, and the rule fails open", holds: (*world).failOpen},
	{name: "header of the key missing", logs: true, holds: refusal{want: reason.BadKey, template: "tenant/{header.X-Tenant}"}.holds},
	{name: "header of the key empty", logs: true, holds: refusal{want: reason.BadKey, template: "tenant/{header.X-Tenant}", header: []string{""}}.holds},
	{name: "header of the key given twice", logs: true, holds: refusal{want: reason.BadKey, template: "tenant/{header.X-Tenant}", header: []string{"a", "b"}}.holds},
	{name: "query of the key missing", logs: true, holds: refusal{want: reason.BadKey, template: "query/{query.q}"}.holds},
	{name: "query of the key empty", logs: true, holds: refusal{want: reason.BadKey, template: "query/{query.q}", query: "q="}.holds},
	{name: "query of the key malformed", logs: true, holds: refusal{want: reason.BadKey, template: "query/{query.q}", query: "q=%zz"}.holds},
	{name: "query of the key given twice", logs: true, holds: refusal{want: reason.BadKey, template: "query/{query.q}", query: "q=a&q=b"}.holds},
	{name: "parameter empty", holds: (*world).emptyParam},
	{name: "parameter that the route does not have", logs: true, holds: refusal{want: reason.Misconfigured, template: "account/{nope}"}.holds},
	{name: "body too large for the KeyFunc", logs: true, holds: refusal{want: reason.BodyTooLarge, id: "12345", keyFunc: func(_ context.Context, req core.Request) ([]string, error) {
		_, err := req.Body(4)
		return nil, err
	}}.holds},

	{name: "one value is one key, with any text in it", holds: (*world).keys},
	{name: "header makes the key", holds: (*world).headerKey},
	{name: "body makes the key, and reaches the handler", over: overHTTP, holds: (*world).bodyKey},

	// The handler ran, but without the lock that it expected.
	{name: "lease lost before the answer", holds: (*world).lostBefore},
	{name: "lease lost before the answer, whose header was described", over: overHTTP, holds: (*world).lostDescribed},
	{name: "lease lost, and the handler answers itself", over: overHTTP, holds: (*world).lostOwn},
	{name: "lease lost after the answer", holds: lostAfter(func(c *Call) error { return c.Send("done") }, "done")},
	{name: "lease lost after the header was flushed", over: overHTTP, holds: lostAfter(flush, "")},
	{name: "lease lost before an answer that is checked", holds: lostChecked(func(c *Call) error { return c.Send("done") })},
	{name: "lease lost before an answer that is checked, and flushed", over: overHTTP, holds: lostChecked(flush)},
	{name: "lease lost before an answer that is checked, and panics", over: overHTTP, holds: (*world).lostCheckedPanic},
	{name: "lease lost, and the handler returns without an answer", holds: (*world).lostSilent},
	{name: "answer that is checked while the lock is held", holds: (*world).checked},

	// A newer request takes the place of a request that waits or runs.
	{name: "superseded while it waits", holds: (*world).supersededWaiter},
	{name: "superseded, and the handler returns without an answer", holds: superseded(
		func(*Call) error { return context.Canceled },
		func(w *world, o Outcome) { w.wantRefused(o, reason.Superseded, true) },
	)},
	{name: "superseded, and the handler answers itself", over: overHTTP, holds: superseded(
		func(call *Call) error { return call.Answer(Declined, "stopped") },
		func(w *world, o Outcome) {
			if o.Code != "403" || o.Text != "stopped" {
				w.Errorf("%+v", o)
			}
		},
	)},
	{name: "superseded, and the handler succeeds", holds: superseded(
		func(call *Call) error { return call.Send("done") },
		func(w *world, o Outcome) { w.wantOK(o, "done") },
	)},
	{name: "refused while another request waits", holds: (*world).oneWaiter},

	// A service that wants the lock of its caller, and a worker that goes on with the lock of a handler.
	{name: "refused for the lock of its caller", holds: (*world).callerHolds},
	{name: "the locks of the callers are passed on", holds: (*world).passesOn},
	{name: "the failure of a service in between says that its caller holds the lock", holds: (*world).fails},
	{name: "the lock is handed over", holds: (*world).handsOver},

	// A service without the lock, called by a holder.
	{name: "an outdated holder is refused", holds: (*world).outdated},
	{name: "tokens pass a service in between", holds: (*world).relays},
	{name: "no token", holds: withoutToken("", reason.TokenMissing)},
	{name: "a token of another lock", holds: withoutToken("account/2=9", reason.TokenMissing)},
	{name: "a malformed token", holds: withoutToken("account/1=nine", reason.TokenMalformed)},

	{name: "request is as it was after an answer", holds: restores(say("done"), true)},
	{name: "request is as it was after an error", holds: restores(func(context.Context, *Call) error { return ErrHandler }, false)},
	{name: "multipart form goes to the request that the server cleans up", over: overHTTP, holds: (*world).multipart},

	{name: "parts sent by a stream", over: inStreams, holds: parts(func(*Call) error { return nil })},
	{name: "parts flushed by http.Flusher", over: overHTTP, holds: parts(flush)},
	{name: "parts flushed by http.ResponseController", over: overHTTP, holds: parts(func(c *Call) error {
		rc := http.NewResponseController(c.W)
		return errors.Join(rc.SetWriteDeadline(time.Now().Add(time.Minute)), rc.EnableFullDuplex(), rc.Flush())
	})},
	{name: "server-sent events", over: overHTTP, holds: (*world).events},
	{name: "connection taken over", over: overHTTP, holds: (*world).hijacked},
}
