// Command across makes payments that pass through three services. The client's key, the lock of
// the payer and its fencing token go where the work goes:
//
//	client   -- POST with a key ------> gateway    locks the account of the payer, answers 202
//	gateway  -- Debit: key, token ----> ledger     refuses the token of a former holder
//	gateway  -- message: two tickets -> consumer   goes on with the lock and the request
//	consumer -- Credit: key, token ---> ledger
//	client   -- GET, or POST again ---> gateway    202 until the consumer is done, then 201
//
// Kill any of them at any point, lose answers, deliver messages again: each payment is made once,
// since each attempt derives the same keys for its calls. The ledger owns the accounts, and takes
// no lock: its caller has it.
//
//	go run . -postgres 'postgres://postgres@localhost:5432/postgres'
//	curl -i localhost:8080/accounts/alice/payments -H 'Idempotency-Key: k1' -d '{"to": "bob", "amount": 5}'
//
// Read gateway.go, consumer.go, ledger.go. With -role a process is one of the three. To see payments
// that are made twice, add -random-keys -kill debited, and repeat the request until it gets 202.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/examples/across/ledgerpb"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/pgxstore"
)

var (
	role       = flag.String("role", "", "gateway, ledger or consumer; without it the process is all three")
	postgres   = flag.String("postgres", os.Getenv("DATABASE_URL"), "`URL` of the database of balances, records and messages")
	redisAddr  = flag.String("redis", "localhost:6379", "Redis of the locks")
	addr       = flag.String("addr", "localhost:8080", "address of the gateway")
	ledgerAddr = flag.String("ledger", "localhost:50051", "address of the ledger")
	lease      = flag.Duration("lease", 30*time.Second, "how long a process that died keeps others waiting")
	keep       = flag.Duration("keep", time.Minute, "how long lock and request are kept for the consumer")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

// service has the parts of all three services.
type service struct {
	pool     *pgxpool.Pool
	locker   *core.Locker
	payments *idempotency.Engine // of the gateway and the consumer
	bookings *idempotency.Engine // of the ledger
	ledger   ledgerpb.LedgerClient
}

// run opens the parts, and runs the services of the process until ctx ends.
func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, *postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	records, err := pgxstore.New(pool)
	if err == nil {
		_, err = pool.Exec(ctx, schema)
	}
	if err == nil {
		err = records.Migrate(ctx)
	}
	if err != nil {
		return err
	}
	locks, err := redisstore.New(redis.NewClient(&redis.Options{Addr: *redisAddr}))
	if err != nil {
		return err
	}
	locker, err1 := core.New(locks, core.Watchdog(*lease))
	engine, err2 := idempotency.New(records, idempotency.Scope(payer), idempotency.Lease(*lease))
	conn, err3 := grpc.NewClient(*ledgerAddr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(random,
			grpclock.UnaryClientIdempotencyKey(), // derived in a handler or a job
			grpclock.UnaryClientRetry(grpclock.RetryUnanswered(), grpclock.SendFences())))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	s := &service{
		pool: pool, locker: locker, ledger: ledgerpb.NewLedgerClient(conn),
		payments: engine.With(idempotency.Service("gateway")),
		bookings: engine.With(idempotency.Service("ledger"), idempotency.Transactional()),
	}
	services := map[string]func(context.Context) error{"gateway": s.gateway, "ledger": s.serveLedger, "consumer": s.consume}
	if *role != "" && services[*role] == nil {
		return errors.New("-role is gateway, ledger or consumer")
	}
	group, ctx := errgroup.WithContext(ctx)
	for name, serve := range services {
		if *role == "" || *role == name {
			group.Go(func() error { return serve(ctx) })
		}
	}
	return errors.Join(group.Wait(), // until the last request is answered
		within(ctx, engine.Close), within(ctx, locker.Close), conn.Close(), locks.Close(), records.Close())
}
