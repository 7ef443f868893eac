// Package outcome lets guards tell middleware around them how each request ended.
// Package idempotency keeps and repeats answers, and must know whether an answer
// comes from the handler or from this module.
//
// R is core.Refusal at every call. It is a parameter because package core imports
// this package.
package outcome

import (
	"context"

	"github.com/interlock-go/interlock/core/internal/within"
)

// With returns a context whose guards call report with the outcome of each
// request, before Guard.Do of package core returns:
//
//   - a refusal whose Ran is false: the guard refused, and its handler did
//     not run;
//
//   - a refusal whose Ran is true: the handler ran, and the lease was lost
//     before it had answered;
//
//   - nil: the handler ran, and the answer is the handler's own.
//
// Where guards are nested, the inner guards report. The outer guard reports only if
// it lost its own lease. A handler that panics under a valid lease counts as a
// handler that ran. A function of the guard that panics before the handler (a
// KeyFunc, for example) counts as a refusal.
//
// report must be safe for concurrent use and must not block. It replaces the
// function that ctx had before. Middleware that needs both calls [Report] with its
// own context.
func With[R any](ctx context.Context, report func(refusal *R)) context.Context {
	return context.WithValue(ctx, key[R]{}, report)
}

// Of returns the function that [With] has put into ctx, or nil.
func Of[R any](ctx context.Context) func(refusal *R) {
	report, _ := within.Value(ctx, key[R]{}).(func(*R))
	return report
}

// Report calls the function that [With] has put into ctx, if there is one. It is for
// middleware that answers in place of a handler, as a guard does.
func Report[R any](ctx context.Context, refusal *R) {
	if report := Of[R](ctx); report != nil {
		report(refusal)
	}
}

type key[R any] struct{}
