package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/reason"
)

// claim asks for the record until it is granted, or it is clear that it will not
// be. A caller that leaves before leaves no claim behind.
func (e *Engine) claim(ctx context.Context, a *attempt) (reply record.ClaimReply, err error) {
	c := e.config
	if ctx.Err() != nil { // or a claim would have to be given up again
		return reply, claiming(ctx)
	}
	w := waiter{engine: e, id: a.id, until: time.Now().Add(c.wait)}
	defer w.stop()
	for {
		sent := time.Now()
		reply, err = e.store.Claim(ctx, record.ClaimRequest{
			ID: a.id, Token: a.token, Fingerprint: a.fingerprint, Fingerprint1: a.fingerprint1,
			Lease: c.lease, Retention: c.retention, Strict: c.strict, Transactional: c.transactional, Tombstone: c.tombstone > 0,
			Waits: c.wait > 0, Deadline: sent.Add(storeWait), Late: a.claimedLate,
		})
		if errors.Is(err, driver.ErrPending) {
			switch {
			case w.knows(ctx):
				return record.ClaimReply{State: record.StateInFlight}, nil
			case ctx.Err() != nil:
				return reply, claiming(ctx)
			}
			return reply, fmt.Errorf("%w: no answer in time", core.ErrUnavailable)
		}
		if !a.ambiguous {
			// Once a try may be executed at any time, a claim that is found to be
			// ours may have been granted to that one: its lease counts from there.
			a.sent = reply.Sent
		}
		a.ambiguous = a.ambiguous || reply.Ambiguous
		now := time.Now()
		switch {
		case err != nil:
			err = unavailable(err)
			if w.knows(ctx) && !errors.Is(err, ErrDamaged) && reasonOf(ctx, err) == reason.NoRecord {
				reply, err = record.ClaimReply{State: record.StateInFlight}, nil
			}
		case reply.State == record.StateGranted:
			a.generation = reply.Generation
			if now.Before(a.sent.Add(c.lease - clock.Drift(c.lease))) {
				return reply, nil
			}
			a.ambiguous = true // it is ours, and has to be given back
			err = fmt.Errorf("%w: a claim came after the end of its lease", core.ErrUnavailable)
		case reply.State == record.StateInFlight:
			var again bool
			if again, err = w.sleep(ctx, reply, sent); again {
				continue
			}
		}
		if a.ambiguous {
			e.background.abandon(a, true)
		}
		return reply, err
	}
}

// claimedLate takes the outcome of a claim whose caller has left.
func (a *attempt) claimedLate(reply record.ClaimReply, _ error) {
	if a.ambiguous || reply.Ambiguous || reply.State == record.StateGranted {
		a.engine.background.abandon(a, a.ambiguous || reply.Ambiguous)
	}
}

// claiming is the error of a caller whose context ended before it had an answer.
func claiming(ctx context.Context) error {
	return fmt.Errorf("interlock: claiming a record: %w", context.Cause(ctx))
}

// unavailable makes an error of a store one that says so.
func unavailable(err error) error {
	if errors.Is(err, core.ErrUnavailable) || errors.Is(err, ErrDamaged) {
		return err
	}
	return fmt.Errorf("%w: %w", core.ErrUnavailable, err)
}
