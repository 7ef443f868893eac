package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/go-co-op/gocron/v2"

	"github.com/interlock-go/interlock/core"
)

// ErrNotLeader says that another process leads, or none at the moment.
var ErrNotLeader = errors.New("interlock: this process does not lead")

// NewElector returns an Elector: the process that holds the lock of key runs the jobs ([core.Lead]),
// until ctx ends. End ctx after the shutdown of the scheduler, and before [core.Locker.Close]; the
// next process then leads. NewElector panics if locker is nil.
//
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(gocronlock.NewElector(ctx, locker, "leader/cron")))
//
// gocron asks at each tick. IsLeader returns [ErrNotLeader] in all other processes, and as soon as
// the lock is lost; a job that runs then goes on. Where the election cannot work at all, as with
// an empty key, NewElector logs the error through [slog.Default], and IsLeader returns it.
func NewElector(ctx context.Context, locker *core.Locker, key string) gocron.Elector {
	if locker == nil {
		panic("gocronlock: NewElector with a nil locker; core.New makes one")
	}
	e := new(elector)
	go e.run(ctx, locker, key)
	return e
}

type elector struct {
	leads  atomic.Pointer[context.Context] // of the lease
	failed atomic.Pointer[error]
}

func (e *elector) run(ctx context.Context, locker *core.Locker, key string) {
	err := core.Lead(ctx, locker, key, func(ctx context.Context) error {
		e.leads.Store(&ctx)
		<-ctx.Done()
		return nil
	})
	if err != nil && ctx.Err() == nil {
		refusal := fmt.Errorf("%w: %w", ErrNotLeader, err)
		e.failed.Store(&refusal)
		slog.ErrorContext(ctx, "interlock: the election of gocron has ended, and this process runs no jobs", "error", err)
	}
}

// IsLeader implements [gocron.Elector].
func (e *elector) IsLeader(context.Context) error {
	if err := e.failed.Load(); err != nil {
		return *err
	}
	// The context of the lease ends before another process can lead.
	if leads := e.leads.Load(); leads == nil || (*leads).Err() != nil {
		return ErrNotLeader
	}
	return nil
}
