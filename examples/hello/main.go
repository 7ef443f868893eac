// Command hello takes payments from accounts, one after the other for each account. A payment
// that is sent twice is made once. It is the program of the README.
package main

import (
	"fmt"
	"log"
	"net/http"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
)

func main() {
	store := memstore.New() // several processes share Redis, PostgreSQL, etcd, ZooKeeper or NATS
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	engine, err := idempotency.New(store, idempotency.Global()) // with users: idempotency.Scope
	if err != nil {
		log.Fatal(err)
	}
	alone := httplock.Guard(core.Serialize(locker, "account/{id}")) // one request for an account at a time
	once := httplock.Idempotent(engine)                             // a request that comes again gets the first answer

	balances := map[string]*int{"42": new(100)}
	pay := func(w http.ResponseWriter, r *http.Request) {
		balance, found := balances[r.PathValue("id")]
		if !found {
			http.NotFound(w, r)
		} else if err := idempotency.MarkEffect(r.Context()); err != nil { // before money moves
			http.Error(w, "try again", http.StatusServiceUnavailable)
		} else {
			*balance -= 30
			fmt.Fprintf(w, "paid 30, balance %d\n", *balance)
		}
	}
	http.Handle("POST /accounts/{id}/payments", once(alone(http.HandlerFunc(pay))))
	log.Fatal(http.ListenAndServe("localhost:8080", nil))
}
