// Command grpc is a gRPC server whose proto says which calls exclude each other.
// Started twice on one Redis, with different -addr, it is one bank.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/examples/grpc/bankpb"
	"github.com/interlock-go/interlock/grpclock"
)

func main() {
	addr := flag.String("addr", "localhost:50051", "where to listen")
	redisAddr := flag.String("redis", "", "Redis to use (default: one inside this process)")
	flag.Parse()
	if *redisAddr == "" {
		mini := must(miniredis.Run())
		mini.ClockTTL(true) // or nothing ever expires
		*redisAddr = mini.Addr()
	}
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt)
	serve(ctx, *addr, *redisAddr, func(a net.Addr) { log.Println("listening on", a) })
}

func serve(ctx context.Context, addr, redisAddr string, ready func(net.Addr)) {
	rdb := redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true})
	store := must(redisstore.New(rdb))
	locker := must(core.New(store))
	rules := must(grpclock.FromProto(locker)) // of all methods with the option
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(grpclock.UnaryServerInterceptor(rules)))
	bankpb.RegisterBankServer(server, bank{rdb: rdb})
	listener := must(net.Listen("tcp", addr))
	ready(must(listener.Addr(), rules.Validate(server)))
	context.AfterFunc(ctx, server.GracefulStop)
	must(0, errors.Join(server.Serve(listener), locker.Close(context.WithoutCancel(ctx)), store.Close(), rdb.Close())) //nolint:contextcheck // they clean up on their own
}

type bank struct {
	bankpb.UnimplementedBankServer
	rdb *redis.Client
}

// Debit reads and writes in two steps; the lock keeps others from coming between.
func (b bank) Debit(ctx context.Context, r *bankpb.DebitRequest) (*bankpb.DebitResponse, error) {
	balance, err := b.rdb.Get(ctx, r.GetAccountId()).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	balance -= r.GetAmount()
	return &bankpb.DebitResponse{Balance: balance}, b.rdb.Set(ctx, r.GetAccountId(), balance, 0).Err()
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
