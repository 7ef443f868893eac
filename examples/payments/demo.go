package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/examples/payments/paymentspb"
	"github.com/interlock-go/interlock/httplock"
)

const (
	clients        = 200    // requests that are under way at once
	openingBalance = 10_000 // of each account
	// backwards is how many of the transfers go the other way. Not half of
	// them: balances that end where they began would show nothing.
	backwards = 80
	processes = 3 // how often the bank runs, each time with a new locker and new connections
	readers   = 30
	writers   = 5 // clients that transfer while the readers ask for reports
	each      = 5 // reports of each reader
	rated     = 60
	paid      = 100 // payments, each sent three times
	paying    = 16  // of them at the same time
	// demoTimeout ends a demonstration that hangs. No lock may do that.
	demoTimeout = 5 * time.Minute
	// demoWait is how long a request at least waits for its lock: a machine may be busy.
	demoWait = time.Minute
)

// demonstration sends many requests at once to the bank, through its front ends.
type demonstration struct {
	clients            []client // one for each front end of one process
	everywhere, unsafe []client // of all processes; without a lock or a permit
	partner            partner
	reporting          gauge             // the reports under way in all processes
	tries              [600]atomic.Int64 // of payments, by the status of the answer
	commands           commandCounter
	waits              waits
	alice, bob         string
	ends               []func(ctx context.Context) error
}

// demonstrate shows the effect of the lock. It returns an error if the lock did not keep its
// promise. It writes all spans to stdout before the table.
func demonstrate(ctx context.Context, cfg config, log *slog.Logger, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	tel, err := newTelemetry(cfg, log, stdout)
	if err != nil {
		return err
	}
	// The accounts belong to this run only: a bank in use may share the Redis.
	run := rand.Text()[:8]
	d := &demonstration{alice: "alice-" + run, bob: "bob-" + run, ends: []func(ctx context.Context) error{tel.shutdown}}
	tel.observer = observe.Join(tel.observer, &d.waits)
	text := ""
	where := cmp.Or(strings.Join(cfg.redis, ","), "a server inside this process")
	if err = d.begin(ctx, cfg, tel, log); err == nil {
		text, err = d.run(ctx, cfg, where)
	}
	for _, end := range slices.Backward(d.ends) {
		err = errors.Join(err, end(context.WithoutCancel(ctx)))
	}
	_, printed := io.WriteString(stdout, text)
	return errors.Join(err, printed)
}

// begin runs the bank several times on the loopback interface. As processes do, they share
// nothing but Redis and the partner, and here the means to count.
func (d *demonstration) begin(ctx context.Context, cfg config, tel *telemetry, log *slog.Logger) error {
	ended := func(end func() error) { d.ends = append(d.ends, func(context.Context) error { return end() }) }
	cfg.wait = max(cfg.wait, demoWait)
	stop, err := cfg.embed()
	if err != nil {
		return err
	}
	ended(stop)
	base, end, err := d.partner.listen(ctx)
	if err != nil {
		return err
	}
	ended(end)
	cfg.partner = base
	for range processes {
		s, err := open(ctx, cfg, tel, &d.commands, log)
		if err != nil {
			return err
		}
		d.ends = append(d.ends, s.close)
		s.reporting = &d.reporting
		fronts, err := s.listen(ctx, cfg)
		if err != nil {
			return err
		}
		d.ends = append(d.ends, func(ctx context.Context) error {
			return errors.Join(drain(ctx, fronts), s.bank.Forget(ctx, d.alice, d.bob))
		})
		start(fronts)
		for _, f := range fronts {
			c, err := dial(f.name, f.addr.String(), false, func(t httplock.Try) { d.tries[t.Status].Add(1) })
			if err != nil {
				return err
			}
			d.everywhere = append(d.everywhere, c)
			ended(c.hangUp)
			if f.name == "grpc" {
				continue
			}
			if c, err = dial(f.name, f.addr.String(), true, nil); err != nil {
				return err
			}
			d.unsafe = append(d.unsafe, c)
			ended(c.hangUp)
		}
	}
	d.clients = d.everywhere[:len(frontends)]
	return nil
}

// run makes all that the demonstration shows.
func (d *demonstration) run(ctx context.Context, cfg config, where string) (text string, broken error) {
	changes := []*trial{
		d.debits(ctx, "debits, no lock", false, d.unsafe[:len(frontends)-1]),
		d.debits(ctx, "debits, locked", true, d.clients),
		d.transfers(ctx, "transfers, locked"),
	}
	reports := []*trial{d.reports(ctx, "no lock", false, d.unsafe), d.reports(ctx, "shared lock", true, d.everywhere)}
	ratings := []*trial{d.ratings(ctx, "no permits", false, d.unsafe), d.ratings(ctx, fmt.Sprint(partnerLimit, " permits"), true, d.everywhere)}
	payments := d.payments(ctx)
	for _, t := range slices.Concat(changes, reports, ratings, []*trial{payments}) {
		switch {
		case t.failed != nil:
			return "", fmt.Errorf("%s: %w", t.title, t.failed)
		case t.broken():
			broken = errors.Join(broken, fmt.Errorf("%s: %d wrong, %d of %d served", t.title, t.wrong, t.done, t.asked))
		}
	}
	return tables(cfg, where, changes, reports, ratings, payments), broken
}

// trial begins a run with accounts that have the opening balance.
func (d *demonstration) trial(ctx context.Context, title string, guarded bool) *trial {
	opening := &trial{by: make(map[string]int)}
	for i, id := range []string{d.alice, d.bob} {
		opening.ask(ctx, d.clients[i], func(ctx context.Context) error {
			_, err := d.clients[i].PutAccount(ctx, &paymentspb.PutAccountRequest{Account: id, Balance: openingBalance})
			return err
		})
	}
	d.waits.reset("")
	return &trial{title: title, guarded: guarded, by: make(map[string]int), failed: opening.failed}
}

// read reads accounts at the end of a run, through other front ends than it opened them.
func (d *demonstration) read(ctx context.Context, t *trial, ids ...string) {
	for i, id := range ids {
		c := d.clients[len(d.clients)-1-i]
		a, err := c.GetAccount(ctx, &paymentspb.GetAccountRequest{Account: id})
		t.failed = errors.Join(t.failed, err)
		t.balances = append(t.balances, a.GetBalance())
		t.wrong += max(a.GetBalance()-t.expected[i], t.expected[i]-a.GetBalance()) // each request moves 1
	}
}

func (d *demonstration) debits(ctx context.Context, title string, guarded bool, through []client) *trial {
	t, before := d.trial(ctx, title, guarded), d.commands.Load()
	t.atOnce(ctx, clients, through, func(ctx context.Context, _ int, c client) error {
		_, err := c.Debit(ctx, &paymentspb.DebitRequest{Account: d.alice, Amount: 1})
		return err
	})
	t.commands, t.waits = float64(d.commands.Load()-before)/clients, d.waits.reset("exclusive")
	t.expected = []int64{openingBalance - int64(t.done)}
	d.read(ctx, t, d.alice)
	return t
}

func (d *demonstration) transfers(ctx context.Context, title string) *trial {
	t, before := d.trial(ctx, title, true), d.commands.Load()
	var mu sync.Mutex
	t.expected = []int64{openingBalance, openingBalance}
	t.atOnce(ctx, clients, d.clients, func(ctx context.Context, i int, c client) error {
		// Neighbours go opposite ways for as long as there are any, so that the two orders of
		// the accounts meet all the time.
		r, moved := &paymentspb.TransferRequest{From: d.alice, To: d.bob, Amount: 1}, int64(1)
		if i%2 == 1 && i < 2*backwards {
			r.From, r.To, moved = d.bob, d.alice, -1
		}
		_, err := c.Transfer(ctx, r)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			t.expected[0], t.expected[1] = t.expected[0]-moved, t.expected[1]+moved
		}
		return err
	})
	t.commands, t.waits = float64(d.commands.Load()-before)/clients, d.waits.reset("exclusive")
	d.read(ctx, t, d.alice, d.bob)
	return t
}

// reports asks all processes for the sum of two accounts, while money moves between
// them through all processes.
func (d *demonstration) reports(ctx context.Context, title string, guarded bool, through []client) *trial {
	t := d.trial(ctx, title, guarded)
	moving := d.trial(ctx, title, guarded) // the transfers
	d.reporting.reset()
	begun, read := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(begun) })
	var reading, writing sync.WaitGroup
	for i := range writers {
		c, r := d.everywhere[i%len(d.everywhere)], &paymentspb.TransferRequest{From: d.alice, To: d.bob, Amount: 1}
		writing.Go(func() {
			for {
				select {
				case <-read:
					return
				default:
				}
				moving.ask(ctx, c, func(ctx context.Context) error {
					_, err := c.Transfer(ctx, r)
					return err
				})
				first() // the reports begin
				r.From, r.To = r.To, r.From
			}
		})
	}
	for i := range readers {
		reading.Go(func() {
			<-begun
			for n := range each {
				c := through[(i+n)%len(through)]
				t.ask(ctx, c, func(ctx context.Context) error {
					r, err := c.Report(ctx, &paymentspb.ReportRequest{First: d.alice, Second: d.bob})
					if err == nil && r.GetSum() != 2*openingBalance {
						t.mu.Lock()
						defer t.mu.Unlock()
						t.wrong++
					}
					return err
				})
			}
		})
	}
	reading.Wait()
	close(read)
	writing.Wait()
	t.failed = errors.Join(t.failed, moving.failed)
	t.meanwhile, t.waits = moving.done, d.waits.reset("shared")
	t.most, _ = d.reporting.reset()
	return t
}

// ratings asks all processes for ratings at once. The partner counts the calls.
func (d *demonstration) ratings(ctx context.Context, title string, guarded bool, through []client) *trial {
	t := d.trial(ctx, title, guarded)
	d.partner.calls.reset()
	t.atOnce(ctx, rated, through, func(ctx context.Context, _ int, c client) error {
		_, err := c.Rate(ctx, &paymentspb.RateRequest{Account: d.alice})
		return err
	})
	most, above := d.partner.calls.reset()
	t.most, t.wrong, t.waits = most, int64(above), d.waits.reset("permit")
	return t
}

// payments sends every payment through each HTTP front end: through two at once, and
// through the third when both have been answered. Then it tries the key over gRPC.
func (d *demonstration) payments(ctx context.Context) *trial {
	t := d.trial(ctx, "payments", true)
	rest, rpc := d.clients[:len(d.clients)-1], d.clients[len(d.clients)-1]
	var mu sync.Mutex
	confirmed := 0
	var wg sync.WaitGroup
	turns := make(chan struct{}, paying)
	for range paid {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			key := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer carol", "idempotency-key", rand.Text())
			made, ids := 0, make(map[string]bool)
			pay := func(c client) {
				var header metadata.MD
				p, err := c.Pay(key, &paymentspb.PayRequest{Account: d.alice, Amount: 1}, grpc.Header(&header))
				t.note(c, err)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					return
				case len(header.Get("idempotent-replayed")) > 0:
					t.replayed++
				default:
					made++
				}
				ids[p.GetPaymentId()] = true
			}
			var two sync.WaitGroup
			two.Go(func() { pay(rest[0]) })
			two.Go(func() { pay(rest[1]) })
			two.Wait()
			pay(rest[2])
			_, err := rpc.Pay(key, &paymentspb.PayRequest{Account: d.alice, Amount: 1})
			mu.Lock()
			defer mu.Unlock()
			if reasonOf(err) == string(reason.KeyReused) {
				t.crossed++
			}
			confirmed += len(ids)
			if made != 1 || len(ids) != 1 {
				t.wrong++
			}
		})
	}
	wg.Wait()
	t.inFlight, t.busy = int(d.tries[http.StatusConflict].Load()), int(d.tries[http.StatusLocked].Load())
	t.expected = []int64{openingBalance - int64(confirmed)}
	d.read(ctx, t, d.alice)
	return t
}
