package transactions

import (
	"context"
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
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// keptFlag is how many records there are already in BenchmarkPayment.
var keptFlag = flag.Int("kept", 0, "`number` of records that are kept, each with a response of 300 bytes")

// BenchmarkPayment is a request with a new key to an endpoint that inserts one row, with
// fsync, by the way of its record and the number of clients. The metric p50-us is the
// median of the requests, in microseconds.
//
//	go test -run '^$' -bench Payment -benchtime 5s -count 5 ./transactions
func BenchmarkPayment(b *testing.B) {
	server := pgtest.Start(b)
	redisServer := redistest.Start(b, redistest.Args("--appendonly", "yes", "--appendfsync", "always"))
	db, err := sql.Open("pgx", server.DSN())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(80)
	db.SetMaxIdleConns(80)
	if _, err := db.ExecContext(b.Context(), "CREATE TABLE ledger (payment text, amount bigint)"); err != nil {
		b.Fatal(err)
	}
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
	records, err := pgstore.New(db)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = records.Close() }()
	if err := records.Migrate(b.Context()); err != nil {
		b.Fatal(err)
	}
	keep(b, db)
	client := redis.NewClient(&redis.Options{Addr: redisServer.Addr()})
	defer func() { _ = client.Close() }()
	inRedis, err := redisstore.New(client)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = inRedis.Close() }()
	behind := func(store idempotency.Store, h http.HandlerFunc, opts ...idempotency.Option) http.Handler {
		engine, err := idempotency.New(store, append(opts, idempotency.Global())...)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = engine.Close(context.Background()) })
		return httplock.Idempotent(engine)(h)
	}
	for _, clients := range []int{1, 16, 64} {
		for _, way := range []struct {
			name string
			h    http.Handler
		}{
			{"bare", http.HandlerFunc(own)},
			{"transaction", behind(records, joined, idempotency.Transactional())},
			{"transaction, claim flushed", behind(records, joined)},
			{"PostgreSQL", behind(records, own)},
			{"Redis", behind(inRedis, own)},
		} {
			b.Run(way.name+"/"+strconv.Itoa(clients), func(b *testing.B) { payments(b, way.h, clients) })
		}
	}
}

// keep makes the records that there are already.
func keep(b *testing.B, db *sql.DB) {
	b.Helper()
	const batch = 500_000
	for first := 0; first < *keptFlag; first += batch {
		if _, err := db.ExecContext(b.Context(), "INSERT INTO interlock_record "+
			"SELECT translate(encode(sha256(n::text::bytea), 'base64'), '+/=', '-_'), 'token:' || n, sha256(n::text::bytea), 1, 'd', false, false, "+
			"now(), now() + interval '1 day', NULL, (extract(epoch FROM now()) / 3600)::integer + 25, convert_to(repeat(md5(n::text), 9), 'UTF8') "+
			"FROM generate_series($1::int, $2::int) AS n", first, min(first+batch, *keptFlag)-1); err != nil {
			b.Fatal(err)
		}
	}
	if *keptFlag == 0 {
		return
	}
	if _, err := db.ExecContext(b.Context(), "VACUUM ANALYZE interlock_record"); err != nil {
		b.Fatal(err)
	}
	var table, index int64
	if err := db.QueryRowContext(b.Context(), "SELECT pg_table_size('interlock_record'), pg_indexes_size('interlock_record')").
		Scan(&table, &index); err != nil {
		b.Fatal(err)
	}
	b.Logf("%d records: table %d MB, indexes %d MB", *keptFlag, table>>20, index>>20)
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
