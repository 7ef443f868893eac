// Package bank holds the accounts and payments of the example services, in Redis. It
// does not use locks: it changes an account in two steps, and its callers must keep
// other changes of the account out between them.
package bank

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Bank keeps balances and payments.
type Bank struct {
	Redis *redis.Client
	Work  time.Duration // the time that each request works
}

// Debit takes 1 from an account and returns the balance. It reads, works, and writes:
// of two debits of one account at the same time, one is lost.
func (b Bank) Debit(ctx context.Context, account string) (balance int64, err error) {
	name := "balance:" + account
	balance, err = b.Redis.Get(ctx, name).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	if err := b.think(ctx); err != nil {
		return 0, err
	}
	return balance - 1, b.Redis.Set(ctx, name, balance-1, 0).Err()
}

// Pay makes a payment in the name of a user, and then writes the receipt. Two calls
// pay twice.
func (b Bank) Pay(ctx context.Context, user string) error {
	if err := b.Redis.Incr(ctx, "paid:"+user).Err(); err != nil {
		return err
	}
	return b.think(ctx)
}

func (b Bank) think(ctx context.Context) error {
	select {
	case <-time.After(b.Work):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
