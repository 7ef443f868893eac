package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/fleet"
)

// pageAt is an open page, with its last message.
type pageAt struct {
	*testing.T
	updates chan update
	leave   func()
	code    int
}

// open opens the events of a page, with the handler on a goroutine.
func open(t *testing.T, u *UI, target string) *pageAt {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := request("GET", target, nil).WithContext(ctx)
	in, out := io.Pipe()
	p := &pageAt{T: t, updates: make(chan update, 100)}
	ended := make(chan struct{})
	w := &pipeWriter{out: out, header: http.Header{}}
	go func() { defer close(ended); u.ServeHTTP(w, r); p.code = w.code; _ = out.Close() }()
	go func() {
		lines := bufio.NewScanner(in)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var up update
				if err := json.Unmarshal([]byte(data), &up); err != nil {
					t.Errorf("%q: %v", data, err)
				}
				p.updates <- up
			}
		}
	}()
	p.leave = func() { cancel(); <-ended }
	t.Cleanup(p.leave)
	return p
}

// pipeWriter is a response that is read while it is written.
type pipeWriter struct {
	out    *io.PipeWriter
	header http.Header
	code   int
}

func (w *pipeWriter) Header() http.Header         { return w.header }
func (w *pipeWriter) Write(p []byte) (int, error) { return w.out.Write(p) }
func (w *pipeWriter) WriteHeader(code int)        { w.code = code }
func (w *pipeWriter) Flush()                      {}

// next waits for an update.
func (p *pageAt) next() update {
	p.Helper()
	select {
	case up := <-p.updates:
		return up
	case <-time.After(time.Minute):
		p.Fatal("no update")
		return update{}
	}
}

func (p *pageAt) silent() {
	p.Helper()
	synctest.Wait()
	select {
	case up := <-p.updates:
		p.Fatalf("an update without news: %+v", up)
	default:
	}
}

func TestNothingIsReadWhileNoPageIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeFleet{}
		u := newUI(t, Config{Fleet: f})
		time.Sleep(time.Minute)
		if n := f.count(); n > 0 {
			t.Fatalf("read %d times before a page was open", n)
		}
		p := open(t, u, "/events?q=a")
		p.next()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		open := f.count()
		if open < 20 || open > 51 {
			t.Errorf("read %d times in 20 s; want about 50", open)
		}
		p.leave()
		time.Sleep(linger + time.Second)
		synctest.Wait()
		left := f.count()
		time.Sleep(time.Hour)
		if n := f.count(); n != left || n > open+10 {
			t.Errorf("read %d times when the page was closed, then %d and %d times", open, left, n)
		}
		open2 := openAgain(t, u)
		if open2.next(); f.count() == left {
			t.Error("a page that is opened later gets what was read before")
		}
	})
}

func openAgain(t *testing.T, u *UI) *pageAt { return open(t, u, "/events?q=a") }

func TestPagesShareTheReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeFleet{}
		f.put(heldLock("a", 5, 0))
		u := newUI(t, Config{Fleet: f})
		for i := range 20 {
			open(t, u, "/events?sort="+sorts[i%len(sorts)].Name).next()
		}
		synctest.Wait()
		before := f.count()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := f.count() - before; n < 10 || n > 26 {
			t.Errorf("20 pages: read %d times in 10 s; want about 25", n)
		}
	})
}

func TestAReadingThatTakesLongIsFollowedByALongPauseAndEndsWithItsPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeFleet{hang: make(chan struct{})}
		f.put(heldLock("a", 5, 0))
		u := newUI(t, Config{Fleet: f})
		// The page does not wait for ever.
		began := time.Now()
		contains(t, status(t, get(u, "/"), http.StatusOK), "Reading the locks")
		if took := time.Since(began); took != firstWithin {
			t.Errorf("the page came after %v; want %v", took, firstWithin)
		}
		// A reading that has begun continues for the reloaded page, or for its events.
		time.Sleep(time.Second)
		p := open(t, u, "/events")
		time.Sleep(time.Second) // 5 s since the reading began
		close(f.hang)
		if up := p.next(); len(up.Lists["locks"].Rows) != 1 {
			t.Errorf("%+v", up)
		}
		synctest.Wait()
		time.Sleep(4900 * time.Millisecond)
		synctest.Wait()
		if n := f.count(); n != 1 {
			t.Errorf("read %d times; want a pause of 5 s after a reading of 5 s", n)
		}
		f.mu.Lock()
		f.hang = make(chan struct{})
		f.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := f.count(); n != 2 {
			t.Errorf("read %d times; want 2", n)
		}
		p.leave()
		time.Sleep(linger + time.Second)
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.ended != 1 {
			t.Error("the reading goes on although no page is open")
		}
	})
}

// A page without JavaScript never showed the locks of a Redis with many keys: each time it
// was loaded, the reading began anew.
func TestAPageThatIsLoadedAgainFindsWhatItHasNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeFleet{hang: make(chan struct{})}
		f.put(heldLock("a", 5, 0))
		u := newUI(t, Config{Fleet: f})
		contains(t, status(t, get(u, "/"), http.StatusOK), "Reading the locks")
		time.Sleep(10 * time.Second)
		close(f.hang)
		time.Sleep(10 * time.Second)
		contains(t, status(t, get(u, "/"), http.StatusOK), "1 lock is held.")
		if n := f.count(); n > 2 {
			t.Errorf("read %d times", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		before := f.count()
		time.Sleep(time.Minute)
		if n := f.count(); n != before {
			t.Error("the reading goes on although no page is open")
		}
	})
}

func TestAPageGetsOnlyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeFleet{}
		// The lease ends at the same time in each reading.
		end := time.Now().Add(time.Hour)
		lock := func(key string, token int64, waiters int) fleet.Lock {
			l := heldLock(key, token, waiters)
			l.Holders[0].Left, l.Holders[0].Age = time.Until(end), time.Since(end)+2*time.Hour
			return l
		}
		f.put(lock("a", 5, 0), lock("b", 6, 0))
		u := newUI(t, Config{Fleet: f})
		p := open(t, u, "/events?sort=key")
		a, b, c := identOf("a"), identOf("b"), identOf("c")
		up := p.next()
		if l := up.Lists["locks"]; !slices.Equal(l.Order, []string{a, b}) || len(l.Rows) != 2 || up.Texts["summary"] != "2 locks are held." {
			t.Fatalf("%+v", up)
		}
		time.Sleep(pause + pause/2)
		p.silent()

		f.put(lock("a", 5, 0), lock("b", 6, 1), lock("c", 7, 0))
		up = p.next()
		if l := up.Lists["locks"]; !slices.Equal(l.Order, []string{a, b, c}) || len(l.Rows) != 2 || l.Rows[a] != "" ||
			up.Texts["summary"] != "3 locks are held, 1 waited for." {
			t.Fatalf("%+v", up)
		}
		f.mu.Lock()
		clear(f.locks)
		f.mu.Unlock()
		if up = p.next(); len(up.Lists["locks"].Order) != 0 || !up.Hidden["table"] || up.Hidden["none"] {
			t.Fatalf("%+v", up)
		}

		// The last reading stays while Redis does not answer.
		f.put(lock("a", 5, 0))
		p.next()
		f.fail(errors.New("no"))
		up = p.next()
		if len(up.Lists["locks"].Order) != 1 || up.Hidden["problem"] || up.Texts["problem"] == "" ||
			up.Texts["summary"] != "When they were read last: 1 lock is held." {
			t.Fatalf("%+v", up)
		}
		f.fail(nil)
		if up = p.next(); !up.Hidden["problem"] {
			t.Fatalf("%+v", up)
		}
	})
}

func TestThePageOfALockGetsItsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeFleet{}
		f.put(heldLock("a", 5, 1))
		u := newUI(t, Config{Fleet: f})
		p := open(t, u, "/events?key=a")
		if up := p.next(); len(up.Lists["holders"].Rows) != 1 || len(up.Lists["waiters"].Rows) != 1 {
			t.Fatalf("%+v", up)
		}
		f.put(heldLock("a", 5, 2))
		if up := p.next(); len(up.Lists["waiters"].Order) != 2 || up.Texts["waiting"] != "2 processes" {
			t.Fatalf("%+v", up)
		}
		if n := f.count(); n != 0 {
			t.Errorf("all locks were read %d times for the page of one", n)
		}
	})
}

func TestTooManyPagesAreRefusedAndCloseEndsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUI(t, Config{})
		var pages []*pageAt
		for range manyListeners {
			pages = append(pages, open(t, u, "/events"))
		}
		synctest.Wait()
		contains(t, status(t, get(u, "/events"), http.StatusServiceUnavailable), "too many pages")
		contains(t, status(t, get(u, "/"), http.StatusServiceUnavailable), "too many pages")
		pages[0].leave()
		status(t, get(u, "/"), http.StatusOK)
		u.Close()
		for _, p := range pages {
			p.leave()
		}
		contains(t, status(t, get(u, "/events"), http.StatusServiceUnavailable), "ending")
	})
}

func TestServeEndsWithItsContextAndTheOpenPages(t *testing.T) {
	f := &fakeFleet{}
	u := newUI(t, Config{Fleet: f})
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewUnstartedServer(nil)
	address := "http://" + server.Listener.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- u.Serve(ctx, server.Listener) }()
	resp, err := http.Get(address + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if _, err := lines.ReadString('\n'); err != nil || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%v, %v", err, resp.Header)
	}
	cancel()
	if _, err := io.ReadAll(lines); err != nil {
		t.Errorf("the page's connection was broken: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Serve returned %v", err)
	}
}
