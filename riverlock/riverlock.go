package riverlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/reason"
)

// Guard returns a middleware that works jobs under a rule: alone ([core.Serialize]),
// together with other sharers ([core.Share]), or as a limited number at once
// ([core.AtMost]). A job that gets no lock is snoozed ([Snooze], [GiveUp]), so that its worker
// takes the next job. The rule must not wait: give it core.Wait(0). The options [Key] and
// [With] have no meaning here.
//
// The context of the job ends when the lock is lost. What the worker returns then is joined to
// the loss, and River retries the job.
//
// Guard is safe for concurrent use. It panics if rule is nil or waits for its lock.
func Guard(rule *core.Guard, opts ...Option) rivertype.WorkerMiddleware {
	switch {
	case rule == nil:
		panic("riverlock: Guard with a nil rule; core.Serialize makes one")
	case rule.Waits():
		panic(fmt.Sprintf("riverlock: the rule %q waits for its lock, and would keep a worker from other jobs; give it core.Wait(0)", rule.Name()))
	}
	o := newOptions(opts)
	return river.WorkerMiddlewareFunc(func(ctx context.Context, job *rivertype.JobRow, next func(context.Context) error) (err error) {
		received, err := once.Received(ctx, metadata(job))
		if err != nil {
			return river.JobCancel(err)
		}
		request := &adapter.Message{
			Name: job.Kind, Metadata: names(job), Payload: job.EncodedArgs, Source: job, Lookup: ctx.Value,
		}
		refusal := rule.Do(received, request, func(ctx context.Context) (answered bool) {
			err = next(ctx)
			return err == nil
		})
		switch {
		case refusal == nil:
		case refusal.Ran:
			err = errors.Join(once.Refused(refusal), err)
		default:
			return o.refused(ctx, job, once.Refused(refusal))
		}
		o.entered(ctx, job)
		return permanent(err)
	})
}

// Idempotent returns a middleware that carries each job out once; see the package
// comment. Neither the engine nor its rule ([idempotency.Under]) may wait: a job that is refused for
// the time being is snoozed. Idempotent is safe for concurrent use. It panics if engine is nil or
// waits ([idempotency.Engine.Waits]).
func Idempotent(engine *idempotency.Engine, opts ...Option) rivertype.WorkerMiddleware {
	switch {
	case engine == nil:
		panic("riverlock: Idempotent with a nil engine; idempotency.New makes one")
	case engine.Waits():
		panic(fmt.Sprintf("riverlock: the engine %q waits for its rule, or for another run of the job, and would keep a worker from other jobs; "+
			"give the rule core.Wait(0), and the engine no idempotency.WaitReplay", engine.Name()))
	}
	o := newOptions(opts)
	return river.WorkerMiddlewareFunc(func(ctx context.Context, job *rivertype.JobRow, next func(context.Context) error) error {
		received, err := once.Received(ctx, metadata(job))
		if err != nil {
			return river.JobCancel(err)
		}
		calls := append([]once.Option{once.Metadata(names(job)), once.Codec(marshal, unmarshal)}, o.with...)
		_, err = once.Do(received, engine, o.key(job), job, func(ctx context.Context, _ *rivertype.JobRow) (done, error) {
			err := next(ctx)
			if canceled := (*river.JobCancelError)(nil); errors.As(err, &canceled) && !refused(err) {
				err = once.Final(err)
			}
			return done{}, err
		}, calls...)
		if refused(err) {
			return o.refused(ctx, job, err)
		}
		o.entered(ctx, job)
		return permanent(err)
	})
}

// refused reports whether a rule or an engine has refused a job. The result of such a job is not
// stored: its fences may be to blame, and the next job for the work has others.
func refused(err error) bool {
	var refused *once.RefusedError
	return errors.As(err, &refused) && !refused.Refusal.Ran
}

// permanent marks an error that stays as it is, however often River retries the job. River
// deletes a cancelled job after a day; a job that an operator or a new version of the program can
// help keeps its attempts.
func permanent(err error) error {
	refused := (*once.RefusedError)(nil)
	switch {
	case !once.Permanent(err):
	case errors.As(err, &refused) && (refused.Refusal.Reason == reason.OutcomeUnknown || refused.Refusal.Reason == reason.BadKey):
	default:
		return river.JobCancel(err)
	}
	return err
}

// done is the result of a job that succeeded.
type done struct{}

// marshal and unmarshal are the codec: of a job its arguments, as the database has them.
func marshal(v any) ([]byte, error) {
	if job, ok := v.(*rivertype.JobRow); ok {
		return job.EncodedArgs, nil
	}
	return nil, nil
}

func unmarshal([]byte, any) error { return nil }

// metadata is the part of a job's metadata that is text.
func metadata(job *rivertype.JobRow) map[string]string {
	all := make(map[string]string)
	var found map[string]any
	_ = json.Unmarshal(job.Metadata, &found) // River has read it
	for name, v := range found {
		if text, ok := v.(string); ok {
			all[name] = text
		}
	}
	return all
}
