//go:build long && unix

package pgx_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/trust/internal/pgbouncertest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func TestAListenerBehindAPoolOfTransactionsSaysThatItHearsNothing(t *testing.T) {
	for _, mode := range []string{pgbouncertest.Transaction, pgbouncertest.Statement} {
		t.Run(mode, func(t *testing.T) {
			direct := pgtest.DSN(t)
			pool := newPool(t, pgbouncertest.Start(t, direct, mode))
			begin := time.Now()
			e := listen(t, pool, "done")
			e.hears(polling)
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("it said so after %v", took)
			}
			eventually(t, "the log says so", func() bool { return e.log.count("PgBouncer") > 0 })
			e.nothing(time.Second)
			if n := e.log.count("level="); n != 1 {
				t.Errorf("%d lines in the log; want 1", n)
			}
			// With a pool of its own it hears what is notified through PgBouncer.
			own := listen(t, newPool(t, direct, func(config *pgxpool.Config) { config.MaxConns = 1 }), "done")
			own.hears(listening)
			exec(t, pool, "SELECT pg_notify('done', 'through')")
			own.hears(heard{payload: "through"})
		})
	}
}

func TestAListenerBehindAPoolOfSessionsHears(t *testing.T) {
	pool := newPool(t, pgbouncertest.Start(t, pgtest.DSN(t), pgbouncertest.Session))
	e := listen(t, pool, "done", pgxstore.CheckEvery(100*time.Millisecond))
	e.hears(listening)
	e.nothing(time.Second) // it goes on hearing itself
	exec(t, pool, "SELECT pg_notify('done', 'a')")
	e.hears(heard{payload: "a"})
}

// TestBehindPgBouncer has two processes of one service behind a pooler in transaction
// mode. There LISTEN hears nothing, and duplicates look by themselves.
func TestBehindPgBouncer(t *testing.T) {
	direct := pgtest.DSN(t)
	dsn := pgbouncertest.Start(t, direct, pgbouncertest.Transaction, "default_pool_size = 4")
	pools := []*pgxpool.Pool{newPool(t, dsn), newPool(t, dsn)}
	var processes []http.Handler
	for _, pool := range pools {
		processes = append(processes, endpoint(t, pool, pays))
	}
	var work sync.WaitGroup
	for n := range 8 {
		work.Go(func() {
			for i := range 15 {
				// Each key goes to both processes, more than once.
				if w := send(t, processes[(n+i)%2], fmt.Sprint("k", n/4*15+i)); w.Code != 200 {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			}
		})
	}
	work.Wait()
	if payments, keys := paid(t, pools[0]); payments != 30 || keys != 30 {
		t.Errorf("%d payments of %d keys; want 30", payments, keys)
	}
}
