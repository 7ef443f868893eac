package conformance

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

// behaviour is a row of the table.
type behaviour struct {
	name  string
	logs  bool // it reads what is logged, so it runs alone
	own   bool // it cuts its server off
	holds func(w *world)
}

// behaviours are what holds in every framework.
var behaviours = []behaviour{
	{name: "calls for one key run one after the other, those for other keys beside", holds: (*world).exclusion},
	{name: "transfers in opposite directions end and keep the sum", holds: (*world).transfers},
	{name: "a handler re-enters its own lock", holds: (*world).reentry},

	{name: "calls that share run together, and a writer alone", holds: (*world).sharing},
	{name: "a writer that waits comes before calls that share later", holds: (*world).writerFirst},
	{name: "at most n calls run at once, over all processes", holds: (*world).permits},
	{name: "all permits taken, no wait", holds: (*world).full},
	{name: "a permit that an exclusive holder keeps out", holds: (*world).permitHeldOut},
	{name: "a handler re-enters its shared lock and its permit", holds: (*world).reenterPlaces},
	{name: "a handler that shares cannot have the lock for itself", logs: true, holds: (*world).upgrade},
	{name: "requests that read share, others run alone", holds: onlyHTTP((*world).shareReads)},
	{name: "a shared lock is free after a panic", holds: panicsUnder("a value", func(l *core.Locker) *core.Guard { return core.Share(l, "account/{id}", core.Wait(time.Minute)) })},
	{name: "a permit is free after a panic", holds: panicsUnder("a value", func(l *core.Locker) *core.Guard { return core.AtMost(l, 1, "account/{id}", core.Wait(time.Minute)) })},

	// However a handler ends, the lock is free when the call comes out of it.
	{name: "free after a return", holds: ends(true, func(context.Context, *adaptertest.Call) error { return nil })},
	{name: "free after an answer", holds: ends(true, say("done"))},
	{name: "free after an error", holds: ends(false, func(context.Context, *adaptertest.Call) error { return adaptertest.ErrHandler })},
	{name: "free after the handler has released it", holds: ends(true, func(ctx context.Context, call *adaptertest.Call) error {
		return errors.Join(core.LeaseFromContext(ctx).Release(ctx), call.Send("done"))
	})},
	{name: "free after a panic, which passes through", holds: panics("a value")},
	{name: "free after a panic with an error, which passes through", holds: panics(io.ErrUnexpectedEOF)},
	{name: "free after http.ErrAbortHandler, which passes through", holds: panics(http.ErrAbortHandler)},
	{name: "free after the client has left the handler", holds: (*world).disconnect},

	// A client that leaves while it waits makes room at once.
	{name: "waiter leaves, empty body", holds: leaves(http1, "")},
	{name: "waiter leaves, body read", holds: onlyHTTP(leaves(bodyRead, "body"))},
	{name: "waiter leaves, HTTP/2 and body unread", holds: onlyHTTP(leaves(http2, "body"))},
	{name: "waiter that left is not granted the lock", holds: (*world).leftBehind},

	// Refusals: the handler does not run, and the answer is in the table.
	{name: "held, no wait", logs: true, holds: refusal{want: reason.Held, held: true, opts: []core.GuardOption{core.Wait(0)}}.holds},
	{name: "held until the wait ends", logs: true, holds: refusal{want: reason.Held, held: true, opts: []core.GuardOption{core.Wait(10 * time.Millisecond)}}.holds},
	{name: "queue full", holds: (*world).queueFull},
	{name: "principal holds as many locks as it may", holds: (*world).principalHolds},
	{name: "principal waits as often as it may", holds: (*world).principalWaits},
	{name: "principal has its share back after a panic", holds: (*world).principalPanics},
	{name: "principal has its share back after it left the queue", holds: (*world).principalLeaves},
	{name: "principal where authentication leaves it in the framework", holds: (*world).principalSet},
	{name: "principal that is not found is logged", logs: true, holds: (*world).principalNotFound},
	{name: "principal missing", logs: true, holds: refusal{want: reason.BadKey, opts: []core.GuardOption{core.PerPrincipal(tenant, 1, 1)}}.holds},
	{name: "principal cannot be found", logs: true, holds: refusal{want: reason.Internal, opts: []core.GuardOption{
		core.PerPrincipal(func(context.Context, core.Request) (string, error) { return "", io.ErrUnexpectedEOF }, 1, 1),
	}}.holds},
	{name: "own deadline over while queued", holds: (*world).deadline},
	{name: "locker closed", logs: true, holds: refusal{want: reason.Closing, closed: true}.holds},
	{name: "locker closes while the call is queued", holds: (*world).closing},
	{name: "store down", logs: true, own: true, holds: refusal{want: reason.Unavailable, down: true, opts: []core.GuardOption{core.Wait(10 * time.Millisecond)}}.holds},
	{name: "store down, no wait", logs: true, own: true, holds: refusal{want: reason.Unavailable, down: true, opts: []core.GuardOption{core.Wait(0)}}.holds},
	{name: "store down, and the rule fails open", own: true, holds: (*world).failOpen},
	{name: "header of the key missing", logs: true, holds: refusal{want: reason.BadKey, template: "tenant/{header.X-Tenant}"}.holds},
	{name: "header of the key empty", logs: true, holds: refusal{want: reason.BadKey, template: "tenant/{header.X-Tenant}", header: []string{""}}.holds},
	{name: "header of the key given twice", logs: true, holds: refusal{want: reason.BadKey, template: "tenant/{header.X-Tenant}", header: []string{"a", "b"}}.holds},
	{name: "query of the key missing", logs: true, holds: refusal{want: reason.BadKey, template: "query/{query.q}"}.holds},
	{name: "query of the key empty", logs: true, holds: refusal{want: reason.BadKey, template: "query/{query.q}", query: "q="}.holds},
	{name: "query of the key malformed", logs: true, holds: refusal{want: reason.BadKey, template: "query/{query.q}", query: "q=%zz"}.holds},
	{name: "query of the key given twice", logs: true, holds: refusal{want: reason.BadKey, template: "query/{query.q}", query: "q=a&q=b"}.holds},
	{name: "parameter empty", holds: (*world).emptyParam},
	{name: "key too long", logs: true, holds: refusal{want: reason.BadKey, id: strings.Repeat("x", 505)}.holds},
	{name: "key too long once it is escaped", logs: true, holds: refusal{want: reason.BadKey, id: strings.Repeat("ö", 85)}.holds},
	{name: "parameter that the route does not have", logs: true, holds: refusal{want: reason.Misconfigured, template: "account/{nope}"}.holds},
	{name: "body too large for the KeyFunc", logs: true, holds: refusal{want: reason.BodyTooLarge, id: "12345", keyFunc: func(_ context.Context, req core.Request) ([]string, error) {
		_, err := req.Body(4)
		return nil, err
	}}.holds},
	{name: "KeyFunc fails", logs: true, holds: refusal{want: reason.Internal, keyFunc: func(context.Context, core.Request) ([]string, error) {
		return nil, io.ErrUnexpectedEOF
	}}.holds},

	{name: "one value is one key, with any text in it", holds: (*world).keys},
	{name: "header makes the key", holds: (*world).headerKey},
	{name: "body makes the key, and reaches the handler", holds: onlyHTTP((*world).bodyKey)},

	// The handler ran, and its lock was not what it thought.
	{name: "lease lost before the answer", holds: (*world).lostBefore},
	{name: "lease lost before the answer, whose header was described", holds: onlyHTTP((*world).lostDescribed)},
	{name: "lease lost, and the handler answers itself", holds: onlyHTTP((*world).lostOwn)},
	{name: "lease lost after the answer", holds: lostAfter(func(c *adaptertest.Call) error { return c.Send("done") }, "done")},
	{name: "lease lost after the header was flushed", holds: onlyHTTP(lostAfter(flush, ""))},
	{name: "lease lost before an answer that is checked", holds: lostChecked(func(c *adaptertest.Call) error { return c.Send("done") })},
	{name: "lease lost before an answer that is checked, and flushed", holds: onlyHTTP(lostChecked(flush))},
	{name: "lease lost before an answer that is checked, and panics", holds: onlyHTTP((*world).lostCheckedPanic)},
	{name: "lease lost, and the handler returns without an answer", holds: (*world).lostSilent},
	{name: "answer that is checked while the lock is held", holds: (*world).checked},
	{name: "commit after the lease is lost does not happen", holds: (*world).lostCommit},
	{name: "maximum hold before the answer", holds: (*world).maxHold},

	{name: "request is as it was after an answer", holds: restores(say("done"), true)},
	{name: "request is as it was after an error", holds: restores(func(context.Context, *adaptertest.Call) error { return adaptertest.ErrHandler }, false)},
	{name: "multipart form goes to the request that the server cleans up", holds: onlyHTTP((*world).multipart)},

	{name: "parts sent by a stream", holds: streams(false, func(*adaptertest.Call) error { return nil })},
	{name: "parts flushed by http.Flusher", holds: streams(true, flush)},
	{name: "parts flushed by http.ResponseController", holds: streams(true, func(c *adaptertest.Call) error {
		rc := http.NewResponseController(c.W)
		return errors.Join(rc.SetWriteDeadline(time.Now().Add(time.Minute)), rc.EnableFullDuplex(), rc.Flush())
	})},
	{name: "server-sent events", holds: onlyHTTP((*world).events)},
	{name: "connection taken over", holds: onlyHTTP((*world).hijacked)},

	{name: "one acquire span and one release span a call", holds: (*world).spans},
}
