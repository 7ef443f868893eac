package bank

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
)

// Memory has accounts in memory, for tests: banks of several processes share one.
type Memory struct {
	mu       sync.Mutex
	accounts map[string]*entry // with the last token
	payments map[string]Payment
}

// NewMemory returns accounts with balances.
func NewMemory(balances map[string]int64) *Memory {
	m := &Memory{accounts: map[string]*entry{}, payments: map[string]Payment{}}
	for id, balance := range balances {
		m.accounts[id] = &entry{Held: Held{ID: id}, balance: balance}
	}
	return m
}

// Balance returns a balance, and the number of payments that were made.
func (m *Memory) Balance(id string) (balance int64, payments int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.accounts[id].balance, len(m.payments)
}

// Bank returns a bank with these accounts. A request to the accounts is a function that the bank passes to
// call, with a name. If call returns an error, the bank does not know whether the function was called.
func (m *Memory) Bank(call func(ctx context.Context, name string, f func() error) error) *Bank {
	return &Bank{ledger: &memoryLedger{m, call}, work: Work(0)}
}

type memoryLedger struct {
	*Memory
	call func(ctx context.Context, name string, f func() error) error
}

// send sends a request. unknown is the error of a request of unknown outcome.
func (l *memoryLedger) send(ctx context.Context, name string, unknown error, f func() error) error {
	var own error
	err := l.call(ctx, name, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		own = f()
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", unknown, err)
	}
	return own
}

func (l *memoryLedger) read(ctx context.Context, id string) (e entry, err error) {
	err = l.send(ctx, "reading of a balance", ErrUnavailable, func() error {
		if l.accounts[id] == nil {
			return fmt.Errorf("%w: %s", ErrUnknownAccount, id)
		}
		e = *l.accounts[id]
		return nil
	})
	return e, err
}

func (l *memoryLedger) claim(ctx context.Context, entries []entry) error {
	return l.send(ctx, "claim of an account", ErrUnavailable, func() error {
		for i, e := range entries {
			switch a := l.accounts[e.ID]; {
			case a == nil:
				return fmt.Errorf("%w: %s", ErrUnknownAccount, e.ID)
			case a.Token > e.Token:
				return ErrStaleToken
			default:
				a.Token, entries[i].balance = e.Token, a.balance
			}
		}
		return nil
	})
}

func (l *memoryLedger) write(ctx context.Context, entries []entry) error {
	return l.send(ctx, "writing of balances", ErrOutcomeUnknown, func() error { return l.store(entries...) })
}

// store writes balances, all or none.
func (m *Memory) store(entries ...entry) error {
	for _, e := range entries {
		if m.accounts[e.ID] == nil || m.accounts[e.ID].Token != e.Token {
			return ErrStaleToken
		}
	}
	for _, e := range entries {
		m.accounts[e.ID].balance = e.balance
	}
	return nil
}

func (l *memoryLedger) put(ctx context.Context, e entry) error {
	return l.send(ctx, "writing of a balance", ErrOutcomeUnknown, func() error {
		l.accounts[e.ID] = &e
		return nil
	})
}

func (l *memoryLedger) forget(ctx context.Context, ids []string) error {
	return l.send(ctx, "removal of accounts", ErrOutcomeUnknown, func() error {
		for _, id := range ids {
			delete(l.accounts, id)
		}
		return nil
	})
}

func (l *memoryLedger) made(ctx context.Context, o Order) (made Payment, err error) {
	err = l.send(ctx, "look for the payment", ErrUnavailable, func() error {
		made = l.payments[o.Reference]
		return nil
	})
	return made, err
}

func (l *memoryLedger) pay(ctx context.Context, o Order, e entry) (made Payment, err error) {
	err = l.send(ctx, "payment", ErrOutcomeUnknown, func() error {
		if made = l.payments[o.Reference]; made.ID != "" {
			return nil
		}
		if err := l.store(e); err != nil {
			return err
		}
		made = Payment{ID: rand.Text(), Account: o.Account.ID, Amount: o.Amount, Balance: e.balance}
		l.payments[o.Reference] = made
		return nil
	})
	return made, err
}
