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
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/interlockdebug"
)

// service is the bank with its locks. Every front end serves it.
type service struct {
	bank      *bank.Bank
	rdb       redis.UniversalClient
	log       *slog.Logger
	telemetry *telemetry

	// The rules of REST, each declared once for all frameworks. The rules of gRPC
	// are in its proto. They make the same keys, so a debit in one protocol waits for
	// a transfer in another.
	account  *core.Guard // one account, as {id}
	transfer *core.Guard // both accounts of a transfer, {from} and {to}

	// Two rules for requests that run together. Reports share the locks of their accounts
	// with each other, and exclude what changes them. Of ratings at most a few run at
	// once, in all processes.
	reports   *core.Guard // both accounts of a report, {first} and {second}
	ratings   *core.Guard
	reporting *gauge // the reports under way

	partner       string // the base of its URLs
	partnerClient *http.Client

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

// accountTemplate is the template of an account's lock. A transfer makes the same keys
// from other parameters, so it excludes the debits of both accounts.
const accountTemplate = "account/{id}"

// maxHold bounds a handler that hangs. It is the bound that the engine of the payments
// has by default, and far above the time of any handler here.
const maxHold = 5 * time.Minute

func open(ctx context.Context, cfg config, tel *telemetry, commands *commandCounter, log *slog.Logger) (*service, error) {
	s := &service{
		log: log, telemetry: tel, wait: cfg.wait, retention: cfg.retention, faults: cfg.faults,
		bound: cfg.wait + cfg.work + stepMargin, reporting: &gauge{},
	}
	rdb, disconnect, err := connect(ctx, cfg.redis, commands, log)
	if err != nil {
		return nil, err
	}
	s.connection = append(s.connection, disconnect)
	s.rdb = rdb
	if err := s.connectPartner(ctx, cfg.partner); err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}

	store, err := redisstore.New(rdb, redisstore.Logger(log)) //nolint:contextcheck // what it does in the background outlives ctx
	if err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	s.connection = append(s.connection, store.Close)
	work, records := bank.Work(cfg.work), idempotency.Store(store)
	var inTransaction idempotency.Option
	if s.begin = mark; cfg.postgres == "" {
		s.bank = bank.New(rdb, work)
	} else {
		s.begin, inTransaction = noMark, idempotency.Transactional()
		if records, err = s.openPostgres(ctx, cfg.postgres, work); err != nil {
			return nil, errors.Join(err, s.close(ctx))
		}
	}

	s.locker, err = core.New(store, core.Watchdog(cfg.ttl), core.MaxHold(maxHold), core.WithObserver(tel.observer))
	if err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	unwatch := tel.watch(s.locker)
	s.connection = append(s.connection, func() error { unwatch(); return nil })
	s.account = core.Serialize(s.locker, accountTemplate, core.Wait(cfg.wait))
	s.transfer = core.Serialize(s.locker, "account/{from}", core.And("account/{to}"), core.Wait(cfg.wait))
	s.reports = core.Share(s.locker, "account/{first}", core.And("account/{second}"), core.Wait(cfg.wait))
	s.ratings = core.AtMost(s.locker, partnerLimit, "partner/ratings", core.Wait(cfg.wait))

	// A process that dies in a payment leaves a claim and a lock. The process that
	// takes over the claim should not have to wait for the lock.
	ordered := core.Serialize(s.locker, "account/{ctx.account}", core.ContextFunc("account", orderedAccount),
		core.Wait(cfg.wait), core.Watchdog(min(cfg.ttl, cfg.lease)))
	s.payments, err = idempotency.New(records, inTransaction, idempotency.Name("payment"), idempotency.Scope(payer),
		idempotency.Under(ordered), idempotency.Lease(cfg.lease), idempotency.Retention(cfg.retention),
		idempotency.WithObserver(tel.observer))
	if err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

// close ends what the front ends use, in the order of docs/operations.md: first it
// waits for running requests and stores their answers, then it waits for the locks that
// are still held, then it closes the store and the connections. Each wait has a bound
// of its own: a slow step cuts no other short. Of ctx it uses only the values.
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

// held returns the account with the fencing token of the context's lease.
func held(ctx context.Context, id string) (bank.Held, error) {
	lease := core.LeaseFromContext(ctx)
	if lease == nil {
		return bank.Held{}, errors.New("the route has no lock")
	}
	key, err := core.Key("account", id)
	if err != nil {
		return bank.Held{}, err
	}
	token, ok := lease.TokenFor(key)
	if !ok {
		return bank.Held{}, fmt.Errorf("the route's lock is not that of account %q", id)
	}
	return bank.Held{ID: id, Token: token}, nil
}

// put, debit and move are the operations that need their accounts' locks:
// the front ends call them inside a guard.

func (s *service) put(ctx context.Context, id string, balance int64) (changed, error) {
	h, err := held(ctx, id)
	if err != nil {
		return changed{}, err
	}
	a, err := s.bank.Put(ctx, h, balance)
	return changed{a, h.Token}, err
}

func (s *service) debit(ctx context.Context, id string, amount int64) (changed, error) {
	h, err := held(ctx, id)
	if err != nil {
		return changed{}, err
	}
	a, err := s.bank.Debit(ctx, h, amount)
	return changed{a, h.Token}, err
}

func (s *service) move(ctx context.Context, from, to string, amount int64) (moved, error) {
	f, err := held(ctx, from)
	if err != nil {
		return moved{}, err
	}
	t, err := held(ctx, to)
	if err != nil {
		return moved{}, err
	}
	debited, credited, err := s.bank.Transfer(ctx, f, t, amount)
	return moved{debited, credited, f.Token}, err
}

// report needs no token, because it writes nothing. The front ends call it under the
// shared locks of both accounts, and without them to show what happens then.
func (s *service) report(ctx context.Context, first, second string) (reported, error) {
	defer s.reporting.enter()()
	one, other, err := s.bank.Report(ctx, first, second)
	return reported{one, other, one.Balance + other.Balance}, err
}

// changed is the answer to a change of one account.
type changed struct {
	bank.Account
	Token int64 `json:"token"`
}

// moved is the answer to a transfer, with the token of the debited account.
type moved struct {
	From  bank.Account `json:"from"`
	To    bank.Account `json:"to"`
	Token int64        `json:"token"`
}

// reported is the answer to a report.
type reported struct {
	First  bank.Account `json:"first"`
	Second bank.Account `json:"second"`
	Sum    int64        `json:"sum"`
}

// frontend is one protocol at one address.
type frontend struct {
	name  string
	addr  net.Addr
	path  string                      // of a page for browsers; else empty
	serve func() error                // until drain
	drain func(context.Context) error // answers the requests that have arrived, then ends
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
	fronts, err := s.listen(ctx, cfg)
	if err != nil {
		return errors.Join(err, s.close(ctx))
	}
	debug, err := s.debugFrontend(ctx, cfg.debug, seen)
	if err != nil {
		return errors.Join(err, drain(ctx, fronts), s.close(ctx))
	}
	fronts = append(fronts, debug)
	// Connections are accepted already. Requests are not served before all the
	// lines are out, so that no span comes between them.
	for _, f := range fronts {
		where := f.addr.String()
		if f.path != "" {
			where = "http://" + where + f.path
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

// stepMargin is what a step of the shutdown may take beyond the time of the last
// accepted request, which still waits for its lock, and then works.
const stepMargin = 10 * time.Second

// listen opens the four front ends.
func (s *service) listen(ctx context.Context, cfg config) ([]*frontend, error) {
	var fronts []*frontend
	for _, open := range []func() (*frontend, error){
		func() (*frontend, error) { return s.restFrontend(ctx, "http", cfg.addr, httpRoutes(s)) },
		func() (*frontend, error) { return s.restFrontend(ctx, "gin", cfg.gin, ginRoutes(s)) },    //nolint:contextcheck // handlers have those of their requests
		func() (*frontend, error) { return s.restFrontend(ctx, "echo", cfg.echo, echoRoutes(s)) }, //nolint:contextcheck // the same
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

// start serves all front ends. The channel receives the first one that ends by itself.
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
	errs := make(chan error, len(fronts))
	for _, f := range fronts {
		go func() { errs <- f.drain(ctx) }()
	}
	var all error
	for range fronts {
		all = errors.Join(all, <-errs)
	}
	return all
}
