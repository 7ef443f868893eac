package gocronlock

import (
	"context"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/interlock-go/interlock/core"
)

// NewLocker returns a Locker: a job runs only if no other process has its lock, gocron/ and the
// name of the job. Set the name by gocron.WithName; gocron's default, the name of a function, is
// the same for all anonymous functions of one kind.
//
// The lock is kept for as long as the job runs, and for at least hold after its grant. Without
// that time a job that is quick would run twice: a process with a clock that is behind comes to
// the same tick when the lock is free again. So hold is longer than the clocks of the processes
// differ, and shorter than the time between two ticks. Processes with ticks at different times, as
// with gocron.DurationJob without gocron.WithStartAt, need almost the whole time between two.
//
// The lease of the lock is hold ([core.Watchdog]): a process that dies keeps other processes from
// the job for that long. [core.Locker.Close] waits until the last hold is over or its context
// ends; then the lock ends with its lease.
//
// hold is at least 10 ms and at most 31 days; else the error matches [core.ErrConfig].
func NewLocker(locker *core.Locker, hold time.Duration) (gocron.Locker, error) {
	switch {
	case locker == nil:
		return nil, fmt.Errorf("%w: locker is nil; core.New makes one", core.ErrConfig)
	case hold < 10*time.Millisecond || hold > 31*24*time.Hour:
		return nil, fmt.Errorf("%w: NewLocker(..., %v): must be at least 10 ms and at most 31 days", core.ErrConfig, hold)
	}
	return &locks{locker, hold}, nil
}

// locks is a [gocron.Locker].
type locks struct {
	locker *core.Locker
	hold   time.Duration
}

// Lock implements [gocron.Locker].
func (l *locks) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	key, err := core.Key("gocron", job)
	if err != nil {
		return nil, err
	}
	lease, err := l.locker.TryLock(ctx, key, core.Watchdog(l.hold), core.Name("gocron"))
	if err != nil {
		return nil, err
	}
	return &held{lease, time.Now().Add(l.hold)}, nil
}

// held is a [gocron.Lock].
type held struct {
	lease *core.Lease
	until time.Time
}

// Unlock implements [gocron.Lock]. It returns at once.
func (h *held) Unlock(ctx context.Context) error {
	rest := time.Until(h.until)
	if rest <= 0 {
		return h.lease.Release(ctx)
	}
	ctx = context.WithoutCancel(ctx)
	time.AfterFunc(rest, func() { _ = h.lease.Release(ctx) }) // the observer gets the error
	return nil
}
