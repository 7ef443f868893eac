package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/examples/payments/bank"
)

// A payment is the bank's idempotent operation. A client that does not know the outcome
// of a payment sends it again with the same Idempotency-Key, and gets the answer of the
// first request. http.go, gin.go, echo.go and grpc.go put admission in front of the
// idempotency middleware, which takes the account's lock itself.

// order is an admitted payment. The request's context carries it to the scope, the lock
// and the handler.
type order struct {
	payer     string // the bearer token: the owner of the idempotency key
	account   string
	amount    int64
	behaviour behaviour
}

type orderKey struct{}

func (o *order) in(ctx context.Context) context.Context { return context.WithValue(ctx, orderKey{}, o) }

// ordered returns the order of a request, or an empty order. The scope, the lock and
// the handler all refuse an empty order.
func ordered(ctx context.Context) *order {
	if o, ok := ctx.Value(orderKey{}).(*order); ok {
		return o
	}
	return &order{}
}

// payer is the scope of a payment's key, so that the equal keys of two clients are
// independent.
func payer(ctx context.Context, _ core.Request) (string, error) { return ordered(ctx).payer, nil }

// orderedAccount is {ctx.account} in a lock: the path of a payment does not name
// its account.
func orderedAccount(ctx context.Context, _ core.Request) (string, error) {
	return ordered(ctx).account, nil
}

var (
	errUnauthenticated = errors.New("no bearer token")
	errTooLarge        = errors.New("body too large")
)

// authenticate returns the client's name. A real bank would look up the token; this one
// accepts every token.
func authenticate(authorization []string) (string, error) {
	if len(authorization) == 1 {
		scheme, token, _ := strings.Cut(strings.Trim(authorization[0], " \t"), " ")
		if token = strings.TrimLeft(token, " "); strings.EqualFold(scheme, "Bearer") && token != "" {
			return token, nil
		}
	}
	return "", errUnauthenticated
}

// admit refuses an invalid payment before the engine sees its key, so that the client
// can correct the request and send it again with the same key.
func (s *service) admit(o *order, authorization, words []string) (err error) {
	if o.payer, err = authenticate(authorization); err != nil {
		return err
	}
	if s.faults {
		o.behaviour, err = parseBehaviour(words)
	}
	return cmp.Or(err, bank.CheckID(o.account), bank.CheckAmount(o.amount))
}

// maxBody is more than any payment takes.
const maxBody = 1 << 20

// restAdmit is admit for all REST front ends. It returns the request with its
// order in the context, and its body still to be read: it is part of what makes
// two requests the same.
func (s *service) restAdmit(r *http.Request) (*http.Request, error) {
	// Authentication comes first: the body of an unknown client is not read.
	if _, err := authenticate(r.Header.Values("Authorization")); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("%w: the body could not be read", bank.ErrInvalid)
	}
	var wanted struct {
		Account string `json:"account"`
		Amount  int64  `json:"amount"`
	}
	if len(body) > maxBody {
		return nil, errTooLarge
	}
	if err := json.Unmarshal(body, &wanted); err != nil {
		return nil, fmt.Errorf("%w: the body is not a JSON object with an account and an amount in range", bank.ErrInvalid)
	}
	o := &order{account: wanted.Account, amount: wanted.Amount}
	if err := s.admit(o, r.Header.Values("Authorization"), r.Header.Values(behaviourHeader)); err != nil {
		return nil, err
	}
	admitted := r.WithContext(o.in(r.Context()))
	admitted.Body = io.NopCloser(bytes.NewReader(body)) // the server closes its own
	return admitted, nil
}

// receipt is the answer to a payment.
type receipt struct {
	bank.Payment
	Padding string `json:"padding,omitempty"`
}

// restPay runs behind the idempotency and under the account's lock.
func (s *service) restPay(in input) (any, error) {
	if ordered(in.Context()).behaviour.cookie {
		in.answer.Add("Set-Cookie", "payment=made; HttpOnly")
		in.answer.Add("Connection", "X-Bank-Hop")
		in.answer.Set("X-Bank-Hop", "1")
	}
	return s.pay(in.Context())
}

// pay carries out an order. The idempotency engine runs it once for each key, as far as
// it can know. The derived key covers the rest: by it the bank recognizes a payment
// that it has made.
func (s *service) pay(ctx context.Context) (receipt, error) {
	o := ordered(ctx)
	b := o.behaviour
	h, err := held(ctx, o.account)
	if err != nil {
		return receipt{}, err
	}
	if err := bank.Work(b.delay)(ctx); err != nil {
		return receipt{}, err
	}
	if b.fails() && !b.effect {
		return receipt{}, b.fail()
	}
	made, err := s.bank.Pay(ctx, bank.Order{
		Account: h, Amount: o.amount,
		Reference: idempotency.DownstreamKey(ctx), Remember: s.retention,
	}, s.begin)
	if err != nil {
		return receipt{}, err
	}
	if b.fails() {
		return receipt{}, b.fail()
	}
	return receipt{made, strings.Repeat("x", b.large)}, nil
}

// mark notes in the record that the payment is about to be made. After it no process
// runs the payment again, even if this process dies.
func mark(ctx context.Context) error {
	err := idempotency.MarkEffect(ctx)
	switch { // nothing has changed, and the client may be told so
	case errors.Is(err, core.ErrUnavailable): // the ledger is in the same Redis
		return fmt.Errorf("%w: %w", bank.ErrUnavailable, err)
	case errors.Is(err, core.ErrLost): // noticed here first, before ctx has ended
		return fmt.Errorf("%w: %w", bank.ErrStaleToken, err)
	}
	return err
}
