package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/examples/payments/paymentspb"
)

// frontends are the names of the front ends, in the order of their lines.
var frontends = []string{"http", "gin", "echo", "grpc"}

// client is the bank as a client sees it, through any front end.
type client interface {
	frontend() string
	put(ctx context.Context, id string, balance int64) reply
	get(ctx context.Context, id string) reply
	debit(ctx context.Context, id string, amount int64) reply
	transfer(ctx context.Context, from, to string, amount int64) reply
	report(ctx context.Context, first, second string) reply
	rate(ctx context.Context, id string) reply
	pay(ctx context.Context, p payment) reply
}

// payment is a payment that a client sends, once or several times. The client leaves
// out empty fields.
type payment struct {
	payer, key string
	account    string
	amount     int64
	behaviour  string
}

// reply is an answer of the bank, in any protocol.
type reply struct {
	reason  string // why it failed: from the problem, or from the ErrorInfo
	err     error  // the error with that reason, or in place of an answer
	silent  bool   // there was no answer
	account bank.Account
	to      bank.Account // of a transfer, whose debited account is account
	token   int64
	sum     int64  // of a report
	rating  string // of an account

	payment  string // its id
	amount   int64
	padding  int  // how much of it there was
	replayed bool // the answer came from the record
	cookies  int
}

// done says that the bank did it; failure, why not.
func (r reply) done() bool { return r.reason == "" && r.err == nil }

func (r reply) failure() error { return fmt.Errorf("%q: %w", r.reason, r.err) }

// dial makes a client of a front end. The three REST front ends have the same client.
func dial(frontend, addr string) (c client, hangUp func(), err error) {
	if frontend == "grpc" {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, nil, err
		}
		return rpcClient{paymentspb.NewPaymentsClient(conn)}, func() { _ = conn.Close() }, nil
	}
	// A client that sends many requests at once opens connections that it then does not
	// need, and keeps them as idle. It drops them before the server closes them: a
	// request that is sent while the server closes its connection gets no answer.
	transport := &http.Transport{MaxIdleConnsPerHost: clients, IdleConnTimeout: readHeaderTimeout / 4}
	return &restClient{frontend, "http://" + addr, http.Client{Transport: transport}}, transport.CloseIdleConnections, nil
}

// restClient is a client of any of the REST front ends.
type restClient struct {
	name   string
	base   string
	client http.Client
}

func (c *restClient) frontend() string { return c.name }

func (c *restClient) put(ctx context.Context, id string, balance int64) reply {
	return c.call(ctx, http.MethodPut, "/accounts/"+id+"?balance="+strconv.FormatInt(balance, 10))
}

func (c *restClient) get(ctx context.Context, id string) reply {
	return c.call(ctx, http.MethodGet, "/accounts/"+id)
}

func (c *restClient) debit(ctx context.Context, id string, amount int64) reply {
	return c.call(ctx, http.MethodPost, "/accounts/"+id+"/debit?amount="+strconv.FormatInt(amount, 10))
}

func (c *restClient) transfer(ctx context.Context, from, to string, amount int64) reply {
	return c.call(ctx, http.MethodPost, "/transfers/"+from+"/"+to+"?amount="+strconv.FormatInt(amount, 10))
}

func (c *restClient) report(ctx context.Context, first, second string) reply {
	return c.call(ctx, http.MethodGet, "/reports/"+first+"/"+second)
}

func (c *restClient) rate(ctx context.Context, id string) reply {
	return c.call(ctx, http.MethodGet, "/accounts/"+id+"/rating")
}

// unlocked debits, reports and asks the partner without the lock or the permit, for
// which only REST has routes.
type unlocked struct{ *restClient }

func (c unlocked) debit(ctx context.Context, id string, amount int64) reply {
	return c.call(ctx, http.MethodPost, "/accounts/"+id+"/debit-unsafe?amount="+strconv.FormatInt(amount, 10))
}

func (c unlocked) report(ctx context.Context, first, second string) reply {
	return c.call(ctx, http.MethodGet, "/reports-unsafe/"+first+"/"+second)
}

func (c unlocked) rate(ctx context.Context, id string) reply {
	return c.call(ctx, http.MethodGet, "/accounts/"+id+"/rating-unsafe")
}

func (c *restClient) pay(ctx context.Context, p payment) reply {
	body := fmt.Sprintf(`{"account":%q,"amount":%d}`, p.account, p.amount)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/payments", strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	// net/http by itself repeats a request with such a key if a reused connection
	// breaks. The demonstration must count every request that it sends.
	req.GetBody = nil
	for name, value := range p.headers() {
		req.Header.Set(name, value)
	}
	return c.send(req)
}

// headers returns the headers of a payment, or its metadata.
func (p payment) headers() map[string]string {
	h := make(map[string]string)
	if p.payer != "" {
		h["authorization"] = "Bearer " + p.payer
	}
	if p.key != "" {
		h["idempotency-key"] = p.key
	}
	if p.behaviour != "" {
		h["bank-behaviour"] = p.behaviour
	}
	return h
}

// call sends a request without a body.
func (c *restClient) call(ctx context.Context, method, path string) reply {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, http.NoBody)
	if err != nil {
		return reply{err: err}
	}
	return c.send(req)
}

// send sends a request and parses the answer.
func (c *restClient) send(req *http.Request) reply {
	resp, err := c.client.Do(req)
	if err != nil {
		return reply{err: err, silent: true}
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return reply{err: err, silent: true}
	}
	r := reply{replayed: resp.Header.Get(idempotency.ReplayedHeader) == "true", cookies: len(resp.Cookies())}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated {
		var p problem
		if err := json.Unmarshal(body, &p); err != nil {
			return reply{err: fmt.Errorf("%s: %w", resp.Status, err)}
		}
		// The lock's problems are urn:interlock:problem:<reason>.
		r.reason, r.err = p.Type[strings.LastIndex(p.Type, ":")+1:], errors.New(resp.Status)
		return r
	}
	var ok struct {
		bank.Account              // of all but a transfer
		From         bank.Account `json:"from"`
		To           bank.Account `json:"to"`
		Token        int64        `json:"token"`
		Sum          int64        `json:"sum"`
		Rating       string       `json:"rating"`
		PaymentID    string       `json:"payment_id"`
		Amount       int64        `json:"amount"`
		Padding      string       `json:"padding"`
	}
	if err := json.Unmarshal(body, &ok); err != nil {
		return reply{err: err}
	}
	// The two shapes have no field in common but the token.
	if ok.From != (bank.Account{}) {
		ok.Account = ok.From
	}
	r.account, r.to, r.token = ok.Account, ok.To, ok.Token
	r.sum, r.rating = ok.Sum, ok.Rating
	r.payment, r.amount, r.padding = ok.PaymentID, ok.Amount, len(ok.Padding)
	return r
}

// rpcClient is a client of the gRPC front end. It does not retry by itself
// (grpclock.UnaryClientRetry), so that the demonstration sees each refusal.
type rpcClient struct{ paymentspb.PaymentsClient }

func (c rpcClient) frontend() string { return "grpc" }

func (c rpcClient) put(ctx context.Context, id string, balance int64) reply {
	r, err := c.PutAccount(ctx, &paymentspb.PutAccountRequest{Account: id, Balance: balance})
	return rpcReply(err, r, nil, r.GetToken())
}

func (c rpcClient) get(ctx context.Context, id string) reply {
	r, err := c.GetAccount(ctx, &paymentspb.GetAccountRequest{Account: id})
	return rpcReply(err, r, nil, 0)
}

func (c rpcClient) debit(ctx context.Context, id string, amount int64) reply {
	r, err := c.Debit(ctx, &paymentspb.DebitRequest{Account: id, Amount: amount})
	return rpcReply(err, r, nil, r.GetToken())
}

func (c rpcClient) transfer(ctx context.Context, from, to string, amount int64) reply {
	r, err := c.Transfer(ctx, &paymentspb.TransferRequest{From: from, To: to, Amount: amount})
	return rpcReply(err, r.GetFrom(), r.GetTo(), r.GetToken())
}

func (c rpcClient) report(ctx context.Context, first, second string) reply {
	m, err := c.Report(ctx, &paymentspb.ReportRequest{First: first, Second: second})
	r := rpcReply(err, (*paymentspb.Account)(nil), nil, 0)
	r.sum = m.GetSum()
	return r
}

func (c rpcClient) rate(ctx context.Context, id string) reply {
	m, err := c.Rate(ctx, &paymentspb.RateRequest{Account: id})
	r := rpcReply(err, &paymentspb.Account{Account: m.GetAccount()}, nil, 0)
	r.rating = m.GetRating()
	return r
}

func (c rpcClient) pay(ctx context.Context, p payment) reply {
	var header metadata.MD
	ctx = metadata.NewOutgoingContext(ctx, metadata.New(p.headers()))
	m, err := c.Pay(ctx, &paymentspb.PayRequest{Account: p.account, Amount: p.amount}, grpc.Header(&header))
	r := rpcReply(err, m, nil, 0)
	r.payment, r.amount, r.padding = m.GetPaymentId(), m.GetAmount(), len(m.GetPadding())
	r.replayed, r.cookies = len(header.Get(idempotency.ReplayedHeader)) > 0, len(header.Get("set-cookie"))
	return r
}

// accountMessage is what the messages with an account have in common. Their
// getters work on nil as well.
type accountMessage interface {
	GetAccount() string
	GetBalance() int64
}

// rpcReply parses an answer, or the status in its place.
func rpcReply(err error, account accountMessage, to *paymentspb.Account, token int64) reply {
	if err != nil {
		r := reply{err: err}
		for _, detail := range status.Convert(err).Details() {
			if info, ok := detail.(*errdetails.ErrorInfo); ok {
				r.reason = info.GetReason()
			}
		}
		// The bank's own refusals have a reason.
		r.silent = r.reason == "" && status.Code(err) == codes.Unavailable
		return r
	}
	return reply{
		account: bank.Account{ID: account.GetAccount(), Balance: account.GetBalance()},
		to:      bank.Account{ID: to.GetAccount(), Balance: to.GetBalance()},
		token:   token,
	}
}
