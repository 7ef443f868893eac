//go:build integration && unix

package pgx_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// endpoint makes an idempotent endpoint on a pool, as a process has it.
func endpoint(t *testing.T, pool *pgxpool.Pool, h http.HandlerFunc, opts ...pgstore.Option) http.Handler {
	t.Helper()
	store, err := pgxstore.New(pool, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "CREATE TABLE IF NOT EXISTS ledger (payment text)"); err != nil {
		t.Fatal(err)
	}
	engine, err := idempotency.New(store, idempotency.Global(), idempotency.Transactional(), idempotency.WaitReplay(patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := engine.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return httplock.Idempotent(engine)(h)
}

// send sends a request with a key.
func send(t *testing.T, h http.Handler, key string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// pays makes a payment through pgx, and leaves as programs do that end their own
// transactions.
func pays(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	tx, err := pgxstore.Tx(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = tx.Rollback(ctx) }()
	batch := &pgx.Batch{}
	batch.Queue("INSERT INTO ledger VALUES ($1)", r.Header.Get("Idempotency-Key"))
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if strings.HasPrefix(r.Header.Get("Idempotency-Key"), "fails") {
		http.Error(w, "no", http.StatusInternalServerError)
	}
}

// paid returns how many payments there are, and of how many keys.
func paid(t *testing.T, pool *pgxpool.Pool) (payments, keys int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT payment) FROM ledger").Scan(&payments, &keys); err != nil {
		t.Fatal(err)
	}
	return payments, keys
}

func TestAHandlerUsesItsTransactionThroughPgx(t *testing.T) {
	pool := newPool(t, pgtest.DSN(t))
	h := endpoint(t, pool, pays)
	for _, c := range []struct {
		key              string
		status, payments int
		replayed         string
	}{{"a", 200, 1, ""}, {"a", 200, 1, "true"}, {"fails", 500, 1, ""}, {"fails", 500, 1, ""}, {"b", 200, 2, ""}} {
		w := send(t, h, c.key)
		payments, _ := paid(t, pool)
		if w.Code != c.status || payments != c.payments || w.Header().Get("Idempotent-Replayed") != c.replayed {
			t.Errorf("%s: %d %s, replayed %q, %d payments; want %+v", c.key, w.Code, w.Body, w.Header().Get("Idempotent-Replayed"), payments, c)
		}
	}
}

func TestTxOutsideOfARequest(t *testing.T) {
	if _, err := pgxstore.Tx(t.Context()); !errors.Is(err, idempotency.ErrNoAttempt) {
		t.Errorf("Tx returns %v", err)
	}
}

// TestADuplicateInAnotherProcessIsWoken has duplicates wait for requests of another pool.
// Without a notification each would look once a second.
func TestADuplicateInAnotherProcessIsWoken(t *testing.T) {
	dsn := pgtest.DSN(t)
	var waits []time.Duration
	var mu sync.Mutex
	done := make(map[string]time.Time)
	begun := make(chan struct{})
	finish := make(chan struct{})
	first := endpoint(t, newPool(t, dsn), func(w http.ResponseWriter, r *http.Request) {
		pays(w, r)
		begun <- struct{}{}
		<-finish
		mu.Lock()
		defer mu.Unlock()
		done[r.Header.Get("Idempotency-Key")] = time.Now()
	})
	other := newPool(t, dsn)
	second := endpoint(t, other, func(http.ResponseWriter, *http.Request) { t.Error("the duplicate runs the handler") })
	// Who hears nothing looks again a second later, or when the lease ends. On a busy machine
	// some of those that are woken are slow as well, and then there are more of them.
	const soon = 600 * time.Millisecond
	for n, woken := 0, 0; n < 9 || n < 30 && woken < 3; n++ {
		key := fmt.Sprint("k", n)
		var work sync.WaitGroup
		work.Go(func() { send(t, first, key) })
		<-begun
		work.Go(func() {
			if w := send(t, second, key); w.Code != 200 || w.Header().Get("Idempotent-Replayed") != "true" {
				t.Errorf("%s: %d %s", key, w.Code, w.Body)
			}
			mu.Lock()
			defer mu.Unlock()
			waits = append(waits, time.Since(done[key]))
		})
		// Not before the duplicate waits.
		waiting := false
		for end := time.Now().Add(patience); !waiting && time.Now().Before(end); {
			if err := other.QueryRow(t.Context(), "SELECT waits FROM interlock_record WHERE state = 'c'").Scan(&waiting); err != nil {
				t.Fatal(err)
			}
		}
		if !waiting {
			t.Fatal("no duplicate has asked for a notification")
		}
		// It looks once more when it has begun to wait, which nothing shows. One that finds
		// the answer then needs no notification.
		time.Sleep(200 * time.Millisecond)
		finish <- struct{}{}
		work.Wait()
		if waits[n] <= soon {
			woken++
		}
	}
	slices.Sort(waits)
	if third := waits[2]; third > soon {
		t.Errorf("all but two of the duplicates waited for %v and more after the end of their requests", third)
	}
}
