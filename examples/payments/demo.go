package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/examples/payments/bank"
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
	clients    []client // one for each front end of one process
	everywhere []client // one for each front end of every process
	partner    *partner
	reporting  *gauge // the reports under way in all processes
	commands   *commandCounter
	waits      *waits
	// retention is for how long a payment's key is good.
	retention time.Duration

	alice, bob string
}

// demonstrate shows what the lock does. It returns an error if the lock did not keep
// its promise.
func demonstrate(ctx context.Context, cfg config, log *slog.Logger, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	m, err := measure(ctx, cfg, log, stdout)
	if err != nil {
		return err
	}
	if err := errors.Join(printTable(stdout, cfg, m.results), printTogether(stdout, m.reports, m.ratings), printRepeats(stdout, m.repeated)); err != nil {
		return err
	}
	broken := m.repeated.broken()
	for _, r := range m.results {
		broken = errors.Join(broken, r.broken())
	}
	for _, r := range slices.Concat(m.reports, m.ratings) {
		broken = errors.Join(broken, r.broken())
	}
	return broken
}

// measured is what the demonstration prints.
type measured struct {
	results          []result
	reports, ratings []together // without and with the lock, or the permits
	repeated         repeats
}

// measure serves the bank on the loopback interface while the demonstration runs. It
// writes all spans to stdout before it returns.
func measure(ctx context.Context, cfg config, log *slog.Logger, stdout io.Writer) (m measured, err error) {
	tel, err := newTelemetry(cfg, log, stdout)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, tel.shutdown(context.WithoutCancel(ctx))) }()
	d := &demonstration{
		commands: &commandCounter{}, waits: &waits{next: tel.observer}, retention: cfg.retention,
		partner: newPartner(bank.Work(partnerWork)), reporting: &gauge{},
	}
	tel.observer = d.waits
	// All processes have one Redis and one partner.
	if len(cfg.redis) == 0 {
		addr, stop, err := embed()
		if err != nil {
			return m, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		cfg.redis = []string{addr}
	}
	base, end, err := d.partner.listen(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, end()) }()
	cfg.partner = base
	// The accounts belong to this run only: a bank in use may share the Redis.
	run := rand.Text()[:8]
	d.alice, d.bob = "alice-"+run, "bob-"+run

	for range processes {
		stop, err := d.begin(ctx, cfg, tel, log)
		if err != nil {
			return m, err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	return d.run(ctx)
}

// begin runs the bank once more, as another process would: it shares nothing with the
// others but Redis and the partner, and the means to count.
func (d *demonstration) begin(ctx context.Context, cfg config, tel *telemetry, log *slog.Logger) (stop func() error, err error) {
	s, err := open(ctx, cfg, tel, d.commands, log)
	if err != nil {
		return nil, err
	}
	s.bound, s.reporting = max(s.bound, patience), d.reporting
	fronts, err := s.listen(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	start(fronts)
	var connections []func()
	stop = func() error {
		for _, hangUp := range connections {
			hangUp()
		}
		ctx := context.WithoutCancel(ctx)
		return errors.Join(drain(ctx, fronts), s.bank.Forget(ctx, d.alice, d.bob), s.close(ctx))
	}
	for _, f := range fronts {
		c, hangUp, err := dial(f.name, f.addr.String())
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		connections = append(connections, hangUp)
		d.everywhere = append(d.everywhere, c)
	}
	d.clients = d.everywhere[:len(fronts)]
	return stop, nil
}

// run makes all that the demonstration shows.
func (d *demonstration) run(ctx context.Context) (m measured, err error) {
	for _, show := range []func(context.Context) (result, error){
		d.debitsWithoutLock, d.debitsWithLock, d.transfersBothWays,
	} {
		r, err := show(ctx)
		if err != nil {
			return m, err
		}
		m.results = append(m.results, r)
	}
	if m.reports, m.ratings, err = d.runTogether(ctx); err != nil {
		return m, err
	}
	m.repeated, err = d.paymentsThreeTimes(ctx)
	return m, err
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
	return d.debits(ctx, result{title: "debits, no lock"}, withoutGuard(d.clients))
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
	r.waits = d.waits.sorted("exclusive")
	r.by = make(map[string]int)
	for i, a := range replies {
		switch {
		case a.done():
			r.done++
			r.by[by(i).frontend()]++
		case a.reason == string(reason.Held):
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
