package bank

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/fencing/redisfence"
)

// redisLedger keeps the accounts in Redis, each as a fenced value with its balance.
type redisLedger struct {
	rdb    redis.UniversalClient
	values *redisfence.Values
}

// accountKey names an account in Redis, and paymentKey the payment of a reference. The
// fixed hash tag puts all of them into one slot of a Cluster, so that one script can write
// both sides of a transfer. A bank too large for one shard would need a record of the
// transfer that survives between the two writes; the lock would stay the same.
//
// The prefix differs from the prefix of the locks, "interlock:".
func accountKey(id string) string { return "payments:{ledger}:account:" + id }

func paymentKey(reference string) string { return "payments:{ledger}:payment:" + reference }

// balanceField is the field of an account's balance. The field of its fence is
// redisfence.Field.
const balanceField = "balance"

func (e entry) hold() redisfence.Hold { return redisfence.Hold{Key: accountKey(e.ID), Token: e.Token} }

func (e entry) change() redisfence.Change {
	return redisfence.Change{Hold: e.hold(), Set: map[string]string{balanceField: strconv.FormatInt(e.balance, 10)}}
}

func (l *redisLedger) read(ctx context.Context, id string) (entry, error) {
	var value struct {
		Balance *int64 `redis:"balance"`
		Fence   int64  `redis:"fence"`
	}
	switch err := l.rdb.HMGet(ctx, accountKey(id), balanceField, redisfence.Field).Scan(&value); {
	case err != nil:
		return entry{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case value.Balance == nil:
		return entry{}, fmt.Errorf("%w: %s", ErrUnknownAccount, id)
	}
	return entry{Held: Held{id, value.Fence}, balance: *value.Balance}, nil
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
			return fmt.Errorf("%w: %s", ErrUnknownAccount, entries[i].ID)
		}
		if entries[i].balance, err = strconv.ParseInt(balance, 10, 64); err != nil {
			return fmt.Errorf("balance of %s: %w", entries[i].ID, err)
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

func (l *redisLedger) forget(ctx context.Context, ids []string) error {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = accountKey(id)
	}
	return l.rdb.Del(ctx, keys...).Err()
}

// payTimeout bounds the script that pays. It only matters when Redis does not
// answer: the client's own timeouts come first.
const payTimeout = 10 * time.Second

// pay.lua is the bank's own fenced write: it decides about more than the token in one
// step.
//
//go:embed pay.lua
var paySource string

var payScript = redis.NewScript(paySource)

func (l *redisLedger) made(ctx context.Context, o Order) (Payment, error) {
	return l.send(ctx, o, 0, "")
}

func (l *redisLedger) pay(ctx context.Context, o Order, e entry) (Payment, error) {
	return l.send(ctx, o, e.balance, rand.Text())
}

// send runs the script. Unlike the other writes it is sent again if its reply is lost: the
// reference tells whether it was executed.
func (l *redisLedger) send(ctx context.Context, o Order, balance int64, id string) (Payment, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), payTimeout)
	defer cancel()
	reply, err := payScript.Run(ctx, l.rdb, []string{accountKey(o.Account.ID), paymentKey(o.Reference)},
		o.Account.Token, balance, id, o.Amount, o.Remember.Milliseconds()).StringSlice()
	switch known := redis.Error(nil); {
	case errors.As(err, &known):
		return Payment{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case err != nil:
		return Payment{}, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	case reply[0] == "new":
		return Payment{}, nil
	case reply[0] == "reused":
		return Payment{}, ErrReferenceReused
	case reply[0] == "stale":
		return Payment{}, fmt.Errorf("%w: the last token of %s is %s", ErrStaleToken, o.Account.ID, reply[1])
	}
	balance, err = strconv.ParseInt(reply[2], 10, 64)
	return Payment{reply[1], o.Account.ID, o.Amount, balance}, err
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
