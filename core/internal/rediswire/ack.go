package rediswire

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// ack holds how many replicas must acknowledge a write, and within which time.
//
// WAIT counts the replicas that have the last write of the connection that sends it. So
// it follows the writes in the same pipeline: over a pool it would ask about the writes
// of another connection, and acknowledge falsely. Inside MULTI it does not wait at all
// (https://redis.io/docs/latest/commands/wait/).
type ack struct {
	replicas int // 0: none
	within   time.Duration
}

// ask appends the question to the pipeline, if replicas have to acknowledge.
func (a ack) ask(ctx context.Context, pipe redis.Pipeliner) *redis.IntCmd {
	wait := redis.NewIntCmd(ctx, "wait", a.replicas, a.within.Milliseconds())
	_ = pipe.Process(ctx, &noRetry{wait})
	return wait
}

// given reports whether enough replicas have answered.
func (a ack) given(wait *redis.IntCmd) bool {
	return wait.Err() == nil && wait.Val() >= int64(a.replicas)
}
