//go:build long

package changeover

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/alongside"
)

// release is the protection that a process of the service has before it touches an account or
// makes a payment.
type release string

const (
	old  release = "old only"
	both release = "both"
	ours release = "ours only"
)

// Of docs/moving.md.

func _(ctx context.Context, rdb *redis.Client, id string, debit func(context.Context) error) error {
	rs := redsync.New(goredis.NewPool(rdb))
	mutex := rs.NewMutex("account:" + id)
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(ctx) //nolint:errcheck // as a service has it before the change
	return debit(ctx)
}

func _(ctx context.Context, locker *core.Locker, id string, debit func(context.Context) error) error {
	return locker.Do(ctx, "account/"+id, debit, core.Wait(5*time.Second))
}

func _(ctx context.Context, locker *core.Locker, rs *redsync.Redsync, id string, debit func(context.Context) error) error {
	other := oldRedsync(rs.NewMutex("account:"+id), 8*time.Second)
	return locker.Do(ctx, "account/"+id, func(ctx context.Context) error {
		return alongside.Do(ctx, other, debit)
	}, core.Wait(5*time.Second))
}

// oldRedsync is the lock of the old release. The lease is the expiry of the mutex, which is
// 8 s without redsync.WithExpiry.
func oldRedsync(mutex *redsync.Mutex, lease time.Duration) alongside.Lock {
	gone := func(err error) error {
		var taken *redsync.ErrTaken
		if errors.As(err, &taken) || errors.Is(err, redsync.ErrLockAlreadyExpired) {
			return errors.Join(core.ErrLost, err)
		}
		return err
	}
	return alongside.Lock{
		Lease:   lease,
		Acquire: mutex.LockContext,
		Renew: func(ctx context.Context) error {
			_, err := mutex.ExtendContext(ctx)
			return gone(err)
		},
		Release: func(ctx context.Context) error {
			_, err := mutex.UnlockContext(ctx)
			return gone(err)
		},
	}
}

// Of docs/moving.md.

func _(ctx context.Context, locker *core.Locker, id string, debit func(context.Context) error) error {
	return locker.Do(ctx, "account/"+id, debit)
}

func _(ctx context.Context, rdb *redis.Client, id string, debit func(context.Context) error) error {
	locks := redislock.New(rdb)
	retry := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	lock, err := locks.Obtain(ctx, "account:"+id, 30*time.Second, retry)
	if err != nil {
		return err
	}
	defer lock.Release(ctx)
	return debit(ctx)
}

func _(ctx context.Context, locker *core.Locker, locks *redislock.Client, id string, debit func(context.Context) error) error {
	retry := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	other := oldRedislock(locks, "account:"+id, 30*time.Second, retry)
	return locker.Do(ctx, "account/"+id, func(ctx context.Context) error {
		return alongside.Do(ctx, other, debit)
	}, core.Wait(5*time.Second))
}

// oldRedislock is the lock of the old release, with its TTL and its options.
func oldRedislock(locks *redislock.Client, key string, ttl time.Duration, opts *redislock.Options) alongside.Lock {
	var lock *redislock.Lock
	gone := func(err error) error {
		if errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, redislock.ErrLockNotHeld) {
			return errors.Join(core.ErrLost, err)
		}
		return err
	}
	return alongside.Lock{
		Lease: ttl,
		Acquire: func(ctx context.Context) (err error) {
			lock, err = locks.Obtain(ctx, key, ttl, opts)
			return err
		},
		Renew:   func(ctx context.Context) error { return gone(lock.Refresh(ctx, ttl, nil)) },
		Release: func(ctx context.Context) error { return gone(lock.Release(ctx)) },
	}
}

// Of docs/moving.md.

var extend = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("PEXPIRE", KEYS[1], ARGV[2]) end return 0`)

var unlock = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)

// acquire takes a lock by hand, with a try each 100 ms.
func acquire(ctx context.Context, rdb *redis.Client, key, value string, lease time.Duration) error {
	for {
		taken, err := rdb.SetNX(ctx, key, value, lease).Result()
		if err != nil || taken {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func _(ctx context.Context, rdb *redis.Client, id string, debit func(context.Context) error) error {
	value := rand.Text()
	if err := acquire(ctx, rdb, "lock:"+id, value, 30*time.Second); err != nil {
		return err
	}
	defer unlock.Run(ctx, rdb, []string{"lock:" + id}, value)
	return debit(ctx)
}

func _(ctx context.Context, locker *core.Locker, rdb *redis.Client, id string, debit func(context.Context) error) error {
	other := oldSetNX(rdb, "lock:"+id, 30*time.Second)
	return locker.Do(ctx, "account/"+id, func(ctx context.Context) error {
		return alongside.Do(ctx, other, debit)
	}, core.Wait(5*time.Second))
}

// oldSetNX is the lock of the old release.
func oldSetNX(rdb *redis.Client, key string, lease time.Duration) alongside.Lock {
	value := rand.Text()
	held := func(n int, err error) error {
		if err == nil && n == 0 {
			return core.ErrLost // the key has ended, or has the value of another holder
		}
		return err
	}
	return alongside.Lock{
		Lease:   lease,
		Acquire: func(ctx context.Context) error { return acquire(ctx, rdb, key, value, lease) },
		Renew: func(ctx context.Context) error {
			return held(extend.Run(ctx, rdb, []string{key}, value, lease.Milliseconds()).Int())
		},
		Release: func(ctx context.Context) error {
			return held(unlock.Run(ctx, rdb, []string{key}, value).Int())
		},
	}
}
