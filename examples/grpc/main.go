// Command grpc is a complete gRPC service, with authentication, gzip, recovery, time
// limits and a graceful end. Debits of one account run one after the other, as the
// proto declares. A debit with an idempotency key (metadata idempotency-key) runs once
// for each key. Two processes on one Redis, with different -addr, serve one bank.
// examples/production has metrics, traces, a debug page and readiness as well.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // for clients that ask for it
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/examples/grpc/bankpb"
	"github.com/interlock-go/interlock/examples/internal/bank"
	"github.com/interlock-go/interlock/grpclock"
)

var (
	addr      = flag.String("addr", "localhost:50051", "where to listen")
	redisAddr = flag.String("redis", "localhost:6379", "Redis to use")
	lease     = flag.Duration("lease", 30*time.Second, "how long a process that died keeps others waiting")
	limit     = flag.Duration("limit", 10*time.Second, "how long a call may wait for its lock")
	work      = flag.Duration("work", 0, "how long the bank thinks about each request")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(listener, ctx.Done()); err != nil {
		log.Fatal(err)
	}
}

// run serves until the process receives a signal to stop.
func run(listener net.Listener, stop <-chan struct{}) error {
	rdb := redis.NewClient(&redis.Options{Addr: *redisAddr, ContextTimeoutEnabled: true, MaxRetries: -1})
	store, err := redisstore.New(rdb)
	if err != nil {
		return err
	}
	locker, err := core.New(store, core.Watchdog(*lease))
	if err != nil {
		return err
	}
	engine, err := idempotency.New(store, idempotency.Lease(*lease), idempotency.Scope(core.FromContext(userKey{})))
	if err != nil {
		return err
	}

	rules, err := grpclock.FromProto(locker) // of all methods with the option
	if err != nil {
		return err
	}
	// Calls with a key are idempotent. All calls run under the lock of the proto.
	debit := engine.With(idempotency.Optional(), idempotency.Under(rules[bankpb.Bank_Debit_FullMethodName]))
	methods := grpclock.Methods{bankpb.Bank_Debit_FullMethodName: debit}

	protection := grpclock.Protect(rules, methods)
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(recovered, limited, authenticate, protection.Unary()),
		grpc.ChainStreamInterceptor(protection.Stream()), // the bank has no streams yet
	)
	bankpb.RegisterBankServer(server, service{bank: bank.Bank{Redis: rdb, Work: *work}})
	if err := protection.Validate(server); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err = <-failed:
	case <-stop:
	}
	return errors.Join(err, // in this order, each with a time limit of its own
		within(time.Minute, func(ctx context.Context) error { return shutdown(ctx, server) }),
		within(time.Minute, engine.Close),
		within(*limit, locker.Close),
		store.Close(),
		rdb.Close())
}

// within calls f with a context that ends after that time.
func within(d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return f(ctx)
}

// shutdown waits until the calls under way have ended, or until ctx ends.
func shutdown(ctx context.Context, server *grpc.Server) error {
	defer context.AfterFunc(ctx, server.Stop)()
	server.GracefulStop()
	return ctx.Err()
}

type service struct {
	bankpb.UnimplementedBankServer
	bank bank.Bank
}

func (s service) Debit(ctx context.Context, r *bankpb.DebitRequest) (*bankpb.DebitResponse, error) {
	// After the mark, no call repeats a debit with the same key, even if this process
	// dies.
	if err := idempotency.MarkEffect(ctx); err != nil {
		return nil, status.Error(codes.Unavailable, "not now")
	}
	balance, err := s.bank.Debit(ctx, r.GetAccountId())
	if err != nil {
		return nil, status.Error(codes.Internal, "the bank has failed")
	}
	return &bankpb.DebitResponse{Balance: balance}, nil
}

// userKey is the context key under which authentication stores the user.
type userKey struct{}

func authenticate(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	users := map[string]string{"Bearer secret-of-alice": "alice", "Bearer secret-of-bob": "bob"}
	token := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(token) != 1 || users[token[0]] == "" {
		return nil, status.Error(codes.Unauthenticated, "log in")
	}
	return handler(context.WithValue(ctx, userKey{}, users[token[0]]), req)
}

func limited(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	return handler(ctx, req)
}

func recovered(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	defer func() {
		if v := recover(); v != nil {
			log.Println("panic in", info.FullMethod, v)
			reply, err = nil, status.Error(codes.Internal, "a mistake of ours")
		}
	}()
	return handler(ctx, req)
}
