// Command etcd is a complete service on net/http and etcd, with time limits and a graceful
// end. Debits of one account run one after the other, also while etcd changes its leader, and
// the fencing token refuses a late write. The command uses an etcd that runs already. Two
// processes on one etcd, with different -addr, serve one bank.
//
//	curl -X POST localhost:8080/accounts/42/debit
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/etcdstore"
	"github.com/interlock-go/interlock/httplock"
)

var (
	addr  = flag.String("addr", "localhost:8080", "where to listen")
	etcd  = flag.String("etcd", "localhost:2379", "the members of etcd to use, separated by commas")
	lease = flag.Duration("lease", 30*time.Second, "how long a process that died keeps others waiting")
	limit = flag.Duration("limit", 10*time.Second, "how long a client waits for its answer")
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
	client, err := etcdstore.Connect(clientv3.Config{Endpoints: strings.Split(*etcd, ",")})
	if err != nil {
		return err
	}
	store, err := etcdstore.New(client)
	if err != nil {
		return err
	}
	locker, err := core.New(store, core.Watchdog(*lease))
	if err != nil {
		return err
	}
	if err := within(*limit, func(ctx context.Context) error {
		unsafe, err := store.Check(ctx)
		log.Printf("what is unsafe about this etcd: %q", unsafe)
		return err
	}); err != nil {
		log.Print("etcd does not answer yet: ", err)
	}

	debit := core.Serialize(locker, "account/{id:int}") // the handler parses a number, so 42 and 042 are one account
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit)(bank{client}))

	// The lock is inside the time limit: a handler that continues after the limit
	// keeps its lock.
	server := &http.Server{
		Handler:      http.TimeoutHandler(mux, *limit, "too slow"),
		ReadTimeout:  *limit,
		WriteTimeout: 2 * *limit,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err = <-failed:
	case <-stop:
	}
	return errors.Join(err, // in this order, each with its own time limit
		within(2**limit, server.Shutdown),
		within(*limit, locker.Close),
		store.Close(),
		client.Close())
}

// within calls f with a context that ends after that time.
func within(d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return f(ctx)
}

// bank keeps balances in etcd, each with the token of its writer's lock.
type bank struct{ client *clientv3.Client }

func (b bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64) // the pattern of the lock lets nothing else in
	balance, err := b.debit(r.Context(), fmt.Sprint("bank/", id))
	if err != nil {
		log.Print("a debit has failed: ", err)
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprint(w, balance)
}

// debit takes 1 from an account, unless another request wrote it since, or has a later token.
func (b bank) debit(ctx context.Context, name string) (balance int64, err error) {
	got, err := b.client.Get(ctx, name)
	if err != nil {
		return 0, err
	}
	own, last, revision := core.LeaseFromContext(ctx).Token(), int64(0), int64(0)
	for _, kv := range got.Kvs {
		revision = kv.ModRevision
		if _, err := fmt.Sscan(string(kv.Value), &last, &balance); err != nil {
			return 0, err
		}
	}
	if last > own {
		return 0, errors.New("the lock was lost, and a later holder has written")
	}
	balance--
	wrote, err := b.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(name), "=", revision)).
		Then(clientv3.OpPut(name, fmt.Sprint(own, " ", balance))).Commit()
	if err == nil && !wrote.Succeeded {
		err = errors.New("the account was written meanwhile")
	}
	return balance, err
}
