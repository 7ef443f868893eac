//go:build integration && unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
)

// debitItem makes one row for an item.
var debitItem = pgstore.Each(func(ctx context.Context, tx *pgstore.Transaction, _, item string) (string, error) {
	_, err := tx.ExecContext(ctx, "INSERT INTO gathered VALUES ($1)", item)
	return item, err
})

// sendKeyed sends a request with a key to a handler, and returns its status and its answer.
func sendKeyed(t *testing.T, h http.Handler, key string) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return fmt.Sprint(w.Code, " ", w.Body)
}

// A second item of a request would wait for the lock, which its first batch keeps until the request is answered.
func TestARequestDoesNotWaitForTheBatchThatWaitsForIt(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	execute(t, db, "CREATE TABLE gathered (item text)")
	store := newStore(t, db)
	locker, err := core.New(memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	batches := pgstore.Gather(store, locker, debitItem)
	endpoint := httplock.Idempotent(newEngine(t, store))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, err := batches.Do(r.Context(), "account/1", "first")
		if got != "first" || err != nil {
			t.Errorf("the first item: %q, %v", got, err)
		}
		if _, err := batches.Do(r.Context(), "account/1", "second"); !errors.Is(err, core.ErrConfig) {
			t.Errorf("the second item of a request: %v; want an error that matches core.ErrConfig", err)
		}
		_, _ = io.WriteString(w, "paid")
	}))
	if got := sendKeyed(t, endpoint, "k"); got != "200 paid" {
		t.Errorf("%s; want 200 paid: the batch is committed", got)
	}
	if items := read[string](t, db, "SELECT coalesce(string_agg(item, ' '), '') FROM gathered"); items != "first" {
		t.Errorf("the items %q; want the first", items)
	}
}

// Of two items that a request brings at the same time, one waits for the lock. The other is refused at once.
func TestARequestBringsOneItemAtATime(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	execute(t, db, "CREATE TABLE gathered (item text)")
	store := newStore(t, db)
	locker, err := core.New(memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	lease, err := locker.Lock(t.Context(), "account/1")
	if err != nil {
		t.Fatal(err)
	}
	batches := pgstore.Gather(store, locker, debitItem)
	endpoint := httplock.Idempotent(newEngine(t, store))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		waits, outcomes := make(chan struct{}, 2), make(chan error, 2)
		for range 2 {
			go func() {
				_, err := batches.Do(announced{r.Context(), sync.OnceFunc(func() { waits <- struct{}{} })}, "account/1", "paid")
				outcomes <- err
			}()
		}
		<-waits
		select {
		case <-waits:
			t.Error("both items wait for the lock; want one refused at once")
			if err := lease.Release(r.Context()); err != nil {
				t.Error(err)
			}
		case err := <-outcomes:
			if !errors.Is(err, core.ErrConfig) {
				t.Errorf("one of two items: %v; want an error that matches core.ErrConfig", err)
			}
			if err := lease.Release(r.Context()); err != nil {
				t.Error(err)
			}
			if err := <-outcomes; err != nil {
				t.Errorf("the other item: %v; want its result", err)
			}
		}
		_, _ = io.WriteString(w, "paid")
	}))
	if got := sendKeyed(t, endpoint, "k"); got != "200 paid" {
		t.Errorf("%s; want 200 paid", got)
	}
}

// Claims, locks, batches and renewals share one connection: none waits for another with the connection in its hand.
func TestBatchesShareOneConnection(t *testing.T) {
	t.Parallel()
	for name, locks := range map[string]func(s *pgstore.Store) core.Store{
		"locks elsewhere":     func(*pgstore.Store) core.Store { return memstore.New() },
		"locks in the server": func(s *pgstore.Store) core.Store { return s },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := tables(t)
			execute(t, db, "CREATE TABLE gathered (item text)")
			db.SetMaxOpenConns(1)
			store := newStore(t, db)
			locker, err := core.New(locks(store))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = locker.Close(context.Background()) })
			batches := pgstore.Gather(store, locker, debitItem)
			endpoint := httplock.Idempotent(newEngine(t, store))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				key := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
				got, err := batches.Do(r.Context(), "account/"+key[:1], key)
				if err != nil {
					t.Errorf("the item %s: %v", key, err)
				}
				_, _ = io.WriteString(w, got)
			}))
			const keys, each = 3, 4
			var all sync.WaitGroup
			for i := range keys * each {
				all.Go(func() {
					key := fmt.Sprint(i%keys, "-", i)
					if got := sendKeyed(t, endpoint, key); got != "200 "+key {
						t.Errorf("%s; want 200 %s", got, key)
					}
				})
			}
			all.Wait()
			if n := read[int](t, db, "SELECT count(DISTINCT item) FROM gathered"); n != keys*each {
				t.Errorf("%d items; want %d", n, keys*each)
			}
		})
	}
}
