//go:build long

package httplock_test

import (
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// BenchmarkReplay4KiB compares a replay with the least work of a service without
// idempotency: the same response after one GET. The handlers alone, one request at
// a time and many, and as in a service: with net/http and many clients. The two
// take turns, so that other load on the machine hits both, and %ofGET is the
// median of the throughput's ratios.
func BenchmarkReplay4KiB(b *testing.B) {
	body := strings.Repeat("x", 4<<10)
	rdb := redistest.Shared(b).Client(b, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	handler := func(w http.ResponseWriter, text string) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, text)
	}
	get := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := rdb.Get(r.Context(), "response").Result()
		if err != nil {
			b.Error(err)
		}
		handler(w, text)
	})
	store, err := redisstore.New(rdb, redisstore.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	engine := testkit.EngineOn(b, store, idempotency.Global())
	replay := httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { handler(w, body) }))
	if err := rdb.Set(b.Context(), "response", body, 0).Err(); err != nil {
		b.Fatal(err)
	}
	newSender(b, `{"amount":1}`).send(replay)
	alone := func(h http.Handler) func() {
		s := newSender(b, `{"amount":1}`)
		return func() { s.send(h) }
	}
	served := func(h http.Handler) func() func() {
		srv := testkit.Serve(b, h)
		srv.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = clients
		return func() func() {
			return func() {
				a := testkit.Do(b, srv, http.MethodPost, "/payments", func(r *http.Request) {
					r.Host = "example.com" // as in newSender: another host is another request
					r.Header.Set("Idempotency-Key", "k")
					r.Body, r.ContentLength = io.NopCloser(strings.NewReader(`{"amount":1}`)), 12
				})
				if a.Status != http.StatusCreated || len(a.Body) != len(body) {
					b.Errorf("%d, %d bytes", a.Status, len(a.Body))
				}
			}
		}
	}
	for _, c := range []struct {
		name        string
		clients     int
		get, replay func() func() // makes a client, which is a function to be called again and again
	}{
		{"alone", 1, func() func() { return alone(get) }, func() func() { return alone(replay) }},
		{"many", clients, func() func() { return alone(get) }, func() func() { return alone(replay) }},
		{"served", clients, served(get), served(replay)},
	} {
		b.Run(c.name, func(b *testing.B) {
			var ratios []float64
			var times [2]time.Duration
			for b.Loop() {
				g, r := turn(c.clients, c.get), turn(c.clients, c.replay)
				ratios = append(ratios, 100*float64(g)/float64(r))
				times[0], times[1] = times[0]+g, times[1]+r
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "%ofGET")
			for i, name := range []string{"ns/get", "ns/replay"} {
				b.ReportMetric(float64(times[i].Nanoseconds())/float64(len(ratios)*requests), name)
			}
			b.ReportMetric(0, "ns/op") // of a turn, which says nothing
		})
	}
	for name, h := range map[string]http.Handler{"get": get, "replay": replay} {
		b.Run("allocs/"+name, func(b *testing.B) {
			b.ReportAllocs()
			send := alone(h)
			for b.Loop() {
				send()
			}
		})
	}
}

const (
	clients  = 64
	requests = 1024 // of a turn, by all clients together
)

// turn has so many clients send their share of the requests of a turn, and
// returns how long it took.
func turn(clients int, client func() func()) time.Duration {
	var wg sync.WaitGroup
	begin := time.Now()
	for range clients {
		send := client()
		wg.Go(func() {
			for range requests / clients {
				send()
			}
		})
	}
	wg.Wait()
	return time.Since(begin)
}
