package bank

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/fencing"
)

// payTimeout bounds the script that pays. It only matters when Redis does not
// answer: the client's own timeouts come first.
const payTimeout = 10 * time.Second

// pay.lua is the bank's own fenced write: it decides about more than the token in one
// step.
//
//go:embed pay.lua
var paySource string

var payScript = redis.NewScript(paySource)

// Order is a payment that the caller asks for.
type Order struct {
	Account Held
	Amount  int64
	// Reference identifies the payment: two orders with one reference are the same
	// payment, which is made once.
	Reference string
	// Remember is how long the bank remembers the reference. Below one millisecond
	// the bank does not remember it.
	Remember time.Duration
}

// Payment is a payment that was made.
type Payment struct {
	ID      string `json:"payment_id"`
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
	Balance int64  `json:"balance"` // that it left
}

// paymentKey is where the payment of a reference is kept: beside the accounts, so
// that one script writes both.
func paymentKey(reference string) string { return "payments:{ledger}:payment:" + reference }

// Pay takes an amount from an account, once for each reference. A second call with the
// reference returns the first payment. Pay calls begin just before the payment takes
// effect, when all checks have passed. If begin returns an error, there is no effect.
func (b *Bank) Pay(ctx context.Context, o Order, begin func(context.Context) error) (Payment, error) {
	if err := cmp.Or(CheckID(o.Account.ID), CheckAmount(o.Amount)); err != nil {
		return Payment{}, err
	}
	if o.Reference == "" || o.Remember < time.Millisecond {
		return Payment{}, errors.New("a payment without a reference that is remembered")
	}
	// A payment that was made may have left too little for another one.
	if made, err := b.ledger.made(ctx, o); made.ID != "" || err != nil {
		return made, err
	}
	entries := []entry{{id: o.Account.ID, token: o.Account.Token}}
	if err := b.ledger.claim(ctx, entries); err != nil {
		return Payment{}, err
	}
	if err := entries[0].take(o.Amount); err != nil {
		return Payment{}, err
	}
	if err := b.work(ctx); err != nil {
		return Payment{}, err
	}
	if err := begin(ctx); err != nil {
		return Payment{}, err
	}
	return b.ledger.pay(ctx, o, entries)
}

func (l *redisLedger) made(ctx context.Context, o Order) (Payment, error) {
	var made struct {
		ID      string `redis:"id"`
		Account string `redis:"account"` // its key
		Amount  int64  `redis:"amount"`
		Balance int64  `redis:"balance"`
	}
	if err := l.rdb.HMGet(ctx, paymentKey(o.Reference), "id", "account", "amount", "balance").Scan(&made); err != nil {
		return Payment{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if made.ID != "" && (made.Account != accountKey(o.Account.ID) || made.Amount != o.Amount) {
		return Payment{}, ErrReferenceReused
	}
	return Payment{made.ID, o.Account.ID, o.Amount, made.Balance}, nil
}

// pay writes a payment and what it leaves. Unlike the other writes it is sent
// again if its reply is lost: the reference tells whether it was executed.
func (l *redisLedger) pay(ctx context.Context, o Order, entries []entry) (Payment, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), payTimeout)
	defer cancel()

	reply, err := payScript.Run(ctx, l.rdb, []string{accountKey(o.Account.ID), paymentKey(o.Reference)},
		o.Account.Token, entries[0].balance, rand.Text(), o.Amount, o.Remember.Milliseconds()).StringSlice()
	if e := redis.Error(nil); errors.As(err, &e) {
		return Payment{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err != nil {
		return Payment{}, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	switch reply[0] {
	case "reused":
		return Payment{}, ErrReferenceReused
	case "stale":
		latest, _ := strconv.ParseInt(reply[1], 10, 64)
		return Payment{}, refused(&fencing.StaleError{Key: o.Account.ID, Token: o.Account.Token, Latest: latest})
	}
	balance, err := strconv.ParseInt(reply[2], 10, 64)
	if err != nil {
		return Payment{}, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return Payment{reply[1], o.Account.ID, o.Amount, balance}, nil
}
