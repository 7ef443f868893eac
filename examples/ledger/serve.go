package main

import (
	"context"
	"crypto/subtle"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// The program may create tables in the database. To start a server of your own, with
// the programs of the package postgresql (on Debian they are in
// /usr/lib/postgresql/15/bin, and do not run as root):
//
//	initdb -D /tmp/ledger -U postgres -A trust
//	postgres -D /tmp/ledger -p 5433 -k /tmp
//
// Several processes, with different -addr, serve one ledger.
var (
	addr     = flag.String("addr", "localhost:8080", "where to listen")
	postgres = flag.String("postgres", os.Getenv("DATABASE_URL"), "`URL` of the database; without it DATABASE_URL")
	lease    = flag.Duration("lease", 30*time.Second, "how long a process that died keeps a retry waiting")
)

func main() {
	flag.Parse()
	if *postgres == "" {
		log.Fatal("no database: give -postgres, or set DATABASE_URL, as postgres://user@localhost:5432/name")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := connect(ctx); err != nil {
		log.Fatal(err)
	}
}

//go:embed schema.sql
var schema string

// connect makes the tables of the ledger in the database, and runs the service on it.
func connect(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, *postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	return run(ctx, pool)
}

// serve listens until ctx ends, and then answers the requests that are under way.
func serve(ctx context.Context, handler http.Handler) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", *addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	fmt.Printf("curl -u alice:secret http://%s/payments -H 'Idempotency-Key: k1' -d '{\"to\": \"bob\", \"amount\": 5}'\n", listener.Addr())
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	return errors.Join(err, within(ctx, 20*time.Second, server.Shutdown))
}

// within calls f with a context that ends after that time, and not with ctx.
func within(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d)
	defer cancel()
	return f(ctx)
}

// userKey is the context key of the user, which authentication stores. The name of a user is
// the name of an account.
type userKey struct{}

func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user == "" || subtle.ConstantTimeCompare([]byte(password), []byte("secret")) == 0 {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "log in", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}
