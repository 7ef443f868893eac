package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

// ack holds how many replicas must acknowledge a write, and within which time.
//
// WAIT counts the replicas that have the last write of its own connection. So it goes
// behind the writes in one pipeline: over a pool it would ask about the writes of
// another connection, and acknowledge falsely. Inside MULTI it does not wait at all
// (https://redis.io/docs/latest/commands/wait/).
type ack struct {
	replicas int // 0: none
	within   time.Duration
	renewals bool
}

// Replicas makes each acquisition wait until at least n replicas have the lock, for at
// most the duration within. If fewer acknowledge it, the store releases the lock and
// returns [driver.ErrNotReplicated]. For n below 1 or within below 1 ms, [New] returns
// [driver.ErrConfig]. Default: the store does not ask the replicas, because that costs
// the round trip to them. Source: the Redis command WAIT.
//
// The option shortens the time in which a failover can lose a lock. It prevents the
// loss only if no replica without the lock can be promoted: ask for all replicas, or
// give a better priority to those that you ask for, and set min-replicas-to-write.
func Replicas(n int, within time.Duration) Option {
	return func(s *settings) {
		if n < 1 || within < time.Millisecond {
			s.err = fmt.Errorf("%w: Replicas(%d, %v): at least 1 replica and 1ms", driver.ErrConfig, n, within)
			return
		}
		s.ack.replicas, s.ack.within = n, within
	}
}

// ReplicatedRenewals makes each renewal wait for the replicas of [Replicas] too. A
// renewal that too few replicas acknowledge has failed; the locker tries again until
// the lease ends. Without Replicas, [New] returns [driver.ErrConfig]. Default: renewals
// do not wait; a renewal that a failover loses is noticed at the next renewal.
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
