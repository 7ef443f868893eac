// Package bank has the accounts of the payments example, with debits, transfers and
// payments.
//
// A change reads a balance, works, and writes the new balance. That is not atomic, on
// purpose: of two changes of an account at the same time one is lost, unless their
// callers exclude each other with a lock. The bank asks its callers for the lock's
// fencing token, and refuses a token that is not the latest. So the accounts are safe
// even if the holder of a lock was paused for longer than its lease.
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

// The limits of the bank, in the smallest unit of its currency.
const (
	MaxAmount  = 1_000_000_000_000
	MaxBalance = 1_000_000_000_000_000

	maxIDLength = 64
)

// The errors; match them with [errors.Is]. Unless its comment says otherwise, an error
// means that nothing has changed.
var (
	// ErrInvalid says that the bank does not accept the account, the amount or the
	// balance. A client may see its text.
	ErrInvalid = errors.New("invalid request")
	// ErrUnknownAccount says that there is no such account.
	ErrUnknownAccount = errors.New("unknown account")
	// ErrInsufficientFunds says that the amount is above the balance.
	ErrInsufficientFunds = errors.New("insufficient funds")
	// ErrStaleToken says that a holder with a larger token has claimed the account
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

// Bank keeps accounts, in Redis or in PostgreSQL. It is safe for concurrent use, and
// several processes may share one server.
type Bank struct {
	ledger ledger
	work   func(context.Context) error
}

// New returns a bank whose accounts are in rdb. A change calls work between reading and
// writing. If work returns an error, the change writes nothing.
func New(rdb redis.UniversalClient, work func(context.Context) error) *Bank {
	return &Bank{ledger: &redisLedger{rdb, redisfence.New(rdb)}, work: work}
}

// Work returns a function that takes the given time. If the context ends earlier, the
// function returns the context's cause.
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

// Get returns an account as it is now, even if a change is under way.
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

// Debit takes an amount from an account.
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

// Transfer moves an amount from one account to another. Either both change, or
// neither does.
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

// DebitUnsafe is [Bank.Debit] for callers without a lock, and takes no token. Of two such
// debits at the same time one is lost. It shows the purpose of the lock.
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

// Report reads two accounts, one after the other, and works in between. Of a transfer
// between them that is made meanwhile it sees one half, unless the caller shares the
// locks of both. It takes no tokens, because it writes nothing.
func (b *Bank) Report(ctx context.Context, first, second string) (one, other Account, err error) {
	if err := CheckPair(first, second); err != nil {
		return Account{}, Account{}, err
	}
	if one, err = b.Get(ctx, first); err != nil {
		return Account{}, Account{}, err
	}
	if err := b.work(ctx); err != nil {
		return Account{}, Account{}, err
	}
	if other, err = b.Get(ctx, second); err != nil {
		return Account{}, Account{}, err
	}
	return one, other, nil
}

// Forget removes accounts.
func (b *Bank) Forget(ctx context.Context, ids ...string) error {
	return b.ledger.forget(ctx, ids)
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

// CheckID returns [ErrInvalid] unless id is a valid name: 1 to 64 characters of A-Z,
// a-z, 0-9, dot, underscore and hyphen.
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

// CheckPair is [CheckID] for both accounts of a transfer or a report, which must differ.
func CheckPair(from, to string) error {
	if err := cmp.Or(CheckID(from), CheckID(to)); err != nil {
		return err
	}
	if from == to {
		return fmt.Errorf("%w: the two accounts must differ", ErrInvalid)
	}
	return nil
}

// CheckAmount returns [ErrInvalid] unless the bank moves this amount at once.
func CheckAmount(amount int64) error {
	if amount < 1 || amount > MaxAmount {
		return fmt.Errorf("%w: an amount is between 1 and %d", ErrInvalid, int64(MaxAmount))
	}
	return nil
}

// CheckBalance returns [ErrInvalid] unless an account can have this balance.
func CheckBalance(balance int64) error {
	if balance < 0 || balance > MaxBalance {
		return fmt.Errorf("%w: a balance is between 0 and %d", ErrInvalid, int64(MaxBalance))
	}
	return nil
}
