package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/interlock-go/interlock/examples/payments/bank"
)

const (
	// partnerLimit is how many calls at once the contract with the partner allows. The
	// proto has the same number.
	partnerLimit = 3
	// partnerWork is how long the partner inside this process takes for a rating.
	partnerWork = 10 * time.Millisecond
	// partnerPatience bounds a call: a partner that hangs must not keep a permit for ever.
	partnerPatience = 10 * time.Second
)

// partner is the API of another company, which rates accounts. It serves all calls, and
// counts those above the contract.
type partner struct{ calls gauge }

// ServeHTTP rates an account: GET /{account}.
func (p *partner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The answer leaves when ServeHTTP has returned: a caller that has it is no longer
	// counted.
	defer p.calls.enter()()
	if bank.Work(partnerWork)(r.Context()) != nil {
		return // the caller has left
	}
	writeJSON(w, http.StatusOK, "application/json", map[string]string{"account": r.URL.Path[1:], "rating": "AA"})
}

// listen serves the partner on the loopback interface, until it is closed.
func (p *partner) listen(ctx context.Context) (base string, end func() error, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", anyPort)
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: p, ReadHeaderTimeout: readHeaderTimeout}
	go func() { _ = server.Serve(listener) }() // until it is closed
	return "http://" + listener.Addr().String(), server.Close, nil
}

// errPartner says that the partner gave no rating.
var errPartner = errors.New("the partner is not available")

// partnerClient asks the partner.
type partnerClient struct {
	base   string
	client http.Client
}

// connectPartner makes the client of the partner. Without an address it starts one
// inside this process.
func (s *service) connectPartner(ctx context.Context, base string) error {
	if base == "" {
		var end func() error
		var err error
		if base, end, err = new(partner).listen(ctx); err != nil {
			return fmt.Errorf("embedded partner: %w", err)
		}
		s.connection = append(s.connection, end)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: partnerLimit, IdleConnTimeout: readHeaderTimeout / 4}
	s.partner = &partnerClient{base, http.Client{Transport: transport, Timeout: partnerPatience}}
	s.connection = append(s.connection, func() error { transport.CloseIdleConnections(); return nil })
	return nil
}

// rate asks for a rating.
func (c *partnerClient) rate(ctx context.Context, id string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/"+url.PathEscape(id), http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", fmt.Errorf("%w: %w", errPartner, err)
	}
	defer func() { _ = resp.Body.Close() }() // the body is complete, or an error
	var answer struct{ Rating string }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Rating == "" {
		return "", fmt.Errorf("%w: %s, %w", errPartner, resp.Status, err)
	}
	return answer.Rating, nil
}
