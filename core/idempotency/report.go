package idempotency

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// refusal makes a refusal of this endpoint.
func (e *Engine) refusal(why reason.Reason, err error) *core.Refusal {
	return &core.Refusal{Reason: why, Rule: e.config.name, Err: err}
}

// rejection makes the refusal of a request that was not understood. The server's
// mistakes are logged, since the client is not told what is wrong.
func (e *Engine) rejection(ctx context.Context, err error) *core.Refusal {
	why := reasonOf(ctx, err)
	if why == reason.Misconfigured || why == reason.Internal {
		e.log(ctx, slog.LevelError, "interlock: an idempotent endpoint refuses requests, since the server is not set up for them", err)
	}
	return e.refusal(why, err)
}

// errForeign is behind the refusal of a call of another protocol inside HTTP.
var errForeign = errors.New("interlock: an idempotent endpoint for HTTP got a call of gRPC, gRPC-Web or Connect, " +
	"whose failures have HTTP status 200: put grpclock.Idempotent into the gRPC server, and no HTTP middleware in front of it")

// refuseForeign refuses such a call. Most often the middleware stands in front of a gRPC
// server. It may as well be a client that sends a content type at will, so the line is a
// warning, comes once a minute, and keeps no other line of the endpoint back.
func (e *Engine) refuseForeign(ctx context.Context) *core.Refusal {
	if n := e.foreign.Count(time.Now()); n > 0 {
		slog.WarnContext(ctx, "interlock: an idempotent endpoint refuses requests for their content type",
			"rule", e.config.name, "requests", n, "error", errForeign)
	}
	return e.refusal(reason.ContentType, errForeign)
}

// refuse refuses a request, and tells the observer.
func (e *Engine) refuse(ctx context.Context, begin time.Time, why reason.Reason, err error) endpoint.Verdict {
	return e.refused(ctx, begin, e.refusal(why, err))
}

// refused is the verdict for a refusal, which it reports to the observer.
func (e *Engine) refused(ctx context.Context, begin time.Time, r *core.Refusal) endpoint.Verdict {
	e.report(ctx, observe.Decided{Outcome: observe.DecidedRefused, Reason: string(r.Reason), Waited: time.Since(begin), Err: r.Err})
	return endpoint.Verdict{Refusal: r}
}

// report tells the observer what was decided.
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

// log writes a line about a request, at most once a second for an endpoint.
func (e *Engine) log(ctx context.Context, level slog.Level, message string, err error) {
	if n := e.lines.Count(time.Now()); n > 0 {
		slog.Log(ctx, level, message, "rule", e.config.name, "requests", n, "error", err)
	}
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
