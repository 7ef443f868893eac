package steptrial

import (
	"context"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

// cut is the store as a process reaches it that dies: at each request before it is sent, or after it
// was executed and before its answer.
type cut struct {
	record.Store
	process *process
}

// send sends a request, unless the process is dead.
func send[T any](c *cut, do func() (T, error)) (reply T, err error) {
	var none T
	if c.process.event() {
		return none, errDead
	}
	reply, err = do()
	if c.process.event() {
		return none, errDead
	}
	return reply, err
}

func (c *cut) Claim(ctx context.Context, req record.ClaimRequest) (record.ClaimReply, error) {
	return send(c, func() (record.ClaimReply, error) { return c.Store.Claim(ctx, req) })
}

func (c *cut) Extend(ctx context.Context, batch []record.Extension, done func(i int, err error)) {
	if c.process.isDead() { // renewals come by the clock, and are no events
		for i := range batch {
			done(i, errDead)
		}
		return
	}
	c.Store.Extend(ctx, batch, done)
}

func (c *cut) Mark(ctx context.Context, req record.MarkRequest) error {
	_, err := send(c, func() (struct{}, error) { return struct{}{}, c.Store.Mark(ctx, req) })
	return err
}

func (c *cut) Step(ctx context.Context, req record.StepRequest) error {
	_, err := send(c, func() (struct{}, error) { return struct{}{}, c.Store.Step(ctx, req) })
	return err
}

func (c *cut) Commit(ctx context.Context, req record.CommitRequest) (record.CommitReply, error) {
	return send(c, func() (record.CommitReply, error) { return c.Store.Commit(ctx, req) })
}

func (c *cut) Abandon(ctx context.Context, req record.AbandonRequest) error {
	_, err := send(c, func() (struct{}, error) { return struct{}{}, c.Store.Abandon(ctx, req) })
	return err
}
