package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
)

// ack is how many replicas have to acknowledge a write, and within which time.
//
// WAIT tells how many replicas have what its own connection wrote last, so it
// goes behind the writes in one pipeline: over a pool it would ask for another
// connection's writes, and acknowledge falsely. Inside MULTI it does not wait at
// all (https://redis.io/docs/latest/commands/wait/).
type ack struct {
	replicas int // 0: none
	within   time.Duration
	renewals bool
}

// Replicas asks for each lock that at least n replicas have it before it counts
// as taken, and gives each up to within, at least 1 ms, to say so; n is at least
// 1. With fewer the lock is released again and core.ErrNotReplicated returned.
// Default: not asked, since it costs the round trip to the replicas.
//
// It narrows the window in which a failover loses a lock; it closes it only if
// no replica without the lock can be promoted: ask for all of them, or give those
// that you ask for the better priority, and set min-replicas-to-write.
func Replicas(n int, within time.Duration) Option {
	return func(s *settings) {
		if n < 1 || within < time.Millisecond {
			s.err = fmt.Errorf("%w: Replicas(%d, %v): at least 1 replica and 1ms", core.ErrConfig, n, within)
			return
		}
		s.ack.replicas, s.ack.within = n, within
	}
}

// ReplicatedRenewals asks the same for each renewal; one that is not acknowledged
// counts as failed, and is tried again until the lease is over. With Replicas
// only. Default: not asked; a renewal that is lost in a failover is noticed at
// the next one.
func ReplicatedRenewals() Option {
	return func(s *settings) { s.ack.renewals = true }
}

// ask puts the question behind what is in the pipeline.
func (a ack) ask(ctx context.Context, pipe redis.Pipeliner) *redis.IntCmd {
	if a.replicas == 0 {
		return nil
	}
	wait := redis.NewIntCmd(ctx, "wait", a.replicas, a.within.Milliseconds())
	_ = pipe.Process(ctx, noRetryInt{wait})
	return wait
}

// given reports whether enough replicas have answered.
func (a ack) given(wait *redis.IntCmd) bool {
	return a.replicas == 0 || wait != nil && wait.Err() == nil && wait.Val() >= int64(a.replicas)
}

// noRetryInt is command for a reply that is a number.
type noRetryInt struct{ *redis.IntCmd }

// NoRetry implements redis.Cmder.
func (noRetryInt) NoRetry() bool { return true }
