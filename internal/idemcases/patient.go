package idemcases

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/internal/testkit"
)

// patient is a store on a server that answers: it waits for each reply as long as tests
// do, so that a machine that stands still refuses no request.
type patient struct{ record.Store }

// Unwrap returns the store.
func (p patient) Unwrap() record.Store { return p.Store }

func (p patient) Claim(ctx context.Context, req record.ClaimRequest) (record.ClaimReply, error) {
	req.Deadline = inTime()
	return p.Store.Claim(ctx, req)
}

func (p patient) Mark(ctx context.Context, req record.MarkRequest) error {
	req.Deadline = inTime()
	return p.Store.Mark(ctx, req)
}

func (p patient) Step(ctx context.Context, req record.StepRequest) error {
	req.Deadline = inTime()
	return p.Store.Step(ctx, req)
}

func (p patient) Commit(ctx context.Context, req record.CommitRequest) (record.CommitReply, error) {
	req.Deadline = inTime()
	return p.Store.Commit(ctx, req)
}

func (p patient) Abandon(ctx context.Context, req record.AbandonRequest) error {
	req.Deadline = inTime()
	return p.Store.Abandon(ctx, req)
}

func inTime() time.Time { return time.Now().Add(testkit.Patience) }
