//go:build long && unix

package postgres_test

import (
	"database/sql"
	"flag"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// keptFlag is how many records there are already for one more way of BenchmarkPayment.
var keptFlag = flag.Int("kept", 0, "`number` of records that are kept, each with a response of 300 bytes")

// BenchmarkPayment is a request with a new key to an endpoint that inserts one row, with
// fsync, by the way of its record and the number of clients. The metric p50-us is the
// median of the requests, in microseconds.
//
//	go test -tags=integration,long -run '^$' -bench Payment -benchtime 5s -count 5 ./postgres
//
// To compare a table that is empty at first with a table of ten million records, which takes
// ten minutes and 9 GB of disk:
//
//	go test -tags=integration,long -v -run '^$' -bench 'Payment/transaction' -count 3 -timeout 0 ./postgres -args -kept 10000000
func BenchmarkPayment(b *testing.B) {
	server := pgtest.Start(b)
	redisServer := redistest.Start(b, redistest.Args("--appendonly", "yes", "--appendfsync", "always"))
	db := server.Open(b)
	db.SetMaxOpenConns(80)
	db.SetMaxIdleConns(80)
	execute(b, db, "CREATE TABLE ledger (payment text, amount bigint)")
	const insert = "INSERT INTO ledger VALUES ($1::text, 1)"
	own := func(w http.ResponseWriter, r *http.Request) {
		tx, err := db.BeginTx(r.Context(), nil)
		if err == nil {
			_, err = tx.ExecContext(r.Context(), insert, r.Header.Get("Idempotency-Key"))
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
	joined := func(w http.ResponseWriter, r *http.Request) {
		tx, err := pgstore.Tx(r.Context())
		if err == nil {
			_, err = tx.ExecContext(r.Context(), insert, r.Header.Get("Idempotency-Key"))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
	records := benchRecords(b, db)
	client := redis.NewClient(&redis.Options{Addr: redisServer.Addr()})
	defer func() { _ = client.Close() }()
	inRedis, err := redisstore.New(client)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = inRedis.Close() }()
	behind := func(store record.Store, h http.HandlerFunc, opts ...idempotency.Option) http.Handler {
		return httplock.Idempotent(newEngine(b, store, opts...))(h)
	}
	type way struct {
		name string
		h    http.Handler
	}
	ways := []way{
		{"bare", http.HandlerFunc(own)},
		{"transaction", behind(records, joined, idempotency.Transactional())},
		{"transaction, claim flushed", behind(records, joined)},
		{"PostgreSQL", behind(records, own)},
		{"Redis", behind(inRedis, own)},
	}
	if *keptFlag > 0 {
		kept := benchRecords(b, db, pgstore.Prefix("kept_"))
		keep(b, db)
		ways = append(ways, way{"transaction, many kept", behind(kept, joined, idempotency.Transactional())})
	}
	for _, clients := range []int{1, 16, 64} {
		for _, way := range ways {
			b.Run(way.name+"/"+strconv.Itoa(clients), func(b *testing.B) { payments(b, way.h, clients) })
		}
	}
}

// benchRecords returns a store on tables that it makes.
func benchRecords(b *testing.B, db *sql.DB, opts ...pgstore.Option) *pgstore.Store {
	b.Helper()
	store := newStore(b, db, append(opts, pgstore.SweepEvery(time.Minute))...)
	migrate(b, store)
	return store
}

// keep makes the records that there are already: as many in each hour of the retention.
func keep(b *testing.B, db *sql.DB) {
	b.Helper()
	begin := time.Now()
	execute(b, db, "INSERT INTO kept_record "+
		"SELECT translate(encode(sha256(n::text::bytea), 'base64'), '+/=', '-_'), 'token:' || n, sha256(n::text::bytea), 1, 'd', false, false, "+
		"now(), until, NULL, ceil(extract(epoch FROM until) / 3600)::integer, convert_to(repeat(md5(n::text), 9), 'UTF8') "+
		"FROM generate_series(1, $1::int) AS n, LATERAL (SELECT now() + n::float8 / $1::int * interval '1 day') AS kept(until)", *keptFlag)
	for _, step := range []string{"VACUUM ANALYZE kept_record", "CHECKPOINT"} { // else they disturb the measurement
		execute(b, db, step)
	}
	table, index := read[int64](b, db, "SELECT pg_table_size('kept_record')"), read[int64](b, db, "SELECT pg_indexes_size('kept_record')")
	n := int64(*keptFlag)
	b.Logf("%d records in %v: %d bytes each in the table, %d in its indexes", n, time.Since(begin).Round(time.Second), table/n, index/n)
}

var benchKeys atomic.Int64

// payments makes b.N payments by some clients.
func payments(b *testing.B, h http.Handler, clients int) {
	b.Helper()
	var next atomic.Int64
	var mu sync.Mutex
	took := make([]time.Duration, 0, b.N)
	var work sync.WaitGroup
	b.ResetTimer()
	for range clients {
		work.Go(func() {
			var own []time.Duration
			for next.Add(1) <= int64(b.N) {
				r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/payments", strings.NewReader("{}"))
				r.Header.Set("Idempotency-Key", "bench-"+strconv.FormatInt(benchKeys.Add(1), 10))
				w := httptest.NewRecorder()
				begin := time.Now()
				h.ServeHTTP(w, r)
				own = append(own, time.Since(begin))
				if w.Code != http.StatusOK {
					b.Errorf("%d %s", w.Code, w.Body)
					return
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
		})
	}
	work.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "payments/s")
}
