package main

import (
	"context"
	_ "embed"
	"errors"
	"net"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/examples/across/ledgerpb"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/pgxstore"
)

//go:embed schema.sql
var schema string

// serveLedger serves the ledger until ctx ends.
func (s *service) serveLedger(ctx context.Context) error {
	db := pgxstore.DB(s.pool)
	defer func() { _ = db.Close() }()
	// The rule takes no lock: a call would wait for its own caller. It claims the account for the
	// token of the caller's lock, and refuses the smaller token of a former holder.
	fenced := core.Fenced("account/{from}", fencing.Table{}.Fence(db))
	once := s.bookings.With(idempotency.Under(fenced))
	protection := grpclock.Protect(nil, grpclock.Methods{
		ledgerpb.Ledger_Debit_FullMethodName:  once,
		ledgerpb.Ledger_Credit_FullMethodName: once,
	})
	server := grpc.NewServer(grpc.UnaryInterceptor(protection.Unary()))
	ledgerpb.RegisterLedgerServer(server, ledger{})
	if err := protection.Validate(server); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", *ledgerAddr)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, server.GracefulStop)
	return server.Serve(listener)
}

// ledger books payments. The engine commits the rows of a call together with its reply.
type ledger struct {
	ledgerpb.UnimplementedLedgerServer
}

func (ledger) Debit(ctx context.Context, p *ledgerpb.Payment) (*ledgerpb.Booked, error) {
	return book(ctx, p, p.GetFrom(), -p.GetAmount(),
		"UPDATE account SET balance = balance + $2 WHERE id = $1 AND balance + $2 >= 0 RETURNING balance")
}

func (ledger) Credit(ctx context.Context, p *ledgerpb.Payment) (*ledgerpb.Booked, error) {
	return book(ctx, p, p.GetTo(), p.GetAmount(),
		"INSERT INTO account AS a VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET balance = a.balance + $2 RETURNING balance")
}

// book changes an account, and notes why. No constraint keeps it from booking a payment twice:
// the record of the call does.
func book(ctx context.Context, p *ledgerpb.Payment, account string, amount int64, change string) (*ledgerpb.Booked, error) {
	tx, err := pgxstore.Tx(ctx) // the transaction of this call; it claims the account again
	if err != nil {
		return nil, err
	}
	var balance int64
	err = tx.QueryRow(ctx, change, account, amount).Scan(&balance)
	if errors.Is(err, pgx.ErrNoRows) {
		return &ledgerpb.Booked{Declined: true}, nil // an answer like any other: a retry gets it again
	}
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, "INSERT INTO booking (payment, account, amount) VALUES ($1, $2, $3)", p.GetId(), account, amount)
	at("booked")
	return &ledgerpb.Booked{}, err
}
