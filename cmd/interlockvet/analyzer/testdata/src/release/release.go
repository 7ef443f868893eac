// Package release has leases that are not released.
package release

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-go/interlock/core"
)

func work(context.Context) error { return nil }

type job struct {
	locker *core.Locker
	lease  *core.Lease
}

// Fault 7: no release on the path of an error.
func (j *job) path(ctx context.Context) error {
	lease, err := j.locker.Lock(ctx, "nightly") // want `release: lease is not released on all paths, .*; defer lease.Release\(ctx\)`
	if err != nil {
		return err
	}
	if err := work(lease.Context()); err != nil {
		return err
	}
	return lease.Release(ctx)
}

// Fault 8: no release at all.
func (j *job) never(ctx context.Context) error {
	permit, err := j.locker.Permit(ctx, "partner", 2) // want `release: permit is not released on all paths`
	if err == nil {
		return work(permit.Context())
	}
	return err
}

// Fault 9: the lease is dropped.
func (j *job) dropped(ctx context.Context) error {
	if _, err := j.locker.TryLock(ctx, "nightly"); err != nil { // want `release: the lease is dropped`
		return err
	}
	return work(ctx)
}

func (j *job) statement(ctx context.Context) {
	j.locker.Lock(ctx, "nightly") // want `release: the lease is dropped`
}

func (j *job) loop(ctx context.Context, keys []string) error {
	for _, key := range keys {
		lease, err := j.locker.Lock(ctx, key) // want `release: lease is not released on all paths`
		if err != nil {
			return err
		}
		if work(lease.Context()) != nil {
			continue
		}
		_ = lease.Release(ctx)
	}
	return nil
}

// Fault 10: without the error nothing says that the lock was taken.
func (j *job) blind(ctx context.Context) error {
	lease, _ := j.locker.TryLock(ctx, "nightly") // want `release: the error of j.locker.TryLock says whether the lock was taken`
	defer lease.Release(ctx)
	return work(lease.Context())
}

func (j *job) deferred(ctx context.Context) error {
	lease, err := j.locker.LockAll(ctx, []string{"a", "b"})
	if err != nil {
		return err
	}
	defer func() { _ = lease.Release(ctx) }()
	return work(lease.Context())
}

func (j *job) explicit(ctx context.Context) error {
	lease, err := j.locker.TryLock(ctx, "nightly")
	switch {
	case errors.Is(err, core.ErrHeld):
		return nil
	case err != nil:
		return err
	}
	err = work(lease.Context())
	if err != nil {
		return errors.Join(err, lease.Release(ctx))
	}
	_ = lease.Release(ctx)
	return nil
}

func (j *job) returned(ctx context.Context) (*core.Lease, error) {
	lease, err := j.locker.Lock(ctx, "nightly")
	if err != nil {
		return nil, err
	}
	return lease, nil
}

func (j *job) stored(ctx context.Context) (err error) {
	if j.lease, err = j.locker.Lock(ctx, "nightly"); err != nil {
		return err
	}
	lease, err := j.locker.Lock(ctx, "weekly")
	if err == nil {
		j.lease = lease
	}
	return err
}

func (j *job) handedOver(ctx context.Context) (core.Ticket, error) {
	lease, err := j.locker.Lock(ctx, "nightly")
	if err != nil {
		return core.Ticket{}, err
	}
	return lease.HandOver(ctx, time.Minute)
}

func (j *job) ends(ctx context.Context) bool {
	_, err := j.locker.TryLock(ctx, "hint", core.TTL(time.Minute)) // it ends by itself
	return err == nil
}

func (j *job) custom(ctx context.Context, held func(error) bool) error {
	lease, err := j.locker.TryLock(ctx, "nightly")
	if held(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	return work(lease.Context())
}
