//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/redisstore"
)

const (
	// amount is the amount of each debit.
	amount = 10
	// lease is the lease of all locks.
	lease = 500 * time.Millisecond
	// retry is how often redsync and redislock try to get a lock.
	retry = 5 * time.Millisecond
	// patience bounds a wait for a lock. It is long, for a busy machine.
	patience = 2 * time.Minute
)

// approach is a way to debit an account.
type approach struct {
	name    string
	onRedis bool // it takes a lock in Redis; otherwise no process can write beside a holder
	safe    bool // it promises that no update is lost
	open    func(rdb *redis.Client, db *sql.DB) (debit, error)
}

var approaches = []approach{
	{name: "SELECT ... FOR UPDATE", safe: true, open: openForUpdate},
	{name: "redsync", onRedis: true, open: openRedsync},
	{name: "redislock", onRedis: true, open: openRedislock},
	{name: "Interlock, token checked in the row", onRedis: true, safe: true, open: openInterlock},
}

// debit takes the amount from an account once. While it has the lock, or the row, it runs
// its reads and writes in p.hold. Between its read and its write it calls p.work.
type debit func(ctx context.Context, account string, p place) error

// place has the two calls that observe and stop a process.
type place struct {
	hold func(ctx context.Context, section func() error) error
	work func()
}

// openForUpdate locks the row in the transaction of the debit.
func openForUpdate(_ *redis.Client, db *sql.DB) (debit, error) {
	return func(ctx context.Context, account string, p place) error {
		return inTx(ctx, db, func(tx *sql.Tx) error {
			balance, err := read(ctx, tx, "SELECT balance FROM account WHERE id = $1 FOR UPDATE", account)
			if err != nil {
				return err
			}
			return p.hold(ctx, func() error {
				p.work()
				return write(ctx, tx, account, balance-amount)
			})
		})
	}, nil
}

// readAndWrite is a debit of a holder that trusts its lock.
func readAndWrite(ctx context.Context, db *sql.DB, account string, p place) error {
	return p.hold(ctx, func() error {
		balance, err := read(ctx, db, "SELECT balance FROM account WHERE id = $1", account)
		if err != nil {
			return err
		}
		p.work()
		return write(ctx, db, account, balance-amount)
	})
}

func openRedsync(rdb *redis.Client, db *sql.DB) (debit, error) {
	rs := redsync.New(goredis.NewPool(rdb))
	return func(ctx context.Context, account string, p place) error {
		mutex := rs.NewMutex("redsync/"+account, redsync.WithExpiry(lease), redsync.WithRetryDelay(retry), redsync.WithTries(int(patience/retry)))
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		err := readAndWrite(ctx, db, account, p)
		// If the lock was lost, the debit has been made nevertheless.
		_, _ = mutex.UnlockContext(ctx)
		return err
	}, nil
}

func openRedislock(rdb *redis.Client, db *sql.DB) (debit, error) {
	locks := redislock.New(rdb)
	return func(ctx context.Context, account string, p place) error {
		// Without a deadline redislock tries for the time of the lease.
		wait, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		lock, err := locks.Obtain(wait, "redislock/"+account, lease, &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)})
		if err != nil {
			return err
		}
		err = readAndWrite(ctx, db, account, p)
		// If the lock was lost, the debit has been made nevertheless.
		_ = lock.Release(ctx)
		return err
	}, nil
}

// openInterlock claims the row with the token before it reads, and again before it writes, as
// docs/fencing.md says for long work. The debit asks neither the context of its lease nor the
// store: the row alone refuses a holder that is too late.
func openInterlock(rdb *redis.Client, db *sql.DB) (debit, error) {
	// Redis may answer late on a busy machine, and the command measures no times.
	store, err := redisstore.New(rdb, redisstore.Logger(slog.New(slog.DiscardHandler)), redisstore.Timeout(patience/4))
	if err != nil {
		return nil, err
	}
	// A loss is logged by default. Here the table counts the refused writes.
	locker, err := core.New(store, core.Watchdog(lease), core.OnLost(func(core.Loss) {}))
	if err != nil {
		return nil, err
	}
	row := fencing.Column{Table: "account", ID: "id", Fence: "fence"}
	return func(ctx context.Context, account string, p place) error {
		held, err := locker.Lock(ctx, "account/"+account, core.Wait(patience))
		if err != nil {
			return err
		}
		// If the lock was lost, the claim has refused the write.
		defer func() { _ = held.Release(ctx) }()
		claimed := func(fn func(tx *sql.Tx) error) error {
			return inTx(ctx, db, func(tx *sql.Tx) error {
				if err := row.Claim(ctx, tx, account, held.Token()); err != nil {
					return err
				}
				return fn(tx)
			})
		}
		return p.hold(ctx, func() error {
			var balance int64
			err := claimed(func(tx *sql.Tx) (err error) {
				balance, err = read(ctx, tx, "SELECT balance FROM account WHERE id = $1", account)
				return err
			})
			if err != nil {
				return err
			}
			p.work()
			return claimed(func(tx *sql.Tx) error { return write(ctx, tx, account, balance-amount) })
		})
	}, nil
}

// session is a database or a transaction.
type session interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func read(ctx context.Context, s session, query, account string) (balance int64, err error) {
	err = s.QueryRowContext(ctx, query, account).Scan(&balance)
	return balance, err
}

func write(ctx context.Context, s session, account string, balance int64) error {
	_, err := s.ExecContext(ctx, "UPDATE account SET balance = $1 WHERE id = $2", balance, account)
	return err
}

// inTx runs a function in a transaction, and commits if it returns no error.
func inTx(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
