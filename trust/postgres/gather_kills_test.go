//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// killed is an account with debits that four lockers gather, while the server ends connections and clients
// lose answers.
type killed struct {
	t      *testing.T
	admin  *sql.DB
	ends   []http.Handler // one for each locker
	killed atomic.Int64
	resent atomic.Int64
}

// post carries out a batch: a row for each debit, and the balance.
func post(ctx context.Context, exec func(ctx context.Context, query string, args ...any) (sql.Result, error), batch []string) error {
	if _, err := exec(ctx, "INSERT INTO debit SELECT unnest($1::text::text[])", "{"+strings.Join(batch, ",")+"}"); err != nil {
		return err
	}
	_, err := exec(ctx, "UPDATE account SET balance = balance - $1", len(batch))
	return err
}

// newKilled makes the lockers. Without together a batch commits its effects apart from the answers.
func newKilled(t *testing.T, together bool) *killed {
	t.Helper()
	server := pgtest.Start(t, "max_connections=300")
	k := &killed{t: t, admin: server.Open(t)}
	execute(t, k.admin, "CREATE TABLE account (balance bigint); INSERT INTO account VALUES (0); CREATE TABLE debit (key text)")
	migrate(t, newStore(t, k.admin))
	for range 4 {
		db := connect(t, server.DSN())
		db.SetMaxOpenConns(40)
		db.SetMaxIdleConns(40)
		store := newStore(t, db)
		locker, err := core.New(store)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = locker.Close(ctx)
		})
		var do func(ctx context.Context, key, item string) (string, error)
		if together {
			do = pgstore.Gather(store, locker, func(ctx context.Context, tx *pgstore.Transaction, _ string, batch []string) ([]string, error) {
				return batch, post(ctx, tx.ExecContext, batch)
			}).Do
		} else {
			do = gather.New(locker, func(ctx context.Context, _ string, batch []string) ([]string, error) {
				tx, err := db.BeginTx(ctx, nil)
				if err != nil {
					return nil, err
				}
				defer func() { _ = tx.Rollback() }()
				if err := post(ctx, tx.ExecContext, batch); err != nil {
					return nil, err
				}
				return batch, tx.Commit()
			}).Do
		}
		k.ends = append(k.ends, httplock.Idempotent(newEngine(t, store))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			key := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
			if _, err := do(r.Context(), "account/1", key); err != nil {
				http.Error(w, "try again", http.StatusInternalServerError)
				return
			}
			if !together && rand.IntN(50) == 0 {
				http.Error(w, "a failure after the commit", http.StatusInternalServerError)
				return
			}
			_, _ = io.WriteString(w, key+" "+strconv.FormatInt(rand.Int64(), 36)) // no two runs give one answer
		})))
	}
	return k
}

// debit sends a request until it has an answer that it does not lose, and once more.
func (k *killed) debit(key string) {
	first := ""
	for tries := 0; tries < 2000; tries++ {
		r := httptest.NewRequestWithContext(k.t.Context(), http.MethodPost, "/", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		k.ends[rand.IntN(len(k.ends))].ServeHTTP(w, r)
		switch {
		case w.Code != http.StatusOK:
			k.resent.Add(1)
			time.Sleep(time.Duration(1+rand.IntN(50)) * time.Millisecond)
		case first == "":
			if first = w.Body.String(); rand.IntN(10) == 0 {
				continue // the answer is lost, and the client sends the request again
			}
			return
		case w.Body.String() != first:
			k.t.Errorf("%s: the answers %q and %q; want the first again", key, first, w.Body)
			return
		default:
			return
		}
	}
	k.t.Errorf("%s: no answer", key)
}

// run makes n debits by 128 clients, and returns how many were made twice, and are missing.
func (k *killed) run(n int) (twice, missing, balance int64) {
	ctx, stop := context.WithCancel(k.t.Context())
	var killing, clients sync.WaitGroup
	killing.Go(func() {
		for ctx.Err() == nil {
			var ended int64
			err := k.admin.QueryRowContext(ctx, "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity "+
				"WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 3) AS victims").Scan(&ended)
			if err != nil && ctx.Err() == nil {
				k.t.Error(err)
			}
			k.killed.Add(ended)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	var next atomic.Int64
	for range 128 {
		clients.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				k.debit(fmt.Sprint("d", i))
			}
		})
	}
	clients.Wait()
	stop()
	killing.Wait()
	row := k.admin.QueryRowContext(k.t.Context(), "SELECT (SELECT count(*) FROM (SELECT key FROM debit GROUP BY key HAVING count(*) > 1) AS d), "+
		"$1 - (SELECT count(DISTINCT key) FROM debit), (SELECT balance FROM account)", n)
	if err := row.Scan(&twice, &missing, &balance); err != nil {
		k.t.Fatal(err)
	}
	k.t.Logf("%d debits, %d connections ended, %d requests sent again: %d twice, %d missing", n, k.killed.Load(), k.resent.Load(), twice, missing)
	return twice, missing, balance
}

// Four lockers gather idempotent debits while connections end at any point and clients lose answers. Each
// debit is made once, and each retry gets the first answer.
func TestGatheredDebitsAreMadeOnceWhileConnectionsEnd(t *testing.T) {
	n := killedDebits
	if twice, missing, balance := newKilled(t, true).run(n); twice != 0 || missing != 0 || balance != -int64(n) {
		t.Errorf("%d debits made twice, %d missing, the balance %d; want none, and %d", twice, missing, balance, -n)
	}
}

// The control: with effects that are not committed with their answers, the same faults make debits twice.
func TestDebitsApartFromTheirAnswersAreMadeTwice(t *testing.T) {
	if twice, _, _ := newKilled(t, false).run(1000); twice == 0 {
		t.Error("no debit was made twice: the faults above prove nothing")
	}
}
