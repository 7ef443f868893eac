package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/examples/payments/paymentspb"
	"github.com/interlock-go/interlock/interlockdebug"
)

// service is the bank with its locks. Every front end serves it.
type service struct {
	paymentspb.UnimplementedPaymentsServer // its methods are in operations.go and payment.go

	bank *bank.Bank
	rdb  redis.UniversalClient
	log  *slog.Logger

	// The rules of REST, each declared once for all frameworks. The rules of gRPC
	// are in its proto. They make the same keys, so a debit in one protocol waits for
	// a transfer in another.
	account  *core.Guard // one account, as {id}
	transfer *core.Guard // both accounts of a transfer, {from} and {to}

	// Two rules for requests that run together. Reports share the locks of their accounts
	// with each other, and exclude changes of them. Of ratings at most a few run at once,
	// in all processes.
	reports   *core.Guard // both accounts of a report, {first} and {second}
	ratings   *core.Guard
	reporting *gauge // the reports under way
	partner   *partnerClient

	// Payments are carried out once for each key, under the lock of the account
	// that their body names.
	payments  *idempotency.Engine
	begin     func(context.Context) error // called before a payment takes effect
	retention time.Duration               // of a payment's record, and of its reference in the bank
	faults    bool                        // clients may ask for them

	locker     *core.Locker
	wait       time.Duration  // for a lock, in all rules
	bound      time.Duration  // of each step of the shutdown
	connection []func() error // these end the store and its connections
}

const (
	// maxHold bounds a handler that hangs. It is the bound that the engine of the payments
	// has by default, and far above the time of any handler here.
	maxHold = 5 * time.Minute
	// stepMargin is the time that a step of the shutdown may take beyond the time of the last
	// accepted request, which still waits for its lock, and then works.
	stepMargin = 10 * time.Second
)

func open(ctx context.Context, cfg config, tel *telemetry, commands *commandCounter, log *slog.Logger) (_ *service, err error) {
	s := &service{
		log: log, wait: cfg.wait, retention: cfg.retention, faults: cfg.faults,
		bound: cfg.wait + cfg.work + stepMargin, reporting: &gauge{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	stop, err := cfg.embed()
	if err != nil {
		return nil, err
	}
	s.connection = append(s.connection, stop)
	if err := s.connect(ctx, cfg, commands); err != nil {
		return nil, err
	}
	if err := s.connectPartner(ctx, cfg.partner); err != nil {
		return nil, err
	}
	store, err := redisstore.New(s.rdb, redisstore.Logger(log), redisstore.Timeout(cfg.patience))
	if err != nil {
		return nil, err
	}
	s.connection = append(s.connection, store.Close)
	work, records := bank.Work(cfg.work), idempotency.Store(store)
	var inTransaction idempotency.Option
	if s.begin = mark; cfg.postgres == "" {
		s.bank = bank.New(s.rdb, work)
	} else {
		s.begin, inTransaction = noMark, idempotency.Transactional()
		if records, err = s.openPostgres(ctx, cfg.postgres, work); err != nil {
			return nil, err
		}
	}

	if err = s.rules(cfg, store, records, tel.observer, inTransaction); err != nil {
		return nil, err
	}
	unwatch := tel.watch(s.locker)
	s.connection = append(s.connection, func() error { unwatch(); return nil })
	return s, nil
}

// rules makes the locker on store, the engine on records, and the rules.
func (s *service) rules(cfg config, store core.Store, records idempotency.Store, observer observe.Observer, opts ...idempotency.Option) (err error) {
	s.locker, err = core.New(store, core.Watchdog(cfg.ttl), core.MaxHold(maxHold), core.WithObserver(observer))
	if err != nil {
		return err
	}
	// A transfer makes the same keys as debits, so it excludes the debits of both accounts.
	wait := core.Wait(cfg.wait)
	s.account = core.Serialize(s.locker, "account/{id}", wait)
	s.transfer = core.Serialize(s.locker, "account/{from}", core.And("account/{to}"), wait)
	s.reports = core.Share(s.locker, "account/{first}", core.And("account/{second}"), wait)
	s.ratings = core.AtMost(s.locker, partnerLimit, "partner/ratings", wait)

	// A process that dies in a payment leaves a claim and a lock. The process that
	// takes over the claim should not have to wait for the lock.
	ordered := core.Serialize(s.locker, "account/{ctx.account}", core.ContextFunc("account", orderedAccount),
		wait, core.Watchdog(min(cfg.ttl, cfg.lease)))
	s.payments, err = idempotency.New(records, append(opts, idempotency.Name("payment"), idempotency.Scope(payer),
		idempotency.Under(ordered), idempotency.Lease(cfg.lease), idempotency.Retention(cfg.retention))...)
	return err
}

// close ends the locker, the engine and the store of the front ends, in the order of
// docs/operations.md: first it waits for running requests and stores their answers,
// then it waits for the locks that are still held, then it closes the store and the
// connections. Each wait has its own bound: a slow step cuts no other short. Of ctx it
// uses only the values.
func (s *service) close(ctx context.Context) error {
	var errs []error
	if s.payments != nil {
		errs = append(errs, bounded(ctx, s.bound, s.payments.Close))
	}
	if s.locker != nil {
		errs = append(errs, bounded(ctx, s.bound, s.locker.Close))
	}
	for _, end := range slices.Backward(s.connection) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// bounded runs one step of the shutdown. Of ctx it uses only the values.
func bounded(ctx context.Context, bound time.Duration, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	return step(ctx)
}

// serve runs all front ends until ctx ends, then answers the requests that have
// arrived.
func serve(ctx context.Context, cfg config, log *slog.Logger, stdout io.Writer) (err error) {
	tel, err := newTelemetry(cfg, log, stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tel.shutdown(context.WithoutCancel(ctx))) }()
	seen := interlockdebug.NewObserver()
	tel.observer = observe.Join(tel.observer, seen)
	s, err := open(ctx, cfg, tel, nil, log)
	if err != nil {
		return err
	}
	// The debug page is for operators: none of the addresses that clients use has it.
	debug := http.NewServeMux()
	debug.Handle("/debug/interlock", interlockdebug.Handler(s.locker, interlockdebug.Observed(seen), interlockdebug.Engines(s.payments),
		interlockdebug.ShowKeys())) // these accounts belong to no customer; a real bank leaves this out
	fronts, err := s.listen(ctx, cfg)
	if err == nil {
		var page *frontend
		if page, err = httpFrontend(ctx, "debug", cfg.debug, debug); err == nil {
			fronts = append(fronts, page)
		}
	}
	if err != nil {
		return errors.Join(err, drain(ctx, fronts), s.close(ctx))
	}
	// Connections are accepted already. Requests are not served before all the
	// lines are out, so that no span comes between them.
	for _, f := range fronts {
		where := f.addr.String()
		if f.name == "debug" {
			where = "http://" + where + "/debug/interlock"
		}
		if _, err := fmt.Fprintf(stdout, "listening %s %s\n", f.name, where); err != nil {
			log.Warn("write to stdout", "error", err)
		}
	}
	failed := start(fronts)

	select {
	case err = <-failed:
	case <-ctx.Done():
		log.Info("draining")
	}
	stopped := bounded(ctx, s.bound, func(ctx context.Context) error { return drain(ctx, fronts) })
	return errors.Join(err, stopped, s.close(ctx))
}

// frontend is one protocol at one address.
type frontend struct {
	name  string
	addr  net.Addr
	serve func() error                // until drain
	drain func(context.Context) error // answers the requests that have arrived, then ends
}

// listen opens the four front ends.
func (s *service) listen(ctx context.Context, cfg config) (fronts []*frontend, err error) {
	for _, open := range []func() (*frontend, error){
		func() (*frontend, error) { return httpFrontend(ctx, "http", cfg.addr, httpRoutes(s)) },
		func() (*frontend, error) { return httpFrontend(ctx, "gin", cfg.gin, ginRoutes(s)) },
		func() (*frontend, error) { return httpFrontend(ctx, "echo", cfg.echo, echoRoutes(s)) },
		func() (*frontend, error) { return grpcFrontend(ctx, cfg.grpc, s) },
	} {
		f, err := open()
		if err != nil {
			return nil, errors.Join(err, drain(ctx, fronts))
		}
		fronts = append(fronts, f)
	}
	return fronts, nil
}

// start serves all front ends. The channel receives the first front end that ends by itself.
func start(fronts []*frontend) <-chan error {
	failed := make(chan error, len(fronts))
	for _, f := range fronts {
		go func() {
			if err := f.serve(); err != nil {
				failed <- fmt.Errorf("%s: %w", f.name, err)
			}
		}()
	}
	return failed
}

func drain(ctx context.Context, fronts []*frontend) error {
	errs := make([]error, len(fronts))
	var wg sync.WaitGroup
	for i, f := range fronts {
		wg.Go(func() { errs[i] = f.drain(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
