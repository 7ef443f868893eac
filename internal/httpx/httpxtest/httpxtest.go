// Package httpxtest is what the tests of the HTTP adapters have in common: a
// locker on a real Redis, a server, a client, and handlers that can be held.
package httpxtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/redisstore"
)

// Locker returns a locker on a server. It is closed when the test ends, and
// fails it if a lock is still held then.
func Locker(tb testing.TB, rdb *redis.Client, opts ...core.Option) *core.Locker {
	tb.Helper()
	store, err := redisstore.New(rdb, redisstore.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		tb.Fatal(err)
	}
	locker, err := core.New(store, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			tb.Error(err)
		}
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	return locker
}

// Serve starts a server for a handler.
func Serve(tb testing.TB, h http.Handler) *httptest.Server {
	tb.Helper()
	srv := httptest.NewServer(h)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // panics are on purpose
	tb.Cleanup(srv.Close)
	return srv
}

// Answer is a response that was read to its end.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Do sends a request without a body, unless change gives it one.
func Do(tb testing.TB, srv *httptest.Server, method, path string, change ...func(*http.Request)) Answer {
	tb.Helper()
	return do(tb, srv.Client(), method, srv.URL+path, change...)
}

func do(tb testing.TB, client *http.Client, method, url string, change ...func(*http.Request)) Answer {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, url, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range change {
		f(req)
	}
	resp, err := client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return Answer{resp.StatusCode, resp.Header, string(body)}
}

// Leave sends a request in the background and returns what makes its client
// leave and waits until it is gone.
func Leave(tb testing.TB, srv *httptest.Server, path string) (leave func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+path, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if resp, err := srv.Client().Do(req); err == nil {
			_ = resp.Body.Close()
			tb.Errorf("%s was answered %d", path, resp.StatusCode)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// WantProblem holds a refusal against the table of statuses.
func (a Answer) WantProblem(tb testing.TB, status int, reason, retryAfter string) {
	tb.Helper()
	var problem struct {
		Type, Title, Detail string
		Status              int
	}
	if err := json.Unmarshal([]byte(a.Body), &problem); err != nil {
		tb.Fatalf("%d with a body that is no JSON: %q", a.Status, a.Body)
	}
	if a.Status != status || problem.Status != status || problem.Type != "urn:interlock:problem:"+reason {
		tb.Errorf("%d %s; want %d %s", a.Status, a.Body, status, reason)
	}
	if problem.Title != http.StatusText(status) || problem.Detail == "" {
		tb.Errorf("title %q, detail %q", problem.Title, problem.Detail)
	}
	for header, want := range map[string]string{
		"Retry-After":   retryAfter,
		"Content-Type":  "application/problem+json",
		"Cache-Control": "no-store",
	} {
		if got := a.Header.Get(header); got != want {
			tb.Errorf("%s: %s %q; want %q", reason, header, got, want)
		}
	}
}

// Want holds any other answer against what is expected.
func (a Answer) Want(tb testing.TB, status int, body string) {
	tb.Helper()
	if a.Status != status || a.Body != body {
		tb.Errorf("%d %q; want %d %q", a.Status, a.Body, status, body)
	}
}

// Until waits for a state that has no event of its own.
func Until(tb testing.TB, what string, f func() bool) {
	tb.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); runtime.Gosched() {
		if time.Now().After(end) {
			tb.Fatal("never: " + what)
		}
	}
}

// Queued waits until n callers wait in the locker.
func Queued(tb testing.TB, locker *core.Locker, n int) {
	tb.Helper()
	Until(tb, fmt.Sprintf("%d queued", n), func() bool {
		waiters := 0
		for _, h := range locker.Held() {
			waiters += h.Waiters
		}
		return waiters == n
	})
}

// Gate is the inside of a handler that can be held there.
type Gate struct {
	Inside chan struct{} // one value for each that is in
	Leave  chan struct{} // closed to let them go
}

// NewGate returns a closed gate.
func NewGate() Gate { return Gate{make(chan struct{}, 100), make(chan struct{})} }

// Pass waits at the gate.
func (g Gate) Pass() { g.Inside <- struct{}{}; <-g.Leave }

// Lose takes the lease of a context away and waits until the context ends.
func Lose(ctx context.Context, tb testing.TB, rdb *redis.Client) {
	if n, err := rdb.Del(ctx, "interlock:{"+core.LeaseFromContext(ctx).Key()+"}").Result(); n != 1 || err != nil {
		tb.Errorf("deleted %d, %v", n, err)
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, core.ErrLost) {
		tb.Errorf("cause %v; want ErrLost", cause)
	}
}

// Free reports whether nobody holds the key.
func Free(tb testing.TB, rdb *redis.Client, key string) bool {
	tb.Helper()
	n, err := rdb.Exists(context.WithoutCancel(tb.Context()), "interlock:{"+key+"}").Result()
	if err != nil {
		tb.Error(err)
	}
	return n == 0
}

// Exclusion sends 40 requests to two paths and returns what their handlers call
// with the number of the path, 0 or 1, to see that one at a time is inside each,
// and both at the same time.
type Exclusion struct {
	mu     sync.Mutex
	inside [2]int
	met    chan struct{}
	seen   [2]bool
}

// NewExclusion returns one for one test.
func NewExclusion() *Exclusion { return &Exclusion{met: make(chan struct{})} }

// Enter is what the handlers call.
func (e *Exclusion) Enter(tb testing.TB, i int) {
	e.mu.Lock()
	if e.inside[i]++; e.inside[i] != 1 {
		tb.Errorf("%d inside %d", e.inside[i], i)
	}
	if first := !e.seen[i]; first {
		e.seen[i] = true
		if e.seen[1-i] {
			close(e.met)
		}
	}
	e.mu.Unlock()
	<-e.met // a handler of each is inside at the same time
	e.mu.Lock()
	e.inside[i]--
	e.mu.Unlock()
}

// Run sends the requests.
func (e *Exclusion) Run(tb testing.TB, srv *httptest.Server, paths [2]string) {
	tb.Helper()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if a := Do(tb, srv, http.MethodPost, paths[i%2]); a.Status != http.StatusOK {
				tb.Errorf("%s: %d %s", paths[i%2], a.Status, a.Body)
			}
		})
	}
	wg.Wait()
}

// Paths are spellings of one path segment that routers and clients treat
// differently. Those with Slash contain an escaped separator.
var Paths = []struct {
	Segment string
	Slash   bool
}{
	{"A", false},
	{"%41", false},
	{"a%2Fb", true},
	{"a%2fb", true},
	{"%252F", false},
	{"%2541", false},
	{"{id}", false},
	{"%7Bid%7D", false},
	{"%0D%0A", false},
	{"%00", false},
	{"%FF", false},
	{"%C3%B6", false},
	{"ö", false},
	{"a%20b", false},
	{"a+b", false},
	{"a%2Bb", false},
	{"a;b=c", false},
	{"2f3a:1", false},
	{"-._~", false},
	{"%2e%2e", false},
}

// Events reads two server-sent events from a handler that waits after each until
// it is told by next whether to send another: each arrives while it waits.
func Events(tb testing.TB, srv *httptest.Server, path string, next chan<- bool) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, srv.URL+path, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for _, more := range []bool{true, false} {
		found := false
		for !found && lines.Scan() {
			found = lines.Text() == "data:x"
		}
		if !found {
			tb.Errorf("%s: no event, %v", path, lines.Err())
		}
		next <- more
	}
}

// Upload posts a file of 11 MiB, too long for a server to keep in memory.
func Upload(tb testing.TB, srv *httptest.Server, path string) {
	tb.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("f", "f.bin")
	if err != nil {
		tb.Fatal(err)
	}
	_, err = part.Write(bytes.Repeat([]byte("x"), 11<<20))
	if err := errors.Join(err, form.Close()); err != nil {
		tb.Fatal(err)
	}
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, srv.URL+path, &body)
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("Content-Type", form.FormDataContentType())
	resp, err := srv.Client().Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	_ = resp.Body.Close()
}

// OnDisk parses the upload in a handler and returns the name of its temporary
// file.
func OnDisk(r *http.Request) (string, error) {
	if err := r.ParseMultipartForm(1); err != nil {
		return "", err
	}
	f, err := r.MultipartForm.File["f"][0].Open()
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	file, ok := f.(*os.File)
	if !ok {
		return "", errors.New("kept in memory")
	}
	return file.Name(), nil
}

// LogTo collects what is logged until the test ends.
func LogTo(tb testing.TB) *Buffer {
	b := new(Buffer)
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(b, nil)))
	tb.Cleanup(func() { slog.SetDefault(old) })
	return b
}

// Buffer is a bytes.Buffer for several goroutines.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) { b.mu.Lock(); defer b.mu.Unlock(); return b.b.Write(p) }

// String returns what was written so far.
func (b *Buffer) String() string { b.mu.Lock(); defer b.mu.Unlock(); return b.b.String() }

// FreeStore is a Store whose locks are always free, and cost nothing: what is
// left is the middleware.
type FreeStore struct{}

// Acquire implements driver.Store.
func (FreeStore) Acquire(context.Context, driver.AcquireRequest) (driver.Reply, error) {
	return driver.Reply{Granted: true, Token: 1, Sent: time.Now()}, nil
}

// Renew implements driver.Store.
func (FreeStore) Renew(_ context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	for i := range batch {
		done(i, false, nil)
	}
}

// Release implements driver.Store.
func (FreeStore) Release(context.Context, driver.ReleaseRequest) error { return nil }

// Watch implements driver.Store.
func (FreeStore) Watch(string, time.Time, func(driver.Signal)) (stop func()) { return func() {} }

// Deaf is a ResponseWriter that costs nothing either.
type Deaf struct{ Headers http.Header }

// Header implements http.ResponseWriter.
func (d Deaf) Header() http.Header { return d.Headers }

// Write implements http.ResponseWriter.
func (d Deaf) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements http.ResponseWriter.
func (d Deaf) WriteHeader(int) {}

// Pair is a router without and one with the middleware.
type Pair struct{ Bare, Locked http.Handler }

// Benchmark runs both routers of a pair; the difference is the price of the
// middleware.
func (p Pair) Benchmark(b *testing.B, suffix string) {
	b.Helper()
	for _, c := range []struct {
		name string
		h    http.Handler
	}{{"bare", p.Bare}, {"locked", p.Locked}} {
		b.Run(c.name+suffix, func(b *testing.B) {
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/accounts/42/debit", http.NoBody)
			w := Deaf{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				c.h.ServeHTTP(w, r)
			}
		})
	}
}

// AtMost fails the test if the middleware costs more allocations a request than
// the budget.
func (p Pair) AtMost(tb testing.TB, budget float64) {
	tb.Helper()
	allocs := func(h http.Handler) float64 {
		r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, "/accounts/42/debit", http.NoBody)
		w := Deaf{http.Header{}}
		return testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, r) })
	}
	above := allocs(p.Locked) - allocs(p.Bare)
	tb.Logf("%v allocations above the bare framework", above)
	if above > budget {
		tb.Errorf("%v allocations above the bare framework; budget %v", above, budget)
	}
}
