// Package bank is the business of the payments example: accounts that are
// debited and transferred between.
//
// A change reads a balance, works, and writes the new balance back. That is not
// atomic, on purpose: two changes of an account at the same time lose one of
// them, unless their callers exclude each other with a lock. What the bank asks
// of its callers is the lock's fencing token, and a token that is not the
// latest is refused, which makes a lock safe whose holder was paused for longer
// than its lease.
package bank

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/fencing/redisfence"
)

// What the bank accepts, in the smallest unit of its currency.
const (
	MaxAmount  = 1_000_000_000_000
	MaxBalance = 1_000_000_000_000_000

	maxIDLength = 64
)

// The errors, to be matched with errors.Is. Unless it says otherwise, an error
// means that nothing has changed.
var (
	// ErrInvalid says that the account, the amount or the balance is not one
	// that the bank accepts; its text may be shown to the client.
	ErrInvalid = errors.New("invalid request")
	// ErrUnknownAccount says that there is no such account.
	ErrUnknownAccount = errors.New("unknown account")
	// ErrInsufficientFunds says that the amount is above the balance.
	ErrInsufficientFunds = errors.New("insufficient funds")
	// ErrStaleToken says that somebody with a larger token has had the account
	// since: the caller has lost its lock.
	ErrStaleToken = errors.New("stale fencing token")
	// ErrReferenceReused says that another payment was made with the reference.
	ErrReferenceReused = errors.New("reference of another payment")
	// ErrUnavailable says that the ledger could not be reached.
	ErrUnavailable = errors.New("ledger unavailable")
	// ErrOutcomeUnknown says that the ledger did not answer a write, which may
	// have happened.
	ErrOutcomeUnknown = errors.New("no answer from the ledger, the change may have been made")
)

// Account is an account and its balance.
type Account struct {
	ID      string `json:"account"`
	Balance int64  `json:"balance"`
}

// Held is an account whose lock the caller holds, with its fencing token.
type Held struct {
	ID    string
	Token int64
}

// Bank is safe for concurrent use, and several processes may share one Redis.
type Bank struct {
	ledger ledger
	work   func(context.Context) error
}

// New returns a bank whose accounts are in rdb. work is what a change does
// between reading and writing; when it fails nothing is written.
func New(rdb redis.UniversalClient, work func(context.Context) error) *Bank {
	return &Bank{ledger: ledger{rdb, redisfence.New(rdb)}, work: work}
}

// Work takes the given time, or fails with the context's cause when that ends.
func Work(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		// Both may be due, in a process that was stopped for a while.
		return context.Cause(ctx)
	}
}

// Get returns an account as it is now, whoever may be about to change it.
func (b *Bank) Get(ctx context.Context, id string) (Account, error) {
	if err := CheckID(id); err != nil {
		return Account{}, err
	}
	balance, err := b.ledger.read(ctx, id)
	if err != nil {
		return Account{}, err
	}
	return Account{id, balance}, nil
}

// Put creates an account, or overwrites its balance.
func (b *Bank) Put(ctx context.Context, a Held, balance int64) (Account, error) {
	if err := cmp.Or(CheckID(a.ID), CheckBalance(balance)); err != nil {
		return Account{}, err
	}
	if err := b.ledger.put(ctx, entry{a.ID, a.Token, balance}); err != nil {
		return Account{}, err
	}
	return Account{a.ID, balance}, nil
}

// Debit takes an amount out of an account.
func (b *Bank) Debit(ctx context.Context, a Held, amount int64) (Account, error) {
	if err := cmp.Or(CheckID(a.ID), CheckAmount(amount)); err != nil {
		return Account{}, err
	}
	entries := []entry{{id: a.ID, token: a.Token}}
	err := b.change(ctx, entries, func() error {
		return entries[0].take(amount)
	})
	if err != nil {
		return Account{}, err
	}
	return entries[0].account(), nil
}

// Transfer moves an amount from one account to another. Both change, or
// neither.
func (b *Bank) Transfer(ctx context.Context, from, to Held, amount int64) (debited, credited Account, err error) {
	if err := cmp.Or(CheckPair(from.ID, to.ID), CheckAmount(amount)); err != nil {
		return Account{}, Account{}, err
	}
	entries := []entry{{id: from.ID, token: from.Token}, {id: to.ID, token: to.Token}}
	err = b.change(ctx, entries, func() error {
		if err := entries[0].take(amount); err != nil {
			return err
		}
		return entries[1].give(amount)
	})
	if err != nil {
		return Account{}, Account{}, err
	}
	return entries[0].account(), entries[1].account(), nil
}

// DebitUnsafe is Debit for callers without a lock: it has no token to show, and
// when two of them meet one debit is lost. It shows what the lock is for.
func (b *Bank) DebitUnsafe(ctx context.Context, id string, amount int64) (Account, error) {
	if err := cmp.Or(CheckID(id), CheckAmount(amount)); err != nil {
		return Account{}, err
	}
	balance, err := b.ledger.read(ctx, id)
	if err != nil {
		return Account{}, err
	}
	e := entry{id: id, balance: balance}
	if err := e.take(amount); err != nil {
		return Account{}, err
	}
	if err := b.work(ctx); err != nil {
		return Account{}, err
	}
	if err := b.ledger.overwrite(ctx, id, e.balance); err != nil {
		return Account{}, err
	}
	return e.account(), nil
}

// Forget removes accounts.
func (b *Bank) Forget(ctx context.Context, ids ...string) error {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = accountKey(id)
	}
	return b.ledger.rdb.Del(ctx, keys...).Err()
}

// change reads the entries, computes their new balances, works, and writes.
func (b *Bank) change(ctx context.Context, entries []entry, compute func() error) error {
	if err := b.ledger.claim(ctx, entries); err != nil {
		return err
	}
	if err := compute(); err != nil {
		return err
	}
	if err := b.work(ctx); err != nil {
		return err
	}
	return b.ledger.write(ctx, entries)
}

func (e *entry) account() Account { return Account{e.id, e.balance} }

func (e *entry) take(amount int64) error {
	if amount > e.balance {
		return fmt.Errorf("%w: %s", ErrInsufficientFunds, e.id)
	}
	e.balance -= amount
	return nil
}

func (e *entry) give(amount int64) error {
	if e.balance+amount > MaxBalance {
		return fmt.Errorf("%w: the balance of %s would exceed %d", ErrInvalid, e.id, int64(MaxBalance))
	}
	e.balance += amount
	return nil
}

// CheckID reports whether an account may have this name: 1 to 64 characters of
// A-Z, a-z, 0-9, dot, underscore and hyphen.
func CheckID(id string) error {
	if id == "" || len(id) > maxIDLength {
		return fmt.Errorf("%w: an account has 1 to %d characters", ErrInvalid, maxIDLength)
	}
	for _, c := range []byte(id) {
		switch {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fmt.Errorf("%w: an account consists of A-Z, a-z, 0-9, '.', '_' and '-'", ErrInvalid)
		}
	}
	return nil
}

// CheckPair is CheckID for the two sides of a transfer, which must differ.
func CheckPair(from, to string) error {
	if err := cmp.Or(CheckID(from), CheckID(to)); err != nil {
		return err
	}
	if from == to {
		return fmt.Errorf("%w: the accounts of a transfer must differ", ErrInvalid)
	}
	return nil
}

// CheckAmount reports whether so much can be moved at once.
func CheckAmount(amount int64) error {
	if amount < 1 || amount > MaxAmount {
		return fmt.Errorf("%w: an amount is between 1 and %d", ErrInvalid, int64(MaxAmount))
	}
	return nil
}

// CheckBalance reports whether an account can have so much.
func CheckBalance(balance int64) error {
	if balance < 0 || balance > MaxBalance {
		return fmt.Errorf("%w: a balance is between 0 and %d", ErrInvalid, int64(MaxBalance))
	}
	return nil
}
