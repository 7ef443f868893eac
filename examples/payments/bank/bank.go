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
	"regexp"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/fencing/redisfence"
)

// MaxAmount is the most that the bank moves at once, and that an account holds, in the
// smallest unit of its currency.
const MaxAmount = 1_000_000_000_000_000

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
	ID      string
	Balance int64
}

// Held is an account that the caller has locked, with its fencing token.
type Held struct {
	ID    string
	Token int64
}

// Order is a payment that the caller asks for.
type Order struct {
	Account Held
	Amount  int64
	// Reference identifies the payment in Redis: two orders with one reference are the
	// same payment, which is made once.
	Reference string
	// Remember is how long the bank remembers the reference, at least a millisecond.
	Remember time.Duration
}

// Payment is a payment that was made.
type Payment struct {
	ID, Account     string
	Amount, Balance int64 // Balance is the balance after it
}

// Bank keeps accounts, in Redis or in PostgreSQL. It is safe for concurrent use, and
// several processes may share one server.
type Bank struct {
	ledger ledger
	work   func(context.Context) error
}

// New returns a bank with its accounts in rdb. A change calls work between reading and
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

// ledger keeps the accounts.
//
// It has no operation that changes a balance in place. It guarantees that a holder with
// an outdated token writes nothing. Therefore it claims the account together with the
// read. If only the write compared tokens, a paused holder could still write after its
// successor has read and before the successor writes, and the successor would overwrite
// that update.
type ledger interface {
	// read returns an account with its last token, and claims nothing.
	read(ctx context.Context, id string) (entry, error)
	// claim fills in the balances and claims the accounts, all or none.
	claim(ctx context.Context, entries []entry) error
	// write stores the balances of claimed accounts, all or none.
	write(ctx context.Context, entries []entry) error
	// put creates or overwrites an account.
	put(ctx context.Context, e entry) error
	// made looks for the payment of a reference; without an ID there is none.
	made(ctx context.Context, o Order) (Payment, error)
	// pay stores a payment, and the balance of the claimed account.
	pay(ctx context.Context, o Order, e entry) (Payment, error)
	// forget removes accounts.
	forget(ctx context.Context, ids []string) error
}

// entry is an account as a holder of its lock sees it, and the amount due to it.
type entry struct {
	Held
	due     int64
	balance int64
}

func (e entry) account() Account { return Account{e.ID, e.balance} }

// add adds the amount due.
func (e *entry) add() error {
	switch sum := e.balance + e.due; {
	case sum < 0:
		return fmt.Errorf("%w: %s", ErrInsufficientFunds, e.ID)
	case sum > MaxAmount:
		return fmt.Errorf("%w: the balance of %s would exceed %d", ErrInvalid, e.ID, int64(MaxAmount))
	default:
		e.balance = sum
		return nil
	}
}

// Get returns an account as it is now, even if a change is under way.
func (b *Bank) Get(ctx context.Context, id string) (Account, error) {
	e, err := b.ledger.read(ctx, id)
	return e.account(), err
}

// Put creates an account, or overwrites its balance.
func (b *Bank) Put(ctx context.Context, a Held, balance int64) (Account, error) {
	if err := Check(balance, 0, a.ID); err != nil {
		return Account{}, err
	}
	e := entry{Held: a, balance: balance}
	return e.account(), b.ledger.put(ctx, e)
}

// Debit takes an amount from an account.
func (b *Bank) Debit(ctx context.Context, a Held, amount int64) (Account, error) {
	entries := []entry{{Held: a, due: -amount}}
	err := b.change(ctx, amount, entries, b.ledger.write)
	return entries[0].account(), err
}

// Transfer moves an amount from one account to another. Either both change, or
// neither does.
func (b *Bank) Transfer(ctx context.Context, from, to Held, amount int64) (debited, credited Account, err error) {
	entries := []entry{{Held: from, due: -amount}, {Held: to, due: amount}}
	err = b.change(ctx, amount, entries, b.ledger.write)
	return entries[0].account(), entries[1].account(), err
}

// Pay takes an amount from an account, in Redis once for each reference: a second call
// returns the first payment. Pay calls begin just before the payment takes effect, when
// all checks have passed. If begin returns an error, there is no effect.
func (b *Bank) Pay(ctx context.Context, o Order, begin func(context.Context) error) (made Payment, err error) {
	// A payment that was made may have left too little for another one.
	if made, err = b.ledger.made(ctx, o); made.ID != "" || err != nil {
		return made, err
	}
	err = b.change(ctx, o.Amount, []entry{{Held: o.Account, due: -o.Amount}}, func(ctx context.Context, entries []entry) error {
		if err := begin(ctx); err != nil {
			return err
		}
		var err error
		made, err = b.ledger.pay(ctx, o, entries[0])
		return err
	})
	return made, err
}

// change claims and reads the accounts, adds the amounts due, works, and writes.
func (b *Bank) change(ctx context.Context, amount int64, entries []entry, write func(context.Context, []entry) error) error {
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	if err := Check(amount, 1, ids...); err != nil {
		return err
	}
	if err := b.ledger.claim(ctx, entries); err != nil {
		return err
	}
	for i := range entries {
		if err := entries[i].add(); err != nil {
			return err
		}
	}
	if err := b.work(ctx); err != nil {
		return err
	}
	return write(ctx, entries)
}

// DebitUnsafe is [Bank.Debit] for callers without a lock: it takes the account's last token
// for its own. Of two such debits at the same time one is lost. It shows the purpose of the
// lock.
func (b *Bank) DebitUnsafe(ctx context.Context, id string, amount int64) (Account, error) {
	e, err := b.ledger.read(ctx, id)
	e.due = -amount
	if err := cmp.Or(Check(amount, 1, id), err, e.add()); err != nil {
		return Account{}, err
	}
	if err := b.work(ctx); err != nil {
		return Account{}, err
	}
	return e.account(), b.ledger.write(ctx, []entry{e})
}

// Report reads two accounts, one after the other, and works in between. Of a transfer
// between them that is made meanwhile it sees one half, unless the caller shares the
// locks of both. It takes no tokens, because it writes nothing.
func (b *Bank) Report(ctx context.Context, first, second string) (one, other Account, err error) {
	if one, err = b.Get(ctx, first); err != nil {
		return one, other, err
	}
	if err := b.work(ctx); err != nil {
		return one, other, err
	}
	other, err = b.Get(ctx, second)
	return one, other, err
}

// Forget removes accounts.
func (b *Bank) Forget(ctx context.Context, ids ...string) error { return b.ledger.forget(ctx, ids) }

var validID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Check returns [ErrInvalid] unless the amount is at least the least one and at most
// [MaxAmount], and the accounts have valid names that differ.
func Check(amount, least int64, ids ...string) error {
	if amount < least || amount > MaxAmount {
		return fmt.Errorf("%w: a number between %d and %d is accepted", ErrInvalid, least, int64(MaxAmount))
	}
	for i, id := range ids {
		switch {
		case !validID.MatchString(id):
			return fmt.Errorf("%w: an account has 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'", ErrInvalid)
		case slices.Contains(ids[:i], id):
			return fmt.Errorf("%w: the two accounts must differ", ErrInvalid)
		}
	}
	return nil
}
