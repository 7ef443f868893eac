//go:build long

package postgres_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/trust/internal/child"
)

// ordersEnv holds the orders of a process of the service; see TestMain.
const ordersEnv = "TRANSACTIONS_ORDERS"

// orders are the orders to a process.
type orders struct {
	Variant string
	DSN     string
	Redis   string
	Crash   float64 // how probable a crash is at each step
}

// The variants.
const (
	inTransaction  = "PostgreSQL, in the transaction"
	byJob          = "PostgreSQL, handed over to a job"
	ownTransaction = "PostgreSQL, a commit of its own"
	onRedis        = "Redis"
	onRedisMarked  = "Redis, marked"
	bare           = "no record"
)

// process is a running service.
type process struct {
	*child.Process
	addr string
}

// launch starts a service: this program again.
func launch(o orders) (*process, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ordersEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd.Stdout = in
	p, err := child.Start(cmd, syscall.SIGKILL)
	if err := errors.Join(err, in.Close()); err != nil {
		return nil, err
	}
	// Its only line is its address.
	line, err := bufio.NewReader(out).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = errors.New("the service has said nothing")
	}
	return &process{p, strings.TrimSpace(line)}, err
}

// service in a process.
type payer struct{ orders }

// step is a step of a payment. The process may die there.
func (p payer) step() {
	if rand.Float64() < p.Crash {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until it arrives
	}
}

// atCommit is a step before and after the commit of a transaction.
func (p payer) atCommit(text []byte) error {
	if bytes.Contains(text, commit) {
		p.step()
	}
	return nil
}

// serve runs the service. It does not return unless it fails.
func serve(text string) error {
	var p payer
	if err := json.Unmarshal([]byte(text), &p.orders); err != nil {
		return err
	}
	ctx := context.Background()
	// The commits of claims are no "commit": they have no separate transaction.
	db, err := (&wire{sent: p.atCommit, answered: p.atCommit}).open(p.DSN + " application_name=payments")
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(12)
	handler, err := p.endpoint(db)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return (&http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}).Serve(listener)
}

// endpoint is the variant's endpoint for a payment.
func (p payer) endpoint(db *sql.DB) (http.Handler, error) {
	var store record.Store
	var err error
	options := []idempotency.Option{idempotency.Global(), idempotency.Lease(claimLease)}
	switch p.Variant {
	case inTransaction:
		store, err = pgstore.New(db)
		options = append(options, idempotency.Transactional())
	case byJob, ownTransaction:
		store, err = pgstore.New(db)
	case onRedis, onRedisMarked:
		store, err = redisstore.New(redis.NewClient(&redis.Options{Addr: p.Redis}))
	}
	if err != nil {
		return nil, err
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if err := p.pay(r.Context(), db, key); err != nil {
			http.Error(w, "failed", http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintf(w, "paid %s", key) // the client asks again
	})
	if store == nil {
		return handler, nil
	}
	engine, err := idempotency.New(crashing{store, p}, options...)
	if err != nil {
		return nil, err
	}
	if p.Variant == byJob {
		handler = p.accept
		go p.work(db, engine)
	}
	return httplock.Idempotent(engine)(handler), nil
}

// pay makes a payment.
func (p payer) pay(ctx context.Context, db *sql.DB, key string) error {
	const text = "INSERT INTO ledger (payment) VALUES ($1::text)"
	switch p.Variant {
	case inTransaction:
		tx, err := pgstore.Tx(ctx)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, text, key); err != nil {
			return err
		}
		p.step()
		return nil
	case onRedisMarked:
		if err := idempotency.MarkEffect(ctx); err != nil {
			return err
		}
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, text, key); err != nil {
		return err
	}
	p.step()
	return tx.Commit()
}

// crashing is a store. The process may die during its claims.
type crashing struct {
	record.Store
	payer
}

func (c crashing) Claim(ctx context.Context, ask record.ClaimRequest) (record.ClaimReply, error) {
	c.step()
	rep, err := c.Store.Claim(ctx, ask)
	c.step()
	return rep, err
}

// Unwrap lets pgstore find its store.
func (c crashing) Unwrap() record.Store { return c.Store }

func init() {
	before = append(before, func() {
		if text := os.Getenv(ordersEnv); text != "" {
			fmt.Fprintln(os.Stderr, serve(text)) // it returns only if it fails
			os.Exit(1)
		}
	})
}
