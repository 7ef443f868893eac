// Package services has the shapes of code under locks in public services, on Interlock. All of it is
// good: nothing is reported.
package services

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core"
)

type repository interface {
	Find(ctx context.Context, id string) (string, error)
	Update(ctx context.Context, id, value string) error
	Atomic(ctx context.Context, fn func(r repository) error) error
}

type producer interface {
	Send(ctx context.Context, event any) error
}

// tokens refreshes the tokens of users, one refresh at a time for each user.
type tokens struct {
	locker *core.Locker
	repo   repository
	log    *slog.Logger
}

func (t *tokens) refresh(ctx context.Context, user string) (string, error) {
	lease, err := t.locker.Lock(ctx, "tokens-users-"+user)
	if err != nil {
		return "", err
	}
	defer lease.Release(ctx)
	token, err := t.repo.Find(lease.Context(), user)
	if err != nil {
		t.log.ErrorContext(ctx, "no token", "user", user)
		return "", err
	}
	if err := t.repo.Update(lease.Context(), user, token); err != nil {
		return "", err
	}
	return token, nil
}

// rooms opens a room once.
type rooms struct {
	locker  *core.Locker
	repo    repository
	servers producer
}

func key(room int64) string { return fmt.Sprintf("room/open/%d", room) }

func (r *rooms) open(ctx context.Context, room int64) (name string, err error) {
	err = r.locker.Do(ctx, key(room), func(ctx context.Context) error {
		name, err = r.repo.Find(ctx, fmt.Sprint(room))
		if err == nil {
			return nil
		}
		if err := r.servers.Send(ctx, room); err != nil {
			return fmt.Errorf("opening: %w", err)
		}
		return r.repo.Update(ctx, fmt.Sprint(room), name)
	}, core.Wait(5*time.Second), core.MaxHold(10*time.Second))
	return name, err
}

// orders has its locks behind an interface.
type orders struct {
	locks locks
	repo  repository
	sent  producer
}

type locks struct{ locker *core.Locker }

func (l locks) get(ctx context.Context, request string, customer int64) (*core.Lease, error) {
	key, err := core.Key("order", request, fmt.Sprint(customer))
	if err != nil {
		return nil, err
	}
	return l.locker.Lock(ctx, key, core.Wait(time.Second))
}

func (o *orders) pay(ctx context.Context, request string, customer int64) error {
	lease, err := o.locks.get(ctx, request, customer)
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	ctx = lease.Context()
	return o.repo.Atomic(ctx, func(r repository) error {
		order, err := r.Find(ctx, request)
		if err != nil {
			return err
		}
		if err := r.Update(ctx, request, "paid"); err != nil {
			return err
		}
		return o.sent.Send(ctx, order)
	})
}

// elector keeps a lease, and gives it up in another method.
type elector struct {
	locker *core.Locker
	mu     sync.Mutex
	lease  *core.Lease
	leads  atomic.Bool
	stop   chan struct{}
}

func (e *elector) campaign(ctx context.Context) {
	defer e.resign()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.stop:
			return
		case <-ticker.C:
			if !e.leads.Load() {
				e.try(ctx)
			}
		}
	}
}

func (e *elector) try(ctx context.Context) {
	lease, err := e.locker.TryLock(ctx, "leader")
	if err != nil {
		e.leads.Store(false)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lease = lease
	e.leads.Store(true)
	context.AfterFunc(lease.Context(), func() { e.leads.Store(false) })
}

func (e *elector) resign() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lease != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = e.lease.Release(ctx)
		e.lease = nil
	}
}

// failover keeps the lease in a variable of its loop.
func (e *elector) failover(ctx context.Context, active func() bool) error {
	var lease *core.Lease
	acquire := time.NewTicker(time.Second)
	for {
		select {
		case <-ctx.Done():
			if active() {
				_ = lease.Release(context.WithoutCancel(ctx))
			}
			return ctx.Err()
		case <-acquire.C:
			if active() {
				if err := lease.Err(); err != nil {
					e.leads.Store(false)
				}
				continue
			}
			var err error
			lease, err = e.locker.TryLock(ctx, "failover")
			if err != nil {
				continue
			}
			e.leads.Store(true)
		}
	}
}

// game releases by hand, with the error of the work kept.
func game(ctx context.Context, locker *core.Locker, repo repository, user string, update func(string) string) error {
	lease, err := locker.Lock(ctx, "game/"+user)
	if err != nil {
		return fmt.Errorf("no lock: %w", err)
	}
	state, err := repo.Find(lease.Context(), user)
	if err == nil {
		err = repo.Update(lease.Context(), user, update(state))
	}
	if lost := lease.Release(ctx); lost != nil {
		return fmt.Errorf("lost: %w", lost)
	}
	return err
}

// renewals takes a lock for each subscription, and skips those of other processes.
func renewals(ctx context.Context, locker *core.Locker, users []int64, renew func(context.Context, int64) error) (all error) {
	for _, user := range users {
		lease, err := locker.TryLock(ctx, fmt.Sprintf("auto-renew/%d", user))
		if errors.Is(err, core.ErrHeld) {
			slog.InfoContext(ctx, "elsewhere", "user", user)
			continue
		} else if err != nil {
			return err
		}
		func() {
			defer func(l *core.Lease) {
				if err := l.Release(ctx); err != nil {
					slog.WarnContext(ctx, "release", "err", err)
				}
			}(lease)
			all = errors.Join(all, renew(lease.Context(), user))
		}()
	}
	return all
}

// unlocker returns a function that releases once.
func unlocker(ctx context.Context, locker *core.Locker, key string) (func(), error) {
	lease, err := locker.Lock(ctx, "cache/"+key)
	if err != nil {
		return func() {}, err
	}
	var once sync.Once
	return func() { once.Do(func() { _ = lease.Release(context.Background()) }) }, nil
}

// optional goes on without its lock.
func optional(ctx context.Context, locker *core.Locker, db *sql.DB, early bool) error {
	lease, err := locker.TryLock(ctx, "report")
	if err == nil {
		slog.Info("alone")
	}
	_, failed := db.ExecContext(context.WithoutCancel(ctx), "REFRESH MATERIALIZED VIEW report")
	if err == nil {
		_ = lease.Release(ctx)
	}
	if failed != nil {
		return failed
	}
	again, err := locker.Lock(ctx, "report")
	if err != nil {
		return err
	}
	released := false
	if early {
		_ = again.Release(ctx)
		released = true
	}
	if !released {
		_ = again.Release(ctx)
	}
	other, err := locker.TryLock(ctx, "other")
	if other != nil {
		defer other.Release(ctx)
	}
	return err
}

// checked commits only if the lock is held, in a transaction that was begun under it.
func checked(ctx context.Context, locker *core.Locker, db *sql.DB) error {
	return locker.Do(ctx, "account/42", func(ctx context.Context) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance - 1"); err != nil {
			return err
		}
		return core.Commit(ctx, tx.Commit)
	})
}
