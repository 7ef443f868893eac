package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
)

// asService has the test binary be a process of the service, if a test started it as such.
var asService = func() bool { return false }

func TestMain(m *testing.M) {
	if asService() {
		return
	}
	goleak.VerifyTestMain(m)
}

// Kubernetes counts the grace period from the beginning of preStop.
func TestTheEndFitsIntoTheTimeOfKubernetes(t *testing.T) {
	manifest, err := os.ReadFile("kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	of := func(pattern string) time.Duration {
		t.Helper()
		m := regexp.MustCompile(pattern).FindSubmatch(manifest)
		if m == nil {
			t.Fatalf("kubernetes.yaml has no %s", pattern)
		}
		d, err := time.ParseDuration(string(m[1]) + "s")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	grace, all := of(`terminationGracePeriodSeconds: (\d+)`),
		of(`sleep: \{seconds: (\d+)\}`)+of(`-leaving=(\d+)s`)+finishing+storing+releasing+flushing
	if all >= grace {
		t.Errorf("the end may take %v, and Kubernetes kills the process after %v", all, grace)
	}
}

func TestThePageShowsTheManifest(t *testing.T) {
	manifest, err := os.ReadFile("kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, objects, _ := strings.Cut(string(manifest), "\n") // below the comment
	if !strings.Contains(string(page), "```yaml\n"+objects+"```\n") {
		t.Error("docs/kubernetes.md shows another manifest than kubernetes.yaml")
	}
}

// A balancer may keep its connections to a process that is not ready any more.
func TestAnEndingProcessSendsClientsToOthers(t *testing.T) {
	var ending atomic.Bool
	server := httptest.NewServer(sendAway(&ending, http.NotFoundHandler()))
	defer server.Close()
	for _, want := range []bool{false, true} {
		ending.Store(want)
		res, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.Close != want {
			t.Errorf("the answer closes the connection: %v; want %v while ending is %v", res.Close, want, want)
		}
	}
}

// site is the service with a client.
type site struct {
	t      *testing.T
	client *http.Client
}

// ask sends a request, and returns the status, the body, and whether the answer is a replay.
func (s site) ask(ctx context.Context, method, url, user string) string {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+url, http.NoBody)
	if err != nil {
		s.t.Error(err)
		return ""
	}
	if user != "" {
		r.SetBasicAuth(user, "secret")
	}
	res, err := s.client.Do(r)
	if err != nil {
		s.t.Error(err)
		return ""
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Error(err)
	}
	return strings.TrimSpace(fmt.Sprint(res.StatusCode, " ", string(body), " ", res.Header.Get("Idempotent-Replayed")))
}

func TestService(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer func() { _ = rdb.Close() }()
	public, ops := listen(t), listen(t)
	at, operators := public.Addr().String(), ops.Addr().String()
	store := memstore.New()
	*leaving = 0
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- run(public, ops, store, rdb, stop) }()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	s := site{t, &http.Client{Transport: &httplock.Transport{Base: base}, Timeout: time.Minute}}
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%q; want %q", got, want)
		}
	}

	want(s.ask(t.Context(), "GET", operators+"/livez", ""), "200 alive")
	want(s.ask(t.Context(), "GET", operators+"/readyz", ""), "200 ready")
	want(s.ask(t.Context(), "POST", at+"/payments", ""), "401")
	var debits sync.WaitGroup
	for i := range 20 {
		debits.Go(func() {
			if got := s.ask(t.Context(), "POST", fmt.Sprintf("%s/accounts/%0*d/debit", at, 1+i%2, 7), "alice"); !strings.HasPrefix(got, "200 ") {
				t.Error(got)
			}
		})
	}
	debits.Wait()
	want(s.ask(t.Context(), "POST", at+"/accounts/7/debit", "bob"), "200 -21")
	order := idempotency.WithKey(t.Context(), "order-17")
	want(s.ask(order, "POST", at+"/payments", "alice"), "201 paid")
	want(s.ask(order, "POST", at+"/payments", "alice"), "201 paid true")
	want(s.ask(order, "POST", at+"/payments", "bob"), "201 paid") // a key is its user's
	if n := rdb.Get(t.Context(), "paid:alice").Val(); n != "1" {
		t.Errorf("alice has paid %s times", n)
	}

	// One observer: the locks, the endpoint, and the routes.
	metrics := s.ask(t.Context(), "GET", operators+"/metrics", "")
	for _, part := range []string{
		`interlock_acquire_duration_seconds_count{interlock_outcome="granted",interlock_rule="account/{id:int}"`,
		`interlock_rule="payer/{ctx.user}"`,
		`interlock_replays_total{interlock_rule="payment"`,
		`http_route="/payments"`,
	} {
		if !strings.Contains(metrics, part) {
			t.Errorf("%s is not in the metrics:\n%s", part, metrics)
		}
	}
	until(t, "the count of unknown outcomes is in the metrics", func() bool { // a collection starts it
		return strings.Contains(s.ask(t.Context(), "GET", operators+"/metrics", ""), "interlock_idempotent_unknown")
	})
	want(s.ask(t.Context(), "GET", operators+"/debug/interlock", ""), "401")
	if page := s.ask(t.Context(), "GET", operators+"/debug/interlock", "operator"); !strings.HasPrefix(page, "200 ") ||
		!strings.Contains(page, "account/{id:int}") || !strings.Contains(page, "replayed") {
		t.Errorf("the debug page is %s", page)
	}

	// The end: a request under way is finished, while no other is to come.
	release := store.Take("account/8", time.Minute)
	asked := store.Requests(memstore.Acquire)
	late := make(chan string, 1)
	go func() { late <- s.ask(t.Context(), "POST", at+"/accounts/8/debit", "alice") }()
	until(t, "the request waits for its lock", func() bool { return store.Requests(memstore.Acquire) > asked })
	close(stop)
	until(t, "the service is not ready", func() bool { return s.ask(t.Context(), "GET", operators+"/readyz", "") == "503 not ready" })
	release()
	want(<-late, "200 -1")
	if err := <-ended; err != nil {
		t.Errorf("the service ended with %v", err)
	}
}

func listen(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// until waits until ok returns true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
