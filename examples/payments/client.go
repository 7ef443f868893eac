package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/examples/payments/paymentspb"
	"github.com/interlock-go/interlock/httplock"
)

// frontends are the names of the front ends, in the order of their lines.
var frontends = []string{"http", "gin", "echo", "grpc"}

// client is the bank as a client sees it. Through REST it is the same as through gRPC.
type client struct {
	frontend string
	paymentspb.PaymentsClient
	hangUp func() error
}

// payAgain has gRPC send a payment again while the bank is unavailable.
const payAgain = `{"methodConfig": [{
	"name": [{"service": "interlock.examples.payments.v1.Payments", "method": "Pay"}],
	"retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}
}]}`

// dial makes a client of a front end. An unsafe client debits, reports and asks the
// partner without the lock or the permit, for which only REST has routes. With tried a REST
// client sends a payment again until it is answered; other requests are not idempotent.
func dial(frontend, addr string, unsafe bool, tried func(httplock.Try)) (client, error) {
	if frontend == "grpc" {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(payAgain))
		return client{frontend, paymentspb.NewPaymentsClient(conn), conn.Close}, err
	}
	// Many requests at once open connections that stay as idle. The client drops them before
	// the server closes them: a request that is sent meanwhile gets no answer.
	transport := &http.Transport{MaxIdleConnsPerHost: clients, IdleConnTimeout: readHeaderTimeout / 4}
	c := restConn{base: "http://" + addr, client: http.Client{Transport: transport}}
	if unsafe {
		c.unsafe = "-unsafe"
	}
	if c.payments = c.client; tried != nil { // on a busy machine a key is in flight for seconds
		c.payments.Transport = &httplock.Transport{Base: transport, Tries: 30, OnTry: tried}
	}
	return client{frontend, paymentspb.NewPaymentsClient(&c), func() error { transport.CloseIdleConnections(); return nil }}, nil
}

// restConn makes HTTP requests of the calls of a gRPC client, with metadata as headers.
type restConn struct {
	base, unsafe     string
	client, payments http.Client
}

// Invoke implements grpc.ClientConnInterface.
func (c *restConn) Invoke(ctx context.Context, _ string, args, reply any, opts ...grpc.CallOption) error {
	method, path, body, through := http.MethodPost, "", []byte(nil), &c.client
	switch r := args.(type) {
	case *paymentspb.PutAccountRequest:
		method, path = http.MethodPut, fmt.Sprintf("/accounts/%s?balance=%d", r.GetAccount(), r.GetBalance())
	case *paymentspb.GetAccountRequest:
		method, path = http.MethodGet, "/accounts/"+r.GetAccount()
	case *paymentspb.DebitRequest:
		path = fmt.Sprintf("/accounts/%s/debit%s?amount=%d", r.GetAccount(), c.unsafe, r.GetAmount())
	case *paymentspb.TransferRequest:
		path = fmt.Sprintf("/transfers/%s/%s?amount=%d", r.GetFrom(), r.GetTo(), r.GetAmount())
	case *paymentspb.ReportRequest:
		method, path = http.MethodGet, fmt.Sprintf("/reports%s/%s/%s", c.unsafe, r.GetFirst(), r.GetSecond())
	case *paymentspb.RateRequest:
		method, path = http.MethodGet, fmt.Sprintf("/accounts/%s/rating%s", r.GetAccount(), c.unsafe)
	case *paymentspb.PayRequest:
		path, through, body = "/payments", &c.payments, fmt.Appendf(nil, `{"account":%q,"amount":%d}`, r.GetAccount(), r.GetAmount())
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	for name, values := range md {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	resp, err := through.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // the body is complete, or an error
	if resp.StatusCode >= http.StatusBadRequest {
		// The lock's problems are urn:interlock:problem:<reason>.
		var p problem
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
			return fmt.Errorf("%s: %w", resp.Status, err)
		}
		st, err := status.New(codes.Unknown, resp.Status).WithDetails(&errdetails.ErrorInfo{Reason: p.Type[strings.LastIndex(p.Type, ":")+1:]})
		return cmp.Or(err, st.Err())
	}
	for _, o := range opts {
		if header, ok := o.(grpc.HeaderCallOption); ok {
			*header.HeaderAddr = make(metadata.MD)
			for name, values := range resp.Header {
				header.HeaderAddr.Append(name, values...)
			}
		}
	}
	return json.NewDecoder(resp.Body).Decode(reply)
}

// NewStream implements grpc.ClientConnInterface.
func (c *restConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("the bank has no streams")
}

// reasonOf says why a request was refused: from the problem, or from the ErrorInfo.
func reasonOf(err error) string {
	if err == nil {
		return ""
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return "no answer"
}
