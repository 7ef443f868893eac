package asynqlock

import (
	"context"
	"fmt"
	"maps"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/propagation"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
)

// NewTask makes a task that is about to be enqueued under ctx, as asynq.NewTaskWithHeaders does. It
// adds what goes along to the headers: tickets, fencing tokens, and the trace context of ctx. The
// spans of the locks of the consumer link to that trace. It does not change headers, which may be
// nil.
//
//	task, err := asynqlock.NewTask(ctx, "settle", payload, nil, once.Along{Lock: ticket})
//	if err != nil {
//		return err
//	}
//	_, err = client.Enqueue(task)
//
// In the handler of an idempotent endpoint, a job or a function of package once it gives the task
// an ID that is derived from the request ([idempotency.CallKey]): a handler that runs again after
// a crash makes the same task again. As long as the first task is there, Enqueue then returns
// asynq.ErrTaskIDConflict, which says that the task was enqueued before; later [Idempotent] finds
// its record. The n-th task of a type has its own ID. A handler that makes tasks in several
// goroutines names each by [idempotency.WithCall]. With [idempotency.WithKey] the ID is that key.
// An asynq.TaskID in opts takes its place.
//
// A task with a ticket or fences is another task in each attempt, with an ID of its own
// ([once.Along.Put]). With the ticket of a request it accepts neither asynq.TaskID nor asynq.Unique, in opts or
// at Enqueue: either could drop the task with the ticket that counts.
func NewTask(
	ctx context.Context, typename string, payload []byte, headers map[string]string, along once.Along, opts ...asynq.Option,
) (*asynq.Task, error) {
	all := make(map[string]string, len(headers)+4)
	maps.Copy(all, headers)
	if along.Claim != (idempotency.Ticket{}) {
		for _, option := range opts {
			if t := option.Type(); t == asynq.TaskIDOpt || t == asynq.UniqueOpt {
				return nil, fmt.Errorf("interlock: the task was not made: %w: %v, which takes it for the task with an earlier ticket of the request: "+
					"a task with a ticket accepts neither asynq.TaskID nor asynq.Unique", core.ErrConfig, option)
			}
		}
	}
	id, err := along.Put(ctx, "enqueue "+typename, payload, all)
	if err != nil {
		return nil, fmt.Errorf("interlock: the task was not made: %w", err)
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(all))
	if id != "" {
		opts = append([]asynq.Option{asynq.TaskID(id)}, opts...) // of two, the last counts
	}
	return asynq.NewTaskWithHeaders(typename, payload, all, opts...), nil
}
