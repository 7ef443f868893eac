//go:build long

package transactions

import (
	"database/sql"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
)

// TestTheSizeOfRecords looks at the table after 10,000 requests, 800 with -short: what it
// takes, and whether room that became free is used again. docs/operations.md has what it
// logs.
func TestTheSizeOfRecords(t *testing.T) {
	records := 10_000
	if testing.Short() {
		records = 800
	}
	db, store := open(t)
	db.SetMaxOpenConns(8)
	engine, err := idempotency.New(store, idempotency.Global(), idempotency.Transactional())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close(t.Context()) }()
	s := &service{T: t, db: db, store: store}
	s.handler = httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := pgstore.Tx(r.Context()); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		say(w, `{"payment": 4711, "from": "alice", "to": "bob", "amount": 2500, "currency": "EUR", "state": "accepted"}`) // 103 bytes
	}))
	fill := func(name string) (bytes int) {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for j := range records / 8 {
					key := fmt.Sprintf("%s-%d-%d", name, i, j)
					resp := s.send(key)
					for end := time.Now().Add(time.Minute); resp.StatusCode != http.StatusCreated && time.Now().Before(end); resp = s.send(key) {
						time.Sleep(20 * time.Millisecond) // PostgreSQL had no time for it
					}
					if resp.StatusCode != http.StatusCreated {
						t.Errorf("status %d", resp.StatusCode)
						return
					}
				}
			})
		}
		wg.Wait()
		return size(t, db)
	}
	first := fill("first")
	t.Logf("%d bytes for each record", first/records)
	if each := first / records; each < 300 || each > 2000 {
		t.Errorf("%d bytes for each record", each)
	}
	if _, err := db.ExecContext(t.Context(), "DELETE FROM interlock_record"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "VACUUM (TRUNCATE off) interlock_record"); err != nil {
		t.Fatal(err)
	}
	second := fill("second")
	t.Logf("%d bytes for each record, after as many were deleted", second/records)
	if second > first*3/2 {
		t.Errorf("%d bytes after the first %d records, %d after as many were deleted and made: the room is not used again", first, records, second)
	}
}

// size returns what the table of the records takes, with its indexes.
func size(t *testing.T, db *sql.DB) (bytes int) {
	t.Helper()
	var heap, indexes, responses string
	if err := db.QueryRowContext(t.Context(), "SELECT pg_total_relation_size('interlock_record'), pg_table_size('interlock_record')::text, "+
		"pg_indexes_size('interlock_record')::text, (SELECT avg(length(response))::int::text FROM interlock_record)").
		Scan(&bytes, &heap, &indexes, &responses); err != nil {
		t.Fatal(err)
	}
	t.Log("bytes: "+strconv.Itoa(bytes)+", of the table", heap, "of its indexes", indexes, "of a response", responses)
	return bytes
}
