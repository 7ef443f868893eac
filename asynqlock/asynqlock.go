package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
)

// Idempotent returns a middleware that carries each task out once; see the package
// comment. It is safe for concurrent use. Idempotent panics if engine is nil.
func Idempotent(engine *idempotency.Engine, opts ...Option) asynq.MiddlewareFunc {
	if engine == nil {
		panic("asynqlock: Idempotent with a nil engine; idempotency.New makes one")
	}
	o := newOptions(opts)
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			ctx, err := once.Received(ctx, task.Headers())
			if err != nil {
				return fmt.Errorf("%w: %w", asynq.SkipRetry, err)
			}
			calls := append([]once.Option{once.Metadata(task.Headers()), once.Codec(marshal, unmarshal)}, o.with...)
			revoked, err := once.Do(ctx, engine, o.key(ctx, task), task, func(ctx context.Context, task *asynq.Task) (string, error) {
				return result(next.ProcessTask(ctx, task))
			}, calls...)
			switch {
			case revoked != "":
				return fmt.Errorf("%w: %s", asynq.RevokeTask, revoked)
			case once.Permanent(err):
				return fmt.Errorf("%w: %w", asynq.SkipRetry, err)
			}
			return err
		})
	}
}

// result makes the result that is stored of an error of the handler: Two errors of Asynq say
// that the task is settled.
func result(err error) (revoked string, _ error) {
	switch {
	case errors.Is(err, asynq.RevokeTask):
		return err.Error(), nil
	case errors.Is(err, asynq.SkipRetry) && !refused(err):
		return "", once.Final(err)
	}
	return "", err
}

// refused reports whether a rule inside the handler has refused the task. Its fences may be to
// blame, and the next task for the work has others.
func refused(err error) bool {
	var refused *once.RefusedError
	return errors.As(err, &refused) && !refused.Refusal.Ran
}

// marshal and unmarshal are the codec: of a task its payload, of a result its text.
func marshal(v any) ([]byte, error) {
	if task, ok := v.(*asynq.Task); ok {
		return task.Payload(), nil
	}
	text, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("asynqlock: a result of type %T", v)
	}
	return []byte(text), nil
}

func unmarshal(data []byte, v any) error {
	text, ok := v.(*string)
	if !ok {
		return fmt.Errorf("asynqlock: a result of type %T", v)
	}
	*text = string(data)
	return nil
}

// Guard returns a middleware that runs tasks under a rule: alone ([core.Serialize]),
// together with other sharers ([core.Share]), or as a limited number at once
// ([core.AtMost]). While a task waits for its lock it takes a worker of the server: give
// the rule a short [core.Wait]. It is safe for concurrent use. Guard panics if rule is
// nil.
//
// If the lock was refused, the error is an [once.RefusedError]. If it was lost
// before a handler failed, the error of the handler is joined to that.
func Guard(rule *core.Guard) asynq.MiddlewareFunc {
	if rule == nil {
		panic("asynqlock: Guard with a nil rule; core.Serialize makes one")
	}
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) (err error) {
			if ctx, err = once.Received(ctx, task.Headers()); err != nil {
				return fmt.Errorf("%w: %w", asynq.SkipRetry, err)
			}
			request := &adapter.Message{
				Name: task.Type(), Metadata: task.Headers(), Payload: task.Payload(), Source: task, Lookup: ctx.Value,
			}
			refusal := rule.Do(ctx, request, func(ctx context.Context) (answered bool) {
				err = next.ProcessTask(ctx, task)
				return err == nil
			})
			if refusal != nil {
				err = errors.Join(once.Refused(refusal), err)
			}
			if once.Permanent(err) {
				err = fmt.Errorf("%w: %w", asynq.SkipRetry, err)
			}
			return err
		})
	}
}

// RetryDelay is for asynq.Config.RetryDelayFunc: a task that was refused for the time
// being is retried after [once.RefusedError.RetryAfter]. All others follow next;
// nil is asynq.DefaultRetryDelayFunc.
func RetryDelay(next asynq.RetryDelayFunc) asynq.RetryDelayFunc {
	if next == nil {
		next = asynq.DefaultRetryDelayFunc
	}
	return func(n int, err error, task *asynq.Task) time.Duration {
		if d := retryAfter(err); d > 0 {
			return d
		}
		return next(n, err, task)
	}
}

// IsFailure is for asynq.Config.IsFailure: a task that was refused for the time being has
// not failed, and has as many retries left as before.
func IsFailure(err error) bool { return err != nil && retryAfter(err) == 0 }

// retryAfter is the time until a refused task is to be tried again, 0 for any other error.
func retryAfter(err error) time.Duration {
	var refused *once.RefusedError
	if errors.As(err, &refused) {
		return refused.RetryAfter
	}
	return 0
}
