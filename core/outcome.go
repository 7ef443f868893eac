package core

import (
	"context"
	"sync/atomic"
)

// WithOutcome is for middleware that keeps or repeats the answer of what runs
// inside it, and must know whether that answer comes from the handler or from this
// module. Package idempotency uses it. The guards inside call report with the
// outcome of each request, before [Guard.Do] returns:
//
//   - a [Refusal] whose Ran is false: the guard refused, and its handler did
//     not run;
//
//   - a Refusal whose Ran is true: the handler ran, and the lease was lost
//     before it had answered;
//
//   - nil: the handler ran, and the answer is the handler's own.
//
// Where guards are nested, the inner guards report. The outer guard reports only if
// it lost its own lease. A handler that panics under a valid lease counts as a
// handler that ran. A function of the guard that panics before the handler
// ([KeyFunc], for example) counts as a refusal ([ReasonInternal]).
//
// report must be safe for concurrent use and must not block. It replaces the
// function that ctx had before. Middleware that needs both calls [ReportOutcome]
// with its own context.
func WithOutcome(ctx context.Context, report func(refusal *Refusal)) context.Context {
	return context.WithValue(ctx, outcomeKey{}, report)
}

// ReportOutcome tells the function of [WithOutcome], if ctx has one, the outcome of
// a request. It is for middleware that answers in place of a handler, as a guard
// does. A nil refusal says that the handler ran and gave the answer.
func ReportOutcome(ctx context.Context, refusal *Refusal) {
	if report, ok := ctx.Value(outcomeKey{}).(func(*Refusal)); ok {
		report(refusal)
	}
}

type outcomeKey struct{}

// outcome is one guard's report. The zero value reports to no function.
type outcome struct {
	report func(*Refusal)
	inside *atomic.Bool // a guard further inside has reported
}

func outcomeOf(ctx context.Context) outcome {
	report, ok := ctx.Value(outcomeKey{}).(func(*Refusal))
	if !ok {
		return outcome{}
	}
	return outcome{report: report, inside: new(atomic.Bool)}
}

// handler returns the context for the guard's handler, in which guards report first.
func (o outcome) handler(ctx context.Context) context.Context {
	if o.report == nil {
		return ctx
	}
	return WithOutcome(ctx, func(refusal *Refusal) {
		o.inside.Store(true)
		o.report(refusal)
	})
}

// refused reports that the handler did not run.
func (o outcome) refused(refusal *Refusal) {
	if o.report != nil {
		o.report(refusal)
	}
}

// ran reports that the handler ran, and whether its lease was lost.
func (o outcome) ran(lost *Refusal) {
	if o.report != nil && (lost != nil || !o.inside.Load()) {
		o.report(lost)
	}
}
