package adaptertest

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

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
