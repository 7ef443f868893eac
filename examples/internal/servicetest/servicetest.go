// Package servicetest sends the example services the requests that their clients may send. A
// service runs in the process of the test, on a Redis in memory.
package servicetest

import (
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Start runs a service until the test ends, and returns its address. The test fails
// unless the service then ends in good order.
func Start(t *testing.T, run func(listener net.Listener, stop <-chan struct{}) error) (addr string) {
	t.Helper()
	if err := flag.Set("redis", miniredis.RunT(t).Addr()); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- run(listener, stop) }()
	t.Cleanup(func() {
		close(stop)
		if err := <-ended; err != nil {
			t.Errorf("the service ended with %v", err)
		}
	})
	return listener.Addr().String()
}

// HTTP tests a service on net/http, gin or echo; gzip says whether the service compresses
// its answers.
func HTTP(t *testing.T, gzip bool, run func(listener net.Listener, stop <-chan struct{}) error) {
	addr := Start(t, run)
	for _, c := range []struct {
		what, user, path, key string
		status                int
		part                  string // of the body
		replayed              bool
	}{
		{"without a user", "", "/payments", "a", http.StatusUnauthorized, "", false},
		{"without a key", "alice", "/payments", "", http.StatusBadRequest, "idempotency-key-missing", false},
		{"no account", "alice", "/accounts/four/debit", "", http.StatusBadRequest, "bad-key", false},
		{"a payment", "alice", "/payments", "a", http.StatusCreated, "paid", false},
		{"again", "alice", "/payments", "a", http.StatusCreated, "paid", true},
		{"the key of another payment", "alice", "/payments?to=mallory", "a", http.StatusUnprocessableEntity, "idempotency-key-reused", false},
		{"the key of another user", "bob", "/payments", "a", http.StatusCreated, "paid", false},
		{"a debit", "alice", "/accounts/1/debit", "", http.StatusOK, "-1", false},
		{"the same account", "alice", "/accounts/01/debit", "", http.StatusOK, "-2", false},
	} {
		status, body, header := post(t, addr, c.user, c.path, c.key, false)
		if status != c.status || !strings.Contains(body, c.part) || (header.Get("Idempotent-Replayed") == "true") != c.replayed {
			t.Errorf("%s: %d %q, %v; want %d with %q, replayed: %v", c.what, status, body, header, c.status, c.part, c.replayed)
		}
	}
	if _, _, header := post(t, addr, "alice", "/payments", "a", true); (header.Get("Content-Encoding") == "gzip") != gzip {
		t.Errorf("compressed: %v; want %v", !gzip, gzip)
	}
}

// post sends a request, with an idempotency key unless it is "".
func post(t *testing.T, addr, user, path, key string, gzip bool) (status int, body string, header http.Header) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		r.SetBasicAuth(user, "secret")
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	if gzip {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text), res.Header
}
