package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
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

// demonstration sends many requests at once to the bank, through its front ends.
type demonstration struct {
	clients  []client // one for each front end
	commands *commandCounter
	waits    *waits
	// retention is for how long a payment's key is good.
	retention time.Duration

	alice, bob string
}

// demonstrate shows what the lock does. It returns an error if the lock did not keep
// its promise.
func demonstrate(ctx context.Context, cfg config, log *slog.Logger, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	results, repeated, err := measure(ctx, cfg, log, stdout)
	if err != nil {
		return err
	}
	if err := errors.Join(printTable(stdout, cfg, results), printRepeats(stdout, repeated)); err != nil {
		return err
	}
	broken := repeated.broken()
	for _, r := range results {
		broken = errors.Join(broken, r.broken())
	}
	return broken
}

// measure serves the bank on the loopback interface while the demonstration runs. It
// writes all spans to stdout before it returns.
func measure(ctx context.Context, cfg config, log *slog.Logger, stdout io.Writer) (results []result, repeated repeats, err error) {
	tel, err := newTelemetry(cfg, log, stdout)
	if err != nil {
		return nil, repeated, err
	}
	defer func() { err = errors.Join(err, tel.shutdown(context.WithoutCancel(ctx))) }()
	d := &demonstration{commands: &commandCounter{}, waits: &waits{next: tel.observer}, retention: cfg.retention}
	tel.observer = d.waits
	s, err := open(ctx, cfg, tel, d.commands, log)
	if err != nil {
		return nil, repeated, err
	}
	s.bound = max(s.bound, patience)
	defer func() { err = errors.Join(err, s.close(context.WithoutCancel(ctx))) }()
	fronts, err := s.listen(ctx, cfg)
	if err != nil {
		return nil, repeated, err
	}
	defer func() { err = errors.Join(err, drain(context.WithoutCancel(ctx), fronts)) }()
	start(fronts)

	// The accounts belong to this run only: a bank in use may share the Redis.
	run := rand.Text()[:8]
	d.alice, d.bob = "alice-"+run, "bob-"+run
	defer func() { err = errors.Join(err, s.bank.Forget(context.WithoutCancel(ctx), d.alice, d.bob)) }()
	for _, f := range fronts {
		c, hangUp, err := dial(f.name, f.addr.String())
		if err != nil {
			return nil, repeated, err
		}
		defer hangUp()
		d.clients = append(d.clients, c)
	}

	for _, show := range []func(context.Context) (result, error){
		d.debitsWithoutLock, d.debitsWithLock, d.transfersBothWays,
	} {
		r, err := show(ctx)
		if err != nil {
			return nil, repeated, err
		}
		results = append(results, r)
	}
	repeated, err = d.paymentsThreeTimes(ctx)
	return results, repeated, err
}

// result is the outcome of one run: a column of the table.
type result struct {
	title    string
	locked   bool
	requests int
	done     int
	by       map[string]int // done, by front end
	refused  int            // the lock was busy: not done, and the client was told
	unknown  int            // Redis did not answer the bank in time: done or not
	failed   error          // one of any other answers

	balances []int64 // of the accounts, afterwards
	expected []int64 // what the answers promise
	reused   int     // fencing tokens given out more than once

	waits    []time.Duration
	commands float64 // sent to Redis per request
}

// missing returns how many updates are absent from the balances, or are in them
// without an answer. All amounts are 1, so it is the sum of the differences. Requests
// whose outcome is unknown explain as many of them in each balance.
func (r result) missing() (n int64) {
	for i := range r.balances {
		n += max(0, max(r.balances[i]-r.expected[i], r.expected[i]-r.balances[i])-int64(r.unknown))
	}
	return n
}

// broken describes the promises that the lock did not keep.
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

// The three runs, each a column of the table.

func (d *demonstration) debitsWithoutLock(ctx context.Context) (result, error) {
	// The proto has no such method: a lock that belongs to the interface cannot be
	// forgotten.
	var unsafe []client
	for _, c := range d.clients {
		if rest, ok := c.(*restClient); ok {
			unsafe = append(unsafe, unlocked{rest})
		}
	}
	return d.debits(ctx, result{title: "debits, no lock"}, unsafe)
}

func (d *demonstration) debitsWithLock(ctx context.Context) (result, error) {
	return d.debits(ctx, result{title: "debits, locked", locked: true}, d.clients)
}

func (d *demonstration) debits(ctx context.Context, r result, through []client) (result, error) {
	if err := d.openAccounts(ctx, d.alice); err != nil {
		return r, err
	}
	replies := d.hammer(ctx, &r, through, func(_ int, c client) reply { return c.debit(ctx, d.alice, 1) })
	tokens := make(map[int64]bool)
	for _, a := range replies {
		if r.locked && a.done() && tokens[a.token] {
			r.reused++
		}
		tokens[a.token] = true
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
	// two orders in which the accounts are named meet all the time, and each
	// front end sees both.
	back := func(i int) bool { return i%2 == 1 && i < 2*backwards }
	replies := d.hammer(ctx, &r, d.clients, func(i int, c client) reply {
		if back(i) {
			return c.transfer(ctx, d.bob, d.alice, 1)
		}
		return c.transfer(ctx, d.alice, d.bob, 1)
	})
	var net int64 // from alice to bob
	for i, a := range replies {
		switch {
		case !a.done():
		case back(i):
			net--
		default:
			net++
		}
	}
	r.expected = []int64{openingBalance - net, openingBalance + net}
	return d.finish(ctx, r, d.alice, d.bob)
}

// hammer sends all requests at once, distributed over the clients in turn. It notes in
// r the answers, the waiting times and the number of commands.
func (d *demonstration) hammer(ctx context.Context, r *result, through []client, send func(i int, c client) reply) []reply {
	d.waits.reset()
	before := d.commands.count()

	replies := make([]reply, clients)
	// In pairs, so that both directions of the transfers use all front ends.
	by := func(i int) client { return through[i/2%len(through)] }
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			<-start
			replies[i] = settled(ctx, func() reply { return send(i, by(i)) })
		})
	}
	close(start)
	wg.Wait()

	r.requests = clients
	r.commands = float64(d.commands.count()-before) / clients
	r.waits = d.waits.sorted()
	r.by = make(map[string]int)
	for i, a := range replies {
		switch {
		case a.done():
			r.done++
			r.by[by(i).frontend()]++
		case a.reason == string(core.ReasonHeld):
			r.refused++
		case a.reason == "outcome-unknown":
			r.unknown++
		default:
			r.failed = fmt.Errorf("a request was answered: %w", a.failure())
		}
	}
	return replies
}

// openAccounts and finish use different front ends, which share the ledger and the
// locks.

func (d *demonstration) openAccounts(ctx context.Context, ids ...string) error {
	for i, id := range ids {
		if a := settled(ctx, func() reply { return d.clients[i].put(ctx, id, openingBalance) }); !a.done() {
			return fmt.Errorf("open an account: %w", a.failure())
		}
	}
	return nil
}

func (d *demonstration) finish(ctx context.Context, r result, ids ...string) (result, error) {
	for i, id := range ids {
		a := settled(ctx, func() reply { return d.clients[len(d.clients)-1-i].get(ctx, id) })
		if !a.done() {
			return r, fmt.Errorf("read an account: %w", a.failure())
		}
		r.balances = append(r.balances, a.account.Balance)
	}
	return r, nil
}
