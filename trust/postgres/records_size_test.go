//go:build long && unix

package postgres_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
)

// TestTheSizeOfRecords looks at the table after 10,000 requests: its size, and whether free
// room is used again. docs/operations.md has the logged figures.
func TestTheSizeOfRecords(t *testing.T) {
	const records = 10_000
	db, _ := tables(t)
	db.SetMaxOpenConns(8)
	s := &service{T: t, db: db}
	engine := newEngine(t, newStore(t, db), idempotency.Transactional())
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
					// PostgreSQL may have no time for it.
					eventually(t, "a request is carried out", func() bool { return s.send(key).StatusCode == http.StatusCreated })
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
	execute(t, db, "DELETE FROM interlock_record")
	execute(t, db, "VACUUM (TRUNCATE off) interlock_record")
	second := fill("second")
	t.Logf("%d bytes for each record, after as many were deleted", second/records)
	if second > first*3/2 {
		t.Errorf("%d bytes after the first %d records, %d after as many were deleted and made: the room is not used again", first, records, second)
	}
}

// size returns the size of the table of records, with its indexes.
func size(t *testing.T, db *sql.DB) int {
	t.Helper()
	t.Log("bytes of the table, of its indexes, of a response:", read[string](t, db, "SELECT concat_ws(', ', pg_table_size('interlock_record'), "+
		"pg_indexes_size('interlock_record'), (SELECT avg(length(response))::int FROM interlock_record))"))
	return read[int](t, db, "SELECT pg_total_relation_size('interlock_record')")
}
