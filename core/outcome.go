package core

import (
	"context"
	"sync/atomic"

	"github.com/interlock-go/interlock/core/internal/carrier"
)

// outcomeReport is how one guard reports the outcome of a request to the middleware
// around it; see [carrier.Reporter].
type outcomeReport struct {
	report func(*Refusal)
	inside atomic.Bool // a guard further inside has reported
}

// handler returns the context for the guard's handler. Guards report in it first.
func (o *outcomeReport) handler(ctx context.Context) context.Context {
	return context.WithValue(ctx, carrier.Reporter, func(refusal *Refusal) {
		o.inside.Store(true)
		o.report(refusal)
	})
}

// ran reports that the handler ran, and whether its lease was lost.
func (o *outcomeReport) ran(lost *Refusal) {
	if lost != nil || !o.inside.Load() {
		o.report(lost)
	}
}
