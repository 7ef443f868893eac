//go:build long

package river_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/riverlock"
	"github.com/interlock-go/interlock/trust/internal/child"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// ordersEnv holds the orders of a process.
const ordersEnv = "RIVER_ORDERS"

// orders are the orders to a process.
type orders struct {
	ID    string
	DSN   string
	Redis string // empty: locks on PostgreSQL
	AtOne int    // how many jobs of a key run at once
}

const (
	workers = 4 // of a process
	lease   = 4 * time.Second
)

func TestMain(m *testing.M) {
	if text := os.Getenv(ordersEnv); text != "" {
		if err := work(text); err != nil {
			panic(err)
		}
		return
	}
	pgtest.Main(m)
}

// launch starts a process that works jobs: this program again.
func launch(o orders) (*child.Process, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ordersEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	return child.Start(cmd, syscall.SIGKILL)
}

// debit is the arguments of a job.
type debit struct {
	Account string `json:"account"`
}

func (debit) Kind() string { return "debit" }

// worker works jobs, and logs each step.
type worker struct {
	river.WorkerDefaults[debit]
	orders orders
	db     *sql.DB // of what the test reads
	store  *pgstore.Store
	rule   *core.Guard
	engine *idempotency.Engine
}

func (w *worker) Middleware(*rivertype.JobRow) []rivertype.WorkerMiddleware {
	return []rivertype.WorkerMiddleware{
		river.WorkerMiddlewareFunc(w.note),
		riverlock.Guard(w.rule, riverlock.Snooze(200*time.Millisecond, time.Second)),
		riverlock.Idempotent(w.engine, riverlock.Snooze(200*time.Millisecond, time.Second)),
	}
}

func (w *worker) NextRetry(*river.Job[debit]) time.Time {
	return time.Now().Add(200 * time.Millisecond)
}

type ranKey struct{}

// note writes how long each attempt took, and whether the job ran.
func (w *worker) note(ctx context.Context, job *rivertype.JobRow, next func(context.Context) error) error {
	begin, ran := time.Now(), false
	err := next(context.WithValue(ctx, ranKey{}, &ran))
	_, failed := w.db.ExecContext(ctx, "INSERT INTO attempt (job, ran, took) VALUES ($1, $2, $3)",
		job.ID, ran, time.Since(begin).Seconds())
	if err == nil {
		err = failed
	}
	return err
}

// Work makes the debit, and ends its job, in one commit. It writes from when to when it runs, with
// the clock that all processes have.
func (w *worker) Work(ctx context.Context, job *river.Job[debit]) (err error) {
	*ctx.Value(ranKey{}).(*bool) = true
	var run int64
	err = w.db.QueryRowContext(ctx, "INSERT INTO run (job, account, process, began) VALUES ($1, $2, $3, $4) RETURNING id",
		job.ID, job.Args.Account, w.orders.ID, time.Now()).Scan(&run)
	if err != nil {
		return err
	}
	// A run without an end is a run that a kill has cut off.
	defer func() {
		_, failed := w.db.ExecContext(context.WithoutCancel(ctx), "UPDATE run SET ended = $2 WHERE id = $1", run, time.Now())
		err = errors.Join(err, failed)
	}()
	select {
	case <-time.After(time.Duration(200+rand.IntN(400)) * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return w.debit(ctx, job)
}

func (w *worker) debit(ctx context.Context, job *river.Job[debit]) error {
	return w.store.InTx(ctx, func(tx *pgstore.Transaction) error {
		own, err := pgxstore.TxOn(tx.Conn())
		if err != nil {
			return err
		}
		if _, err := own.Exec(ctx, "INSERT INTO ledger (job, account) VALUES ($1, $2)", job.ID, job.Args.Account); err != nil {
			return err
		}
		_, err = river.JobCompleteTx[*riverpgxv5.Driver](ctx, own, job)
		return err
	})
}

// work is a process. It works jobs until it is killed.
func work(text string) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, o.DSN+" pool_max_conns=16")
	if err != nil {
		return err
	}
	db := pgxstore.DB(pool)
	store, err := pgstore.New(db)
	if err != nil {
		return err
	}
	var locks driver.Store = store
	if o.Redis != "" {
		if locks, err = redisstore.New(redis.NewClient(&redis.Options{Addr: o.Redis})); err != nil {
			return err
		}
	}
	locker, err := core.New(locks, core.Watchdog(lease))
	if err != nil {
		return err
	}
	engine, err := idempotency.New(store, idempotency.Global(), idempotency.Lease(lease))
	if err != nil {
		return err
	}
	rule := core.Serialize(locker, "account/{account}", core.Wait(0))
	if o.AtOne > 1 {
		rule = core.AtMost(locker, o.AtOne, "account/{account}", core.Wait(0))
	}
	client, err := o.client(pool, &worker{orders: o, db: db, store: store, rule: rule, engine: engine})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	select {}
}

func (o orders) client(pool *pgxpool.Pool, w *worker) (*river.Client[pgxTx], error) {
	all := river.NewWorkers()
	river.AddWorker(all, w)
	return river.NewClient(riverpgxv5.New(pool), &river.Config{
		ID: o.ID, Workers: all, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		FetchCooldown: 50 * time.Millisecond, FetchPollInterval: 100 * time.Millisecond,
		JobTimeout: 10 * time.Second, RescueStuckJobsAfter: 12 * time.Second,
		Logger: slog.New(slog.DiscardHandler), // errors are on purpose
	})
}
