package interlock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/httplock"
)

// The code of the README and of the package comments that stands in no program
// or Example is here, so that it is compiled. docs_test.go compares.

func _() {
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{"localhost:6379"}})
	store, err := redisstore.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	debit := core.Serialize(locker, "account/{id}")

	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/debit", httplock.Serialize(debit)(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			token := core.LeaseFromContext(r.Context()).Token() // fences what you write
			fmt.Fprintln(w, "alone with account", r.PathValue("id"), "token", token)
		})))
}

func _(locker *core.Locker) {
	transfer := core.Serialize(locker, "account/{from}", core.And("account/{to}"))
	_ = transfer
}

func _(ctx context.Context, locker *core.Locker, settle func(context.Context) error) {
	err := locker.Do(ctx, "account/42", func(ctx context.Context) error {
		return settle(ctx)
	})
	_ = err
}
