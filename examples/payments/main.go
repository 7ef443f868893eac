// Command payments shows the purpose of a distributed lock. It is a small bank with
// four front ends, on net/http, gin, echo and gRPC. Many clients debit its accounts at
// the same time.
//
//	go run ./examples/payments
//
// This command needs only Go. It starts a Redis-compatible server inside the process
// and serves the bank on the loopback interface. It debits one account 200 times at
// once, first without a lock and then with it. It transfers money between two accounts
// in both directions at once, through all front ends. Then it runs the bank three times,
// as three processes would. It asks for reports, which share the accounts while
// transfers change them, and for ratings by a partner that allows three calls at once;
// both without and with the lock or the permit. It sends each payment three times. At
// the end it prints the balances. It exits with status 1 if an update was lost under the
// lock, if a report under the lock saw half a transfer, if the partner got more calls
// than there are permits, or if a payment was made twice or lost.
//
//	go run ./examples/payments -serve -redis localhost:6379 \
//		-gin localhost:8081 -echo localhost:8082 -grpc localhost:8083
//
// This command serves the bank until it is stopped, on the given Redis, with net/http
// on port 8080. Start it several times with different addresses, and the processes
// share one bank. It prints a line for each front end, "listening <http|gin|echo|grpc>
// <host:port>", and one for the debug page, "listening debug http://<host:port>/debug/interlock",
// which shows the locks of the process. A front end without an address gets a free port. The
// first three serve the same routes:
//
//	curl -X PUT  'localhost:8080/accounts/alice?balance=100'
//	curl         'localhost:8081/accounts/alice'
//	curl -X POST 'localhost:8082/accounts/alice/debit?amount=30'
//	curl -X POST 'localhost:8080/accounts/alice/debit-unsafe?amount=30'
//	curl -X POST 'localhost:8081/transfers/alice/bob?amount=30'
//	curl         'localhost:8082/reports/alice/bob'
//	curl         'localhost:8080/accounts/alice/rating'
//
//	curl -X POST 'localhost:8081/payments' -H 'Authorization: Bearer carol' \
//		-H 'Idempotency-Key: 7c3a' -d '{"account":"alice","amount":30}'
//
// If a client sends the last request again, through any front end, it gets the same
// answer, and no second payment is made. gRPC has methods for the same, in
// paymentspb/payments.proto:
//
//	grpcurl -plaintext -d '{"account":"alice","amount":30}' \
//		localhost:8083 interlock.examples.payments.v1.Payments/Debit
//
// With -postgres URL the accounts and the records of payments are in PostgreSQL. A payment
// and its record are committed in one transaction. No crash leaves a payment of unknown
// outcome then, and the bank needs no references to recognize payments. The locks stay in
// Redis.
//
// With -otel stdout the command also prints the OpenTelemetry spans of the locks, each as
// one line of JSON (it begins with a brace). The spans come after the "listening" lines,
// and before the table of the demonstration.
//
// With -faults the header Bank-Behaviour makes the bank slow, or makes it fail, for one
// payment (see payment.go).
//
// The files: service.go opens the locker and the idempotency engine, and declares the
// rules; store.go opens the stores. operations.go has the operations of the bank, in the
// messages of the proto, and payment.go the steps of a payment. rest.go makes these
// messages of HTTP requests, and frameworks.go puts the rules in front of the routes;
// grpc.go gets the rules from the proto. demo.go and trial.go make the tables. Package
// bank has the accounts; of locks it knows only the fencing tokens.
package main

import (
	"cmp"
	"context"
	"flag"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal starts the drain and restores the default behavior, so that a
	// second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil))) // for the messages of libraries
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// config holds the values of the flags.
type config struct {
	serve                        bool
	addr, gin, echo, grpc, debug string
	redis                        []string // empty: embedded
	postgres                     string   // empty: the ledger is in Redis
	work, wait                   time.Duration
	patience                     time.Duration // for Redis; see embed
	ttl                          time.Duration // of a lock
	lease, retention             time.Duration // of a payment's record
	faults                       bool
	partner                      string // empty: embedded
	otel                         string // where spans go: "" or "stdout"
}

// run does the work of main and returns the exit status: 0 for success, 1 for a
// failure or a broken invariant.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg := parseFlags(args, stderr)
	var err error
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if cfg.serve {
		err = serve(ctx, cfg, log, stdout)
	} else {
		err = demonstrate(ctx, cfg, log, stdout)
	}
	if err != nil {
		log.Error(err.Error())
		return 1
	}
	return 0
}

// anyPort is on the loopback interface, because the bank authenticates no client.
const anyPort = "127.0.0.1:0"

// parseFlags ends the process with status 2 where the command line is wrong.
func parseFlags(args []string, stderr io.Writer) config {
	var cfg config
	var addrs string
	fs := flag.NewFlagSet("payments", flag.ExitOnError)
	fs.SetOutput(stderr)
	fs.BoolVar(&cfg.serve, "serve", false, "keep serving instead of running the demonstration")
	fs.StringVar(&cfg.addr, "addr", "", "`host:port` of net/http; port 0 picks one (default 127.0.0.1:8080 with -serve, else any free port)")
	fs.StringVar(&cfg.gin, "gin", anyPort, "`host:port` of gin; port 0 picks one")
	fs.StringVar(&cfg.echo, "echo", anyPort, "`host:port` of echo; port 0 picks one")
	fs.StringVar(&cfg.grpc, "grpc", anyPort, "`host:port` of gRPC; port 0 picks one")
	fs.StringVar(&cfg.debug, "debug", anyPort, "`host:port` of the debug page, with -serve; port 0 picks one")
	fs.StringVar(&addrs, "redis", "", "`host:port[,...]` of Redis, several for a Cluster (default a server inside this process)")
	fs.StringVar(&cfg.postgres, "postgres", "", "`URL` of a PostgreSQL for the accounts and the records of payments, as postgres://user@host:5432/name (default both are in Redis)")
	fs.DurationVar(&cfg.work, "work", 2*time.Millisecond, "time that the bank works between reading and writing a balance")
	fs.DurationVar(&cfg.ttl, "ttl", 30*time.Second, "lease of a lock; renewed while the handler runs, it is how long a lock outlives its process")
	fs.DurationVar(&cfg.wait, "wait", 5*time.Second, "how long a request waits for its lock before it is refused (423, in gRPC ABORTED); 0 does not wait")
	fs.DurationVar(&cfg.retention, "retention", 0, "how long a payment's answer is kept, and its idempotency key good for it (default 24h with -serve, else 1m)")
	fs.DurationVar(&cfg.lease, "lease", 30*time.Second, "lease of a payment under way: how long its key is refused after its process died")
	fs.BoolVar(&cfg.faults, "faults", false, "let clients steer the bank by the header (in gRPC metadata) "+behaviourHeader+", as in \"delay=800ms,effect,status=500\"")
	fs.StringVar(&cfg.partner, "partner", "", "`URL` of the partner that rates accounts (default a server inside this process)")
	fs.StringVar(&cfg.otel, "otel", "", "where OpenTelemetry spans are printed: stdout (default nowhere)")
	_ = fs.Parse(args) // it ends the process
	if addrs != "" {
		cfg.redis = strings.Split(addrs, ",")
	}
	// The Redis of a demonstration may belong to another application.
	addr, retention := anyPort, time.Minute
	if cfg.serve {
		addr, retention = "127.0.0.1:8080", 24*time.Hour
	}
	cfg.addr, cfg.retention = cmp.Or(cfg.addr, addr), cmp.Or(cfg.retention, retention)
	return cfg
}
