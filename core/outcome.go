package core

import (
	"context"
	"sync/atomic"

	"github.com/interlock-go/interlock/core/internal/outcome"
)

// outcomeReport is how one guard reports the outcome of a request to the middleware
// around it; see package outcome. The zero value reports to no function.
type outcomeReport struct {
	report func(*Refusal)
	inside *atomic.Bool // a guard further inside has reported
}

func outcomeOf(ctx context.Context) outcomeReport {
	report := outcome.Of[Refusal](ctx)
	if report == nil {
		return outcomeReport{}
	}
	return outcomeReport{report: report, inside: new(atomic.Bool)}
}

// handler returns the context for the guard's handler, in which guards report first.
func (o outcomeReport) handler(ctx context.Context) context.Context {
	if o.report == nil {
		return ctx
	}
	return outcome.With(ctx, func(refusal *Refusal) {
		o.inside.Store(true)
		o.report(refusal)
	})
}

// refused reports that the handler did not run.
func (o outcomeReport) refused(refusal *Refusal) {
	if o.report != nil {
		o.report(refusal)
	}
}

// ran reports that the handler ran, and whether its lease was lost.
func (o outcomeReport) ran(lost *Refusal) {
	if o.report != nil && (lost != nil || !o.inside.Load()) {
		o.report(lost)
	}
}
