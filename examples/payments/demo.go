package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	clients        = 200    // requests that are under way at once
	openingBalance = 10_000 // of each account
	// backwards is how many of the transfers go the other way. Not half of
	// them: balances that end where they began would show nothing.
	backwards = 80
	// demoTimeout ends a demonstration that hangs. No lock may do that.
	demoTimeout = 5 * time.Minute
)

// demonstration hammers the bank through its front end, as a client would.
type demonstration struct {
	base     string
	client   *http.Client
	commands *commandCounter
	waits    *waits

	alice, bob string
}

// demonstrate serves the bank on the loopback interface, shows on it what the
// lock does, and returns an error if it did not.
func demonstrate(ctx context.Context, cfg config, log *slog.Logger, stdout io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()

	d := &demonstration{commands: &commandCounter{}, waits: &waits{watcher: watcher{log}}}
	s, err := open(ctx, cfg, d.commands, d.waits, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(context.WithoutCancel(ctx))) }()
	fronts, err := s.listen(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drain(context.WithoutCancel(ctx), fronts)) }()
	start(fronts)

	// Accounts of this run alone: the Redis may be shared with a bank in use.
	run := rand.Text()[:8]
	d.alice, d.bob = "alice-"+run, "bob-"+run
	defer func() { err = errors.Join(err, s.bank.Forget(context.WithoutCancel(ctx), d.alice, d.bob)) }()
	d.base = "http://" + fronts[0].addr.String()
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	defer transport.CloseIdleConnections()
	d.client = &http.Client{Transport: transport}

	var results []result
	for _, show := range []func(context.Context) (result, error){
		d.debitsWithoutLock, d.debitsWithLock, d.transfersBothWays,
	} {
		r, err := show(ctx)
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	if err := printReport(stdout, cfg, results); err != nil {
		return err
	}
	var broken error
	for _, r := range results {
		broken = errors.Join(broken, r.broken())
	}
	return broken
}

// result is what one hammering came to: a column of the table.
type result struct {
	title    string
	locked   bool
	requests int
	done     int   // answered 200
	refused  int   // answered 423: not done, and the client knows
	failed   error // the first of any other answers

	balances []int64 // of the accounts, afterwards
	expected []int64 // what the answers promise
	reused   int     // fencing tokens given out more than once

	waits    []time.Duration
	commands float64 // sent to Redis per request
}

// missing is how many updates of a balance are not in it, or are in it without
// having been answered. All amounts are 1, so that is the sum of differences.
func (r result) missing() (n int64) {
	for i := range r.balances {
		n += max(r.balances[i]-r.expected[i], r.expected[i]-r.balances[i])
	}
	return n
}

// broken says what the lock promises and did not keep.
func (r result) broken() error {
	if r.failed != nil {
		return fmt.Errorf("%s: %w", r.title, r.failed)
	}
	if !r.locked {
		return nil
	}
	var err error
	if n := r.missing(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%s: %d updates lost", r.title, n))
	}
	if r.reused > 0 {
		err = errors.Join(err, fmt.Errorf("%s: %d fencing tokens given out twice", r.title, r.reused))
	}
	if r.done == 0 {
		err = errors.Join(err, fmt.Errorf("%s: no request was served", r.title))
	}
	return err
}

func (d *demonstration) debitsWithoutLock(ctx context.Context) (result, error) {
	return d.debits(ctx, result{title: "debits, no lock"}, "/debit-unsafe?amount=1")
}

func (d *demonstration) debitsWithLock(ctx context.Context) (result, error) {
	return d.debits(ctx, result{title: "debits, locked", locked: true}, "/debit?amount=1")
}

func (d *demonstration) debits(ctx context.Context, r result, path string) (result, error) {
	if err := d.openAccounts(ctx, d.alice); err != nil {
		return r, err
	}
	answers := d.hammer(ctx, &r, func(int) string { return "/accounts/" + d.alice + path })
	tokens := make(map[int64]bool)
	for _, a := range answers {
		if r.locked && a.status == http.StatusOK && tokens[a.Token] {
			r.reused++
		}
		tokens[a.Token] = true
	}
	r.expected = []int64{openingBalance - int64(r.done)}
	return d.finish(ctx, r, d.alice)
}

func (d *demonstration) transfersBothWays(ctx context.Context) (result, error) {
	r := result{title: "transfers, locked", locked: true}
	if err := d.openAccounts(ctx, d.alice, d.bob); err != nil {
		return r, err
	}
	// Neighbours go opposite ways for as long as there are any, so that the
	// two orders in which the accounts are named meet all the time.
	back := func(i int) bool { return i%2 == 1 && i < 2*backwards }
	answers := d.hammer(ctx, &r, func(i int) string {
		if back(i) {
			return "/transfers/" + d.bob + "/" + d.alice + "?amount=1"
		}
		return "/transfers/" + d.alice + "/" + d.bob + "?amount=1"
	})
	var net int64 // from alice to bob
	for i, a := range answers {
		switch {
		case a.status != http.StatusOK:
		case back(i):
			net--
		default:
			net++
		}
	}
	r.expected = []int64{openingBalance - net, openingBalance + net}
	return d.finish(ctx, r, d.alice, d.bob)
}

// response is an answer of the bank.
type response struct {
	status  int
	Balance int64 `json:"balance"`
	Token   int64 `json:"token"`
}

// hammer posts all requests at once and notes in r how they were answered, how
// long they waited and what it cost.
func (d *demonstration) hammer(ctx context.Context, r *result, path func(i int) string) []response {
	d.waits.reset()
	before := d.commands.count()

	answers, errs := make([]response, clients), make([]error, clients)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			<-start
			answers[i], errs[i] = d.call(ctx, http.MethodPost, path(i))
		})
	}
	close(start)
	wg.Wait()

	r.requests = clients
	r.commands = float64(d.commands.count()-before) / clients
	r.waits = d.waits.sorted()
	for i, a := range answers {
		switch {
		case errs[i] != nil:
			r.failed = errs[i]
		case a.status == http.StatusOK:
			r.done++
		case a.status == http.StatusLocked:
			r.refused++
		default:
			r.failed = fmt.Errorf("a request was answered %d", a.status)
		}
	}
	return answers
}

func (d *demonstration) openAccounts(ctx context.Context, ids ...string) error {
	for _, id := range ids {
		path := fmt.Sprintf("/accounts/%s?balance=%d", id, openingBalance)
		if a, err := d.call(ctx, http.MethodPut, path); err != nil || a.status != http.StatusOK {
			return fmt.Errorf("open an account: status %d: %w", a.status, err)
		}
	}
	return nil
}

func (d *demonstration) finish(ctx context.Context, r result, ids ...string) (result, error) {
	for _, id := range ids {
		a, err := d.call(ctx, http.MethodGet, "/accounts/"+id)
		if err != nil || a.status != http.StatusOK {
			return r, fmt.Errorf("read an account: status %d: %w", a.status, err)
		}
		r.balances = append(r.balances, a.Balance)
	}
	return r, nil
}

func (d *demonstration) call(ctx context.Context, method, path string) (response, error) {
	req, err := http.NewRequestWithContext(ctx, method, d.base+path, http.NoBody)
	if err != nil {
		return response{}, err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return response{}, err
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return response{}, err
	}
	a := response{status: resp.StatusCode}
	return a, json.Unmarshal(body, &a)
}
