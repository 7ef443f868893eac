package bank

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/fencing/redisfence"
)

// ledger keeps the accounts.
//
// It has no operation that changes a balance in place. It guarantees that a holder with
// an outdated token writes nothing. Therefore it claims the account together with the
// read. If only the write compared tokens, a paused holder could still write after its
// successor has read and before the successor writes, and the successor would overwrite
// that update.
type ledger interface {
	// read returns a balance and claims nothing.
	read(ctx context.Context, id string) (int64, error)
	// claim fills in the balances and claims the accounts, all or none.
	claim(ctx context.Context, entries []entry) error
	// write stores the balances of claimed accounts, all or none.
	write(ctx context.Context, entries []entry) error
	// put creates or overwrites an account.
	put(ctx context.Context, e entry) error
	// overwrite stores a balance without a token.
	overwrite(ctx context.Context, id string, balance int64) error
	// made looks for the payment of a reference.
	made(ctx context.Context, o Order) (Payment, error)
	// pay writes a payment, and the balance of the claimed account.
	pay(ctx context.Context, o Order, entries []entry) (Payment, error)
	// forget removes accounts.
	forget(ctx context.Context, ids []string) error
}

// redisLedger keeps the accounts in Redis, each as a fenced value with its balance.
type redisLedger struct {
	rdb    redis.UniversalClient
	values *redisfence.Values
}

// accountKey names an account in Redis. The fixed hash tag puts all accounts
// into one slot of a Cluster, so that one script can write both sides of a
// transfer. A bank too large for one shard would need a record of the transfer
// that survives between the two writes; the lock would stay the same.
//
// The prefix is not the locks', whose keys begin with "interlock:".
func accountKey(id string) string { return "payments:{ledger}:account:" + id }

// balanceField is the field of an account's balance; that of its fence is
// redisfence.Field.
const balanceField = "balance"

// entry is an account as a holder of its lock sees it.
type entry struct {
	id      string
	token   int64
	balance int64
}

func (e entry) hold() redisfence.Hold { return redisfence.Hold{Key: accountKey(e.id), Token: e.token} }

func (e entry) change() redisfence.Change {
	return redisfence.Change{Hold: e.hold(), Set: map[string]string{balanceField: strconv.FormatInt(e.balance, 10)}}
}

func (l *redisLedger) read(ctx context.Context, id string) (int64, error) {
	balance, err := l.rdb.HGet(ctx, accountKey(id), balanceField).Int64()
	switch {
	case errors.Is(err, redis.Nil):
		return 0, fmt.Errorf("%w: %s", ErrUnknownAccount, id)
	case err != nil:
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return balance, nil
}

func (l *redisLedger) claim(ctx context.Context, entries []entry) error {
	holds := make([]redisfence.Hold, len(entries))
	for i, e := range entries {
		holds[i] = e.hold()
	}
	values, err := l.values.Claim(ctx, holds...)
	if err != nil {
		return refused(err)
	}
	for i, value := range values {
		balance, ok := value[balanceField]
		if !ok {
			return fmt.Errorf("%w: %s", ErrUnknownAccount, entries[i].id)
		}
		if entries[i].balance, err = strconv.ParseInt(balance, 10, 64); err != nil {
			return fmt.Errorf("balance of %s: %w", entries[i].id, err)
		}
	}
	return nil
}

func (l *redisLedger) write(ctx context.Context, entries []entry) error {
	changes := make([]redisfence.Change, len(entries))
	for i, e := range entries {
		changes[i] = e.change()
	}
	return refused(l.values.Write(ctx, changes...))
}

func (l *redisLedger) put(ctx context.Context, e entry) error {
	return refused(l.values.Set(ctx, e.change()))
}

func (l *redisLedger) overwrite(ctx context.Context, id string, balance int64) error {
	if err := l.rdb.HSet(ctx, accountKey(id), balanceField, balance).Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return nil
}

func (l *redisLedger) forget(ctx context.Context, ids []string) error {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = accountKey(id)
	}
	return l.rdb.Del(ctx, keys...).Err()
}

// refused returns the bank's error for an error of a fenced value.
func refused(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fencing.ErrStale):
		return fmt.Errorf("%w: %w", ErrStaleToken, err)
	case errors.Is(err, redisfence.ErrOutcomeUnknown):
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
