// Command nethttp is a net/http server whose debits of one account run one after the
// other. Started twice on one Redis, with different -addr, it is one bank.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/httplock"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "where to listen")
	redisAddr := flag.String("redis", "", "Redis to use (default: one inside this process)")
	flag.Parse()
	serve(context.Background(), *addr, *redisAddr, func(a net.Addr) { log.Printf("try curl -X POST http://%v/accounts/alice/debit", a) })
}

func serve(ctx context.Context, addr, redisAddr string, ready func(net.Addr)) {
	if redisAddr == "" {
		embedded := must(miniredis.Run())
		defer embedded.Close()
		embedded.ClockTTL(true) // or nothing ever expires
		redisAddr = embedded.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true, MaxRetries: -1})
	store := must(redisstore.New(rdb))
	locker := must(core.New(store))
	debit := core.Serialize(locker, "account/{id}")
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/debit", httplock.Serialize(debit)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if balance, err := debitOne(r.Context(), rdb, r.PathValue("id")); err != nil {
			http.Error(w, "no database", http.StatusBadGateway)
		} else {
			_, _ = fmt.Fprintln(w, balance)
		}
	})))
	listener := must(net.Listen("tcp", addr))
	ready(listener.Addr())
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(listener) }()
	<-ctx.Done()
	must(0, errors.Join(server.Shutdown(context.Background()), locker.Close(context.Background()), store.Close(), rdb.Close())) //nolint:contextcheck // ctx has ended
}

// debitOne reads and writes in two steps; the lock keeps others from coming between.
func debitOne(ctx context.Context, rdb *redis.Client, id string) (balance int64, err error) {
	balance, err = rdb.Get(ctx, id).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	return balance - 1, rdb.Set(ctx, id, balance-1, 0).Err()
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
