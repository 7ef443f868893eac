package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/examples/payments/paymentspb"
)

// A payment is the bank's idempotent operation. A client that does not know the outcome
// of a payment sends it again with the same Idempotency-Key, and gets the answer of the
// first request. The front ends put admission in front of the idempotency middleware,
// which takes the account's lock itself.

// order is an admitted payment. The request's context carries it to the scope, the lock
// and the handler.
type order struct {
	*paymentspb.PayRequest
	payer     string // the bearer token: the owner of the idempotency key
	behaviour behaviour
}

type orderKey struct{}

// ordered returns the order of a request, or an empty order. The scope, the lock and
// the handler all refuse an empty order.
func ordered(ctx context.Context) order {
	o, _ := ctx.Value(orderKey{}).(order)
	return o
}

// payer is the scope of a payment's key, so that the equal keys of two clients are
// independent.
func payer(ctx context.Context, _ core.Request) (string, error) { return ordered(ctx).payer, nil }

// orderedAccount is {ctx.account} in a lock: the path of a payment does not name
// its account.
func orderedAccount(ctx context.Context, _ core.Request) (string, error) {
	return ordered(ctx).GetAccount(), nil
}

var errUnauthenticated = errors.New("no bearer token")

// authenticate returns the client's name. A real bank would look up the token; this one
// accepts every token.
func authenticate(header func(name string) []string) (string, error) {
	if values := header("authorization"); len(values) == 1 {
		if token, ok := strings.CutPrefix(values[0], "Bearer "); ok && token != "" {
			return token, nil
		}
	}
	return "", errUnauthenticated
}

// admit refuses an invalid payment before the engine sees its key, so that the client
// can correct the request and send it again with the same key.
func (s *service) admit(ctx context.Context, r *paymentspb.PayRequest, header func(name string) []string) (context.Context, error) {
	o := order{PayRequest: r}
	var err error
	if o.payer, err = authenticate(header); err == nil && s.faults {
		o.behaviour, err = parseBehaviour(header(behaviourHeader))
	}
	if err == nil {
		err = check(r)
	}
	return context.WithValue(ctx, orderKey{}, o), err
}

// maxBody is more than any payment takes.
const maxBody = 64 << 10

// admitREST is admit for all REST front ends. It returns the request with its
// order in the context, and its body still to be read: it is part of what makes
// two requests the same.
func (s *service) admitREST(in input) (*http.Request, error) {
	// Authentication comes first: the body of an unknown client is not read.
	if _, err := authenticate(in.Header.Values); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(in.Body, maxBody+1))
	wanted := &paymentspb.PayRequest{}
	if err != nil || len(body) > maxBody || json.Unmarshal(body, wanted) != nil {
		return nil, fmt.Errorf("%w: the body is not a JSON object with an account and an amount in range", bank.ErrInvalid)
	}
	ctx, err := s.admit(in.Context(), wanted, in.Header.Values)
	if err != nil {
		return nil, err
	}
	admitted := in.WithContext(ctx)
	admitted.Body = io.NopCloser(bytes.NewReader(body)) // the server closes its own
	return admitted, nil
}

// Pay carries out an order. The idempotency engine runs it once for each key, as far as
// it can know. The derived key covers the rest: by it the bank recognizes a payment
// that it has made.
func (s *service) Pay(ctx context.Context, _ *paymentspb.PayRequest) (*paymentspb.Payment, error) {
	o := ordered(ctx)
	h, err := held(ctx, o.GetAccount())
	if err != nil {
		return nil, err
	}
	if err := bank.Work(o.behaviour.delay)(ctx); err != nil {
		return nil, err
	}
	failure := simulatedError(o.behaviour.status)
	if failure != 0 && !o.behaviour.effect {
		return nil, failure
	}
	made, err := s.bank.Pay(ctx, bank.Order{
		Account: h, Amount: o.GetAmount(),
		Reference: idempotency.DownstreamKey(ctx), Remember: s.retention,
	}, s.begin)
	if err == nil && failure != 0 {
		err = failure
	}
	return &paymentspb.Payment{PaymentId: made.ID, Account: made.Account, Amount: made.Amount, Balance: made.Balance}, err
}

// mark notes in the record that the payment is about to be made. After it no process
// runs the payment again, even if this process dies.
func mark(ctx context.Context) error {
	err := idempotency.MarkEffect(ctx)
	switch { // nothing has changed, and the answer may say so
	case errors.Is(err, core.ErrUnavailable): // the ledger is in the same Redis
		return fmt.Errorf("%w: %w", bank.ErrUnavailable, err)
	case errors.Is(err, core.ErrLost): // noticed here first, before ctx has ended
		return fmt.Errorf("%w: %w", bank.ErrStaleToken, err)
	}
	return err
}

// behaviourHeader controls the bank for one payment, if the program was started with
// -faults. Its value is a list of words, separated by commas. In gRPC it is metadata.
//
//	delay=800ms  wait before the payment is made
//	effect       make it even though the request is to fail
//	status=403   answer with this status; without effect, no payment is made
const behaviourHeader = "Bank-Behaviour"

// behaviour holds the parsed words. The zero value is a bank that works.
type behaviour struct {
	delay  time.Duration
	effect bool
	status int
}

func parseBehaviour(lines []string) (b behaviour, err error) {
	for word := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(word), "="); name {
		case "":
		case "delay":
			b.delay, err = time.ParseDuration(value)
		case "status":
			b.status, err = strconv.Atoi(value)
		case "effect":
			b.effect = true
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return b, fmt.Errorf("%w: %s has the word %q", bank.ErrInvalid, behaviourHeader, word)
		}
	}
	return b, nil
}

// simulatedError is a requested failure, by its HTTP status.
type simulatedError int

func (e simulatedError) Error() string { return "simulated: " + http.StatusText(int(e)) }

// refusal is the answer to an error of the bank, in every protocol.
type refusal struct {
	err    error
	status int
	code   codes.Code
	reason string // ends the type of a REST problem, and is the reason of gRPC's ErrorInfo
	text   string // the text for the client
}

// refusals has the errors of the bank, of admission and of the partner.
var refusals = []refusal{
	{err: errUnauthenticated, status: http.StatusUnauthorized, code: codes.Unauthenticated, reason: "unauthenticated"},
	{err: bank.ErrInvalid, status: http.StatusBadRequest, code: codes.InvalidArgument, reason: "invalid-request"},
	{err: bank.ErrUnknownAccount, status: http.StatusNotFound, code: codes.NotFound, reason: "unknown-account"},
	{err: bank.ErrInsufficientFunds, status: http.StatusForbidden, code: codes.FailedPrecondition, reason: "insufficient-funds"},
	{err: bank.ErrReferenceReused, status: http.StatusUnprocessableEntity, code: codes.FailedPrecondition, reason: "reference-reused"},
	{err: bank.ErrStaleToken, status: http.StatusConflict, code: codes.Aborted, reason: "stale-token"},
	{err: errPartner, status: http.StatusBadGateway, code: codes.Unavailable, reason: "partner-unavailable"},
	{err: bank.ErrUnavailable, status: http.StatusServiceUnavailable, code: codes.Unavailable, reason: "ledger-unavailable"},
	{err: bank.ErrOutcomeUnknown, status: http.StatusInternalServerError, code: codes.Internal, reason: "outcome-unknown"},
}

// refusalFor returns the answer to an error. Any error that is in no table is internal.
func refusalFor(err error) refusal {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			if r.text = r.err.Error(); r.status == http.StatusBadRequest {
				r.text = err.Error() // it names the accepted values
			}
			return r
		}
	}
	if e := simulatedError(0); errors.As(err, &e) {
		code := codes.FailedPrecondition
		if e >= http.StatusInternalServerError {
			code = codes.Internal
		}
		return refusal{status: int(e), code: code, reason: "simulated", text: e.Error()}
	}
	return refusal{status: http.StatusInternalServerError, code: codes.Internal, reason: "internal", text: "internal error"}
}
