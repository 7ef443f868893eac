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

// partnerLimit is how many calls at once the contract with the partner allows. The proto
// has the same number.
const partnerLimit = 3

// partnerWork is how long the partner inside this process takes for a rating.
const partnerWork = 10 * time.Millisecond

// partnerPatience bounds a call: a partner that hangs must not keep a permit for ever.
const partnerPatience = 10 * time.Second

// partner is the API of another company, which rates accounts. It serves all calls, and
// counts those above the contract.
type partner struct {
	calls gauge
	work  func(context.Context) error
}

func newPartner(work func(context.Context) error) *partner {
	return &partner{calls: gauge{limit: partnerLimit}, work: work}
}

// ServeHTTP rates an account: GET /{account}.
func (p *partner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The answer leaves when ServeHTTP has returned: a caller that has it is no longer
	// counted.
	defer p.calls.enter()()
	if p.work(r.Context()) != nil {
		return // the caller has left
	}
	writeJSON(w, http.StatusOK, "application/json", rating{Account: r.URL.Path[1:], Rating: "AA"})
}

// listen serves the partner on the loopback interface, until it is closed.
func (p *partner) listen(ctx context.Context) (base string, end func() error, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", anyPort)
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: p, ReadHeaderTimeout: readHeaderTimeout}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() error {
		err := server.Close()
		if failed := <-ended; !errors.Is(failed, http.ErrServerClosed) {
			err = errors.Join(err, failed)
		}
		return err
	}, nil
}

// rating is the answer to a request for a rating, the partner's and the bank's.
type rating struct {
	Account string `json:"account"`
	Rating  string `json:"rating"`
}

// errPartner says that the partner gave no rating.
var errPartner = errors.New("the partner is not available")

// rate asks the partner. It needs a permit: the front ends call it inside a guard. The
// call ends with ctx, and ctx ends before the permit can go to another process.
func (s *service) rate(ctx context.Context, id string) (rating, error) {
	if err := bank.CheckID(id); err != nil {
		return rating{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.partner+"/"+url.PathEscape(id), http.NoBody)
	if err != nil {
		return rating{}, err
	}
	resp, err := s.partnerClient.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return rating{}, context.Cause(ctx)
		}
		return rating{}, fmt.Errorf("%w: %w", errPartner, err)
	}
	defer func() { _ = resp.Body.Close() }() // what was read is complete, or an error
	if resp.StatusCode != http.StatusOK {
		return rating{}, fmt.Errorf("%w: %s", errPartner, resp.Status)
	}
	var r rating
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		return rating{}, fmt.Errorf("%w: %w", errPartner, err)
	}
	return rating{id, r.Rating}, nil
}

// connectPartner makes the client of the partner. Without an address it starts one
// inside this process.
func (s *service) connectPartner(ctx context.Context, base string) error {
	if base == "" {
		var end func() error
		var err error
		if base, end, err = newPartner(bank.Work(partnerWork)).listen(ctx); err != nil {
			return fmt.Errorf("embedded partner: %w", err)
		}
		s.connection = append(s.connection, end)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: partnerLimit, IdleConnTimeout: readHeaderTimeout / 4}
	s.partner, s.partnerClient = base, &http.Client{Transport: transport, Timeout: partnerPatience}
	s.connection = append(s.connection, func() error { transport.CloseIdleConnections(); return nil })
	return nil
}
