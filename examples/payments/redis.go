package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

const (
	// readTimeout is for one try, of which go-redis makes four.
	readTimeout = 2 * time.Second
	pingTimeout = 5 * time.Second
)

// embed starts a Redis-compatible server inside this process.
func embed() (addr string, stop func() error, err error) {
	embedded := miniredis.NewMiniRedis()
	if err := embedded.Start(); err != nil {
		return "", nil, fmt.Errorf("embedded server: %w", err)
	}
	// Without this call no key expires, not even the lock of a dead process.
	embedded.ClockTTL(true)
	return embedded.Addr(), func() error { embedded.Close(); return nil }, nil
}

// connect returns a client of the Redis at the given addresses, or of one that
// it starts inside this process if there are none. commands, unless nil, counts
// what is sent.
func connect(ctx context.Context, addrs []string, commands *commandCounter, log *slog.Logger) (rdb redis.UniversalClient, disconnect func() error, err error) {
	redis.SetLogger(redisLogger{log})
	stop := func() error { return nil }
	if len(addrs) == 0 {
		var addr string
		if addr, stop, err = embed(); err != nil {
			return nil, nil, err
		}
		addrs = []string{addr}
	}

	// A handler's commands must not outlast its lease: they end with its
	// context, and in a fraction of the lease even if Redis hangs.
	if len(addrs) > 1 {
		o := &redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true, ReadTimeout: readTimeout}
		if commands != nil {
			o.Dialer = commands.dial
		}
		rdb = redis.NewClusterClient(o)
	} else {
		o := &redis.Options{Addr: addrs[0], ContextTimeoutEnabled: true, ReadTimeout: readTimeout}
		if commands != nil {
			o.Dialer = commands.dial
		}
		rdb = redis.NewClient(o)
	}
	disconnect = func() error { return errors.Join(rdb.Close(), stop()) }

	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("no Redis at %v: %w", addrs, err), disconnect())
	}
	return rdb, disconnect, nil
}

// redisLogger passes the messages of go-redis (retried dials, closed connections) to a
// structured log, as details.
type redisLogger struct{ log *slog.Logger }

// Printf implements go-redis's logging interface.
func (l redisLogger) Printf(ctx context.Context, format string, v ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, fmt.Sprintf(format, v...))
	}
}
