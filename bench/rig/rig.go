// Package rig starts the Redis servers of the benchmarks, outside of a test, and reads their
// counters.
package rig

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// host lets redistest start its servers outside of a test: it is as much of a testing.TB as
// that needs. Any other method panics, and Start turns the panic into an error.
type host struct {
	testing.TB
	ctx      context.Context
	dir      string
	cleanups []func()
}

func (h *host) Helper()                  {}
func (h *host) Context() context.Context { return h.ctx }
func (h *host) TempDir() string          { return h.dir }
func (h *host) Cleanup(f func())         { h.cleanups = append(h.cleanups, f) }

func (h *host) Fatalf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }

// Start has a function start servers with redistest. dir is a directory that the servers
// may use, and others; stop ends them and removes it.
func Start(ctx context.Context, start func(tb testing.TB)) (dir string, stop func(), err error) {
	dir, err = os.MkdirTemp("", "interlock-bench-")
	if err != nil {
		return "", nil, err
	}
	h := &host{ctx: ctx, dir: dir}
	stop = func() {
		for _, f := range h.cleanups {
			f()
		}
		_ = os.RemoveAll(dir) // it is in the system's temporary directory
	}
	defer func() {
		if failure := recover(); failure != nil {
			stop()
			err = fmt.Errorf("starting servers: %v", failure)
		}
	}()
	start(h)
	return dir, stop, nil
}

// Info calls a function for each name and value of a server's INFO, and returns how long the
// answer was.
func Info(ctx context.Context, rdb *redis.Client, each func(name, value string)) (int, error) {
	info, err := rdb.Info(ctx, "everything").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		each(name, value)
	}
	return len(info), nil
}
