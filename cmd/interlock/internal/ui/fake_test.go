package ui

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/fleet"
)

// fakeFleet has locks in memory. It fails with the error that the test sets.
type fakeFleet struct {
	mu       sync.Mutex
	locks    map[string]fleet.Lock
	err      error
	passes   int
	patterns []string
	released []string
	hang     chan struct{} // if it is there, Locks waits for it, or for the end of ctx
	ended    int           // passes that the end of ctx has ended
}

func (f *fakeFleet) put(locks ...fleet.Lock) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locks == nil {
		f.locks = map[string]fleet.Lock{}
	}
	for _, l := range locks {
		f.locks[l.Key] = l
	}
}

func (f *fakeFleet) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeFleet) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.passes
}

func (f *fakeFleet) Locks(ctx context.Context, pattern string) iter.Seq2[fleet.Lock, error] {
	f.mu.Lock()
	f.passes++
	f.patterns = append(f.patterns, pattern)
	all, err, hang := slices.Collect(maps.Values(f.locks)), f.err, f.hang
	f.mu.Unlock()
	return func(yield func(fleet.Lock, error) bool) {
		if hang != nil {
			select {
			case <-hang:
			case <-ctx.Done():
				f.mu.Lock()
				f.ended++
				f.mu.Unlock()
				yield(fleet.Lock{}, ctx.Err())
				return
			}
		}
		if err != nil {
			yield(fleet.Lock{}, err)
			return
		}
		for _, l := range all {
			if strings.Contains(l.Key, strings.Trim(pattern, "*")) && !yield(l, nil) {
				return
			}
		}
	}
}

func (f *fakeFleet) Inspect(_ context.Context, key string) (fleet.Lock, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l, ok := f.locks[key]; ok && f.err == nil {
		return l, nil
	}
	return fleet.Lock{Key: key}, f.err
}

func (f *fakeFleet) Release(_ context.Context, key string, token int64) (fleet.Holder, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return fleet.Holder{}, f.err
	}
	for _, h := range f.locks[key].Holders {
		if h.Token == token {
			f.released = append(f.released, fmt.Sprintf("%q %d", key, token))
			delete(f.locks, key)
			return h, nil
		}
	}
	return fleet.Holder{}, fleet.ErrNoGrant
}

// heldLock is a lock with one holder, and some waiters.
func heldLock(key string, token int64, waiters int) fleet.Lock {
	l := fleet.Lock{Key: key, Kind: fleet.Exclusive, Held: 1, Fence: token, Holders: []fleet.Holder{{
		Owner: "0123456789abcdef:7", Token: token, Since: time.UnixMicro(token), Age: 65 * time.Second, Left: 20 * time.Second,
		Locker: fleet.Locker{ID: "0123456789abcdef", Listed: true, Host: "web-1", PID: 4711, Service: "payments", Version: "v1.2"},
	}}}
	for i := range waiters {
		l.Waiters = append(l.Waiters, fleet.Waiter{Locker: fleet.Locker{
			ID: fmt.Sprintf("waiter%d", i), Listed: true, Host: fmt.Sprintf("web-%d", i+2), PID: 100 + i, Quiet: time.Duration(i) * time.Minute,
		}})
	}
	return l
}

func newUI(t *testing.T, c Config) *UI {
	t.Helper()
	if c.Fleet == nil {
		c.Fleet = &fakeFleet{}
	}
	u, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

// request makes a request as a page of the server makes it.
func request(method, target string, form url.Values) *http.Request {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r := httptest.NewRequest(method, strings.TrimPrefix(target, "."), body) // as a browser resolves a redirect
	r.Host = "127.0.0.1:7070"
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

// do carries a request out, changed by edits.
func do(u *UI, r *http.Request, edits ...func(*http.Request)) *httptest.ResponseRecorder {
	for _, edit := range edits {
		edit(r)
	}
	w := httptest.NewRecorder()
	u.ServeHTTP(w, r)
	return w
}

func get(u *UI, target string, edits ...func(*http.Request)) *httptest.ResponseRecorder {
	return do(u, request("GET", target, nil), edits...)
}

// contains checks that a page has texts, and none of others.
func contains(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if not, absent := strings.CutPrefix(text, "!"); absent && strings.Contains(page, not) {
			t.Errorf("the page has %q", not)
		} else if !absent && !strings.Contains(page, text) {
			t.Errorf("the page does not have %q", text)
		}
	}
}

// status checks the status of a response.
func status(t *testing.T, w *httptest.ResponseRecorder, want int) string {
	t.Helper()
	if w.Code != want {
		t.Errorf("status %d; want %d\n%s", w.Code, want, cmp.Or(w.Body.String(), w.Header().Get("Location")))
	}
	return w.Body.String()
}
