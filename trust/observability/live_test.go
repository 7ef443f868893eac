//go:build long && unix

package observability

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/interlock-go/interlock/internal/redistest"
)

// metricsFile is added to examples/payments when the test builds it. Everything else is
// the program as it is.
const metricsFile = `package main

import (
	"os"

	"github.com/interlock-go/interlock/trust/observability/exporter"
)

var _ = must(exporter.Serve(os.Stdout))

func must(err error) struct{} {
	if err != nil {
		panic(err)
	}
	return struct{}{}
}
`

// buildPayments builds the program with the Prometheus exporter, by an overlay of the file
// above. The module of the program does not have the exporter, this one does.
func buildPayments(t *testing.T) (path string) {
	t.Helper()
	dir := t.TempDir()
	payments, err := filepath.Abs("../../examples/payments")
	if err != nil {
		t.Fatal(err)
	}
	added, overlay, path := filepath.Join(dir, "metrics.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "payments")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(payments, "metrics_overlay.go"): added}})
	if err == nil {
		err = errors.Join(os.WriteFile(added, []byte(metricsFile), 0o600), os.WriteFile(overlay, replace, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", path, "github.com/interlock-go/interlock/examples/payments")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// load are clients of the two processes, until the test ends.
type load struct {
	t     *testing.T
	bases []string
	wg    sync.WaitGroup
}

// repeat makes requests one after the other, at each process in turn.
func (l *load) repeat(ctx context.Context, clients int, request func(n int, base string) *http.Request) {
	for i := range clients {
		l.wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				// A refusal is what some of the requests are for.
				if resp, err := httpClient.Do(request(n, l.bases[n%len(l.bases)]).WithContext(ctx)); err == nil {
					_ = resp.Body.Close()
				}
				pause(ctx, 20*time.Millisecond) // the machine has other work
			}
		})
	}
}

// pause waits, but not beyond the end of the test.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// start makes requests that wait, are refused, share, hold for long and repeat keys.
func (l *load) start(ctx context.Context) {
	simple := func(method, path string) func(int, string) *http.Request {
		return func(n int, base string) *http.Request {
			if strings.Contains(path, "%d") {
				path := fmt.Sprintf(path, n%7)
				return must(http.NewRequest(method, base+path, http.NoBody)) //nolint:noctx // repeat sets it
			}
			return must(http.NewRequest(method, base+path, http.NoBody)) //nolint:noctx // repeat sets it
		}
	}
	l.repeat(ctx, 1, simple(http.MethodPut, "/accounts/a%d?balance=1000000"))
	l.repeat(ctx, 3, simple(http.MethodPost, "/accounts/a%d/debit?amount=1"))
	l.repeat(ctx, 3, simple(http.MethodPost, "/accounts/hot/debit?amount=1"))
	l.repeat(ctx, 1, simple(http.MethodPost, "/transfers/a1/a2?amount=1"))
	l.repeat(ctx, 1, simple(http.MethodGet, "/reports/a1/a2"))
	l.repeat(ctx, 8, simple(http.MethodGet, "/accounts/a1/rating"))
	// A payment of 700 ms under the lock of "hot" lets the others wait in vain, and its
	// lease is renewed. Three clients have its key at the same time, and one another body.
	l.repeat(ctx, 3, func(n int, base string) *http.Request {
		return pay(base, fmt.Sprint("slow-", n/20), "hot", 1, "delay=700ms")
	})
	l.repeat(ctx, 1, func(n int, base string) *http.Request { return pay(base, fmt.Sprint("slow-", n/20), "hot", 2, "") })
	l.repeat(ctx, 1, func(n int, base string) *http.Request { return pay(base, fmt.Sprint("quick-", n/3), "a3", 1, "") })
	l.repeat(ctx, 2, func(n int, base string) *http.Request {
		return pay(base, fmt.Sprint("cut-", n), "cut", 1, "delay=500ms")
	})
}

func pay(base, key, account string, amount int, behaviour string) *http.Request {
	body := fmt.Sprintf(`{"account":%q,"amount":%d}`, account, amount)
	r := must(http.NewRequest(http.MethodPost, base+"/payments", strings.NewReader(body))) //nolint:noctx // repeat sets it
	r.Header.Set("Authorization", "Bearer carol")
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Bank-Behaviour", behaviour)
	return r
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err) // a request that cannot be made is an error in this file
	}
	return value
}

// onlyRare are the metrics that the payments of this test never cause: they have no rule
// that fails open, no limit of a principal, and no PostgreSQL. The second job has them.
var onlyRare = []string{"interlock_bypassed_total", "interlock_rejected_total", `interlock_outcome="idempotency_rolled_back"`}

// TestARealPrometheusAnswersEveryPanel scrapes two processes of examples/payments under
// load and faults, and a server that tells of everything there is.
func TestARealPrometheusAnswersEveryPanel(t *testing.T) {
	redis := redistest.Start(t)
	partner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pause(r.Context(), 600*time.Millisecond) // longer than the ratings wait for a permit
		_, _ = w.Write([]byte(`{"account":"a1","rating":"AA"}`))
	}))
	t.Cleanup(partner.Close)
	program := buildPayments(t)
	l := &load{t: t}
	var metrics []string
	for range 2 {
		c := spawn(t, nil, program, "-serve", "-addr", "127.0.0.1:0", "-redis", redis.Addr(), "-otel", "stdout", "-partner", partner.URL,
			"-work", "20ms", "-wait", "300ms", "-ttl", "900ms", "-lease", "900ms", "-retention", "1m", "-faults")
		metrics = append(metrics, c.address(t, "metrics"))
		l.bases = append(l.bases, "http://"+c.address(t, "http"))
	}
	observer, registry := newObserver(t)
	rare := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 1}))
	t.Cleanup(rare.Close)
	since := time.Now()
	server := startPrometheus(t, metrics, strings.TrimPrefix(rare.URL, "http://"))

	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); l.wg.Wait() })
	l.start(ctx)
	l.wg.Go(func() {
		for ctx.Err() == nil {
			everything(ctx, observer)
			pause(ctx, time.Second)
		}
	})
	l.wg.Go(func() { // locks are deleted, and the server hangs, now and then
		rdb := redis.Client(t)
		for n := 1; ctx.Err() == nil; n++ {
			pause(ctx, 200*time.Millisecond)
			_ = rdb.Del(ctx, "interlock:{account/cut}").Err()
			if n%25 == 0 {
				redis.Pause(t)
				pause(ctx, 1500*time.Millisecond) // longer than a lease
				redis.Resume(t)
			}
		}
	})

	var wanted []string
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			wanted = append(wanted, q.Expr)
			// Each part of a query has data, not only what stands in for one without.
			expr := must(queryParser.ParseExpr(expand(q.Expr, "JOB")))
			parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
				if s, ok := node.(*parser.VectorSelector); ok {
					selector := *s
					selector.OriginalOffset = 0
					wanted = append(wanted, selector.String())
				}
				return nil
			})
		}
	}
	for _, r := range rules(t) {
		if r.Record != "" {
			wanted = append(wanted, r.Record)
		}
	}
	slices.Sort(wanted)
	for _, query := range slices.Compact(wanted) {
		job := "payments"
		if slices.ContainsFunc(onlyRare, func(part string) bool { return strings.Contains(query, part) }) {
			job = "rare"
		}
		query = strings.ReplaceAll(expand(query, job), `"JOB"`, fmt.Sprintf("%q", job))
		eventually(t, query, func() error { return server.has(t, query, since) })
	}
	server.rulesWork(t)
	t.Logf("%d queries have data after %v", len(wanted), time.Since(since).Round(time.Second))
}

// expand puts in what Grafana would: a job, and all processes and rules.
func expand(query, job string) string {
	return variables{"job": job, "instance": ".*", "rule": ".*", "__rate_interval": "30s", "__range": "1h"}.expand(query)
}

// rulesWork waits until all rules have been evaluated without an error, and the alerts of
// what has happened fire.
func (p prom) rulesWork(t *testing.T) {
	t.Helper()
	eventually(t, "the rules", func() error {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError, State string }
			}
		}
		if err := p.api(t, "rules", nil, &data); err != nil {
			return err
		}
		var errs []error
		firing := make(map[string]bool)
		n := 0
		for _, group := range data.Groups {
			for _, r := range group.Rules {
				n++
				firing[r.Name] = r.State == "firing"
				if r.Health != "ok" {
					errs = append(errs, fmt.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError))
				}
			}
		}
		if want := len(rules(t)); n != want {
			errs = append(errs, fmt.Errorf("%d rules; want %d", n, want))
		}
		// Those that need not last.
		for _, alert := range []string{
			"InterlockLostLease", "InterlockLeaseEndedAtItsLimit", "InterlockBypassed", "InterlockOutcomeUnknown", "InterlockAnswerPending",
		} {
			if !firing[alert] {
				errs = append(errs, fmt.Errorf("%s does not fire", alert))
			}
		}
		return errors.Join(errs...)
	})
}
