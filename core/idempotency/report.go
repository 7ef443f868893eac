package idempotency

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// refusal makes a refusal of this endpoint.
func (e *Engine) refusal(why reason.Reason, err error) *core.Refusal {
	return &core.Refusal{Reason: why, Rule: e.config.name, Err: err}
}

// logRefusal logs each refusal that is an error of the server (a status of 500 or 503),
// for the operator: the client gets no details. If the handler did not run, the refusal of
// its guard ([Under]) is in the log already.
func (e *Engine) logRefusal(ctx context.Context, r *core.Refusal) {
	if r == nil || r.Rule != e.config.name && !r.Ran {
		return
	}
	level, text := slog.LevelWarn, ""
	switch r.Reason {
	case reason.NoRecord, reason.NotReplicated, reason.KeyOccupied:
		text = "interlock: the store of idempotency records fails and the endpoint refuses requests"
		if errors.Is(r.Err, ErrDamaged) {
			level, text = slog.LevelError, "interlock: a stored response cannot be read, and requests with its key are refused"
		}
	case reason.RolledBack:
		text = "interlock: the transaction of an idempotent request was not committed, and the client gets an error"
	case reason.Closing:
		text = "interlock: the engine is closed and the endpoint refuses requests: shut the server down before Engine.Close"
	case reason.Lost, reason.MaxHold:
		text = "interlock: an idempotent request lost its claim or its lock before it was answered, and the client gets an error"
	case reason.ResponseTooLarge:
		level, text = slog.LevelError, "interlock: the response of an idempotent request is too long, and the client gets an error"
	case reason.Misconfigured, reason.Internal:
		level, text = slog.LevelError, "interlock: an idempotent endpoint refuses requests, since the server is not set up for them, or a function of it fails"
	default:
		return
	}
	e.log(ctx, level, text, r.LogError())
}

// errForeign is the cause of the refusal of a call of another protocol inside HTTP.
var errForeign = errors.New("interlock: an idempotent endpoint for HTTP got a call of gRPC, gRPC-Web or Connect, " +
	"whose failures have HTTP status 200: put grpclock.Protect into the gRPC server, and no HTTP middleware in front of it")

// errUnwritten names possible causes of an answer that the handler has not written.
var errUnwritten = errors.New("interlock: if 200 is meant, call WriteHeader; a bridge from another framework has to " +
	"run the handler, and to write the answer to its error, inside the middleware")

// refuseForeign refuses such a call. Most often the middleware stands in front of a gRPC
// server. It may as well be a client that sends a content type at will, so the line is a
// warning.
func (e *Engine) refuseForeign(ctx context.Context) *core.Refusal {
	e.log(ctx, slog.LevelWarn, "interlock: an idempotent endpoint refuses requests for their content type", errForeign)
	return e.refusal(reason.ContentType, errForeign)
}

// refuse is the verdict for a refusal, which it reports to the observer.
func (e *Engine) refuse(ctx context.Context, begin time.Time, r *core.Refusal) endpoint.Verdict {
	e.report(ctx, observe.Decided{Outcome: observe.DecidedRefused, Reason: string(r.Reason), Waited: time.Since(begin), Err: r.Err})
	return endpoint.Verdict{Refusal: r}
}

// report reports the decision to the observer.
func (e *Engine) report(ctx context.Context, d observe.Decided) {
	if e.config.observer == nil {
		return
	}
	_, o := e.config.observer.Start(ctx, observe.Operation{Rule: e.config.name, Unlocked: true})
	if o.Decided != nil {
		o.Decided(d)
	}
}

// bypassed reports that a handler runs without a record.
func (e *Engine) bypassed(ctx context.Context, err error) {
	if e.config.observer != nil {
		_, o := e.config.observer.Start(ctx, observe.Operation{Rule: e.config.name, Unlocked: true})
		if o.Bypassed != nil {
			o.Bypassed(err)
		}
	}
	e.log(ctx, slog.LevelWarn, "interlock: the store of idempotency records is unavailable and the endpoint fails open: "+
		"handlers run without their record", err)
}

// logUnknown writes a line about a record without an answer, if its request had, or may have
// had, its effect: the first time that this process finds it so. An operator settles the record
// by its hash, and finds the effect by the downstream key (docs/runbook.md). If the attempt is not the
// last, a retry settles it.
func (e *Engine) logUnknown(ctx context.Context, id string, err error, last bool) {
	if !last {
		e.log(ctx, slog.LevelWarn, "interlock: an attempt at an idempotent request leaves no answer, and a retry is carried out once its claim has ended", err)
		return
	}
	if !e.unknown.first(id) {
		return
	}
	e.lines.Line(ctx, slog.LevelError, "interlock: the outcome of an idempotent request is not known, and it is not carried out again",
		"rule", e.config.name, "record", id, "downstream_key", ident.Downstream(id, nil), "error", err)
}

// noted are records that were logged. The zero value is empty. It is safe for concurrent use.
type noted struct {
	mu      sync.Mutex
	records map[string]bool
}

// manyNoted bounds the memory. Beyond it a record may be logged again.
const manyNoted = 1000

// first reports whether a record was not noted before, and notes it.
func (n *noted) first(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.records[id] {
		return false
	}
	if n.records == nil || len(n.records) >= manyNoted {
		n.records = map[string]bool{}
	}
	n.records[id] = true
	return true
}

// log writes a line about a request, at most once a minute for a text. It is for the
// goroutine of the request: it may wait until the line is written.
func (e *Engine) log(ctx context.Context, level slog.Level, text string, err error) {
	e.lines.Add(ctx, level, text, e.config.name, err)
}

// reasonOf is core.ReasonOf, except that the store that does not answer is a
// store of records.
func reasonOf(ctx context.Context, err error) reason.Reason {
	if errors.Is(err, ErrDamaged) {
		return reason.NoRecord
	}
	why := core.ReasonOf(ctx, err)
	if why == reason.Unavailable {
		return reason.NoRecord
	}
	return why
}
