package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/examples/payments/paymentspb"
)

// The operations are the same for all front ends: REST makes of a request the message that
// gRPC gets. Operations that change an account under a lock find its token in the context,
// and fail without it.

// check refuses a message that the bank would refuse in any case, before it waits for the
// lock.
func check(message any) error {
	switch r := message.(type) {
	case *paymentspb.PutAccountRequest:
		return bank.Check(r.GetBalance(), 0, r.GetAccount())
	case *paymentspb.DebitRequest:
		return bank.Check(r.GetAmount(), 1, r.GetAccount())
	case *paymentspb.PayRequest:
		return bank.Check(r.GetAmount(), 1, r.GetAccount())
	case *paymentspb.TransferRequest:
		return bank.Check(r.GetAmount(), 1, r.GetFrom(), r.GetTo())
	case *paymentspb.ReportRequest:
		return bank.Check(0, 0, r.GetFirst(), r.GetSecond())
	case interface{ GetAccount() string }:
		return bank.Check(0, 0, r.GetAccount())
	}
	return nil
}

// held returns the account with the fencing token of the context's lease.
func held(ctx context.Context, id string) (bank.Held, error) {
	key, err := core.Key("account", id)
	if lease := core.LeaseFromContext(ctx); lease != nil && err == nil {
		if token, ok := lease.TokenFor(key); ok {
			return bank.Held{ID: id, Token: token}, nil
		}
	}
	return bank.Held{}, errors.Join(fmt.Errorf("the route does not hold the lock of account %q", id), err)
}

func account(a bank.Account) *paymentspb.Account {
	return &paymentspb.Account{Account: a.ID, Balance: a.Balance}
}

// change makes a change of one account under its lock.
func (s *service) change(ctx context.Context, id string, n int64,
	do func(context.Context, bank.Held, int64) (bank.Account, error),
) (*paymentspb.ChangedAccount, error) {
	h, err := held(ctx, id)
	if err != nil {
		return nil, err
	}
	a, err := do(ctx, h, n)
	return &paymentspb.ChangedAccount{Account: a.ID, Balance: a.Balance, Token: h.Token}, err
}

func (s *service) PutAccount(ctx context.Context, r *paymentspb.PutAccountRequest) (*paymentspb.ChangedAccount, error) {
	return s.change(ctx, r.GetAccount(), r.GetBalance(), s.bank.Put)
}

func (s *service) Debit(ctx context.Context, r *paymentspb.DebitRequest) (*paymentspb.ChangedAccount, error) {
	return s.change(ctx, r.GetAccount(), r.GetAmount(), s.bank.Debit)
}

func (s *service) Transfer(ctx context.Context, r *paymentspb.TransferRequest) (*paymentspb.TransferResponse, error) {
	from, err := held(ctx, r.GetFrom())
	if err != nil {
		return nil, err
	}
	to, err := held(ctx, r.GetTo())
	if err != nil {
		return nil, err
	}
	debited, credited, err := s.bank.Transfer(ctx, from, to, r.GetAmount())
	return &paymentspb.TransferResponse{From: account(debited), To: account(credited), Token: from.Token}, err
}

func (s *service) GetAccount(ctx context.Context, r *paymentspb.GetAccountRequest) (*paymentspb.Account, error) {
	a, err := s.bank.Get(ctx, r.GetAccount())
	return account(a), err
}

// debitUnsafe has no method in the proto: a lock that belongs to the interface cannot be
// forgotten.
func (s *service) debitUnsafe(ctx context.Context, r *paymentspb.DebitRequest) (*paymentspb.Account, error) {
	a, err := s.bank.DebitUnsafe(ctx, r.GetAccount(), r.GetAmount())
	return account(a), err
}

// Report needs no token, because it writes nothing. The front ends call it under the
// shared locks of both accounts, and REST without them to show what happens then.
func (s *service) Report(ctx context.Context, r *paymentspb.ReportRequest) (*paymentspb.ReportResponse, error) {
	defer s.reporting.enter()()
	one, other, err := s.bank.Report(ctx, r.GetFirst(), r.GetSecond())
	return &paymentspb.ReportResponse{First: account(one), Second: account(other), Sum: one.Balance + other.Balance}, err
}

// Rate needs a permit: the front ends call it inside a guard. The call ends with ctx, and
// ctx ends before the permit can go to another process.
func (s *service) Rate(ctx context.Context, r *paymentspb.RateRequest) (*paymentspb.Rating, error) {
	rating, err := s.partner.rate(ctx, r.GetAccount())
	return &paymentspb.Rating{Account: r.GetAccount(), Rating: rating}, err
}
