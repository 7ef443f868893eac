// Package servicetest holds the example services to what their clients see when a
// process is killed, when a handler is slow, and when a request is sent again. Each
// service is a process of its own on a real Redis.
package servicetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

// argsEnv makes a test binary be the service. It has the arguments.
const argsEnv = "INTERLOCK_SERVICE_ARGS"

// patience bounds every wait. Nothing takes as long that works.
const patience = 60 * time.Second

// Main is the whole of a TestMain: it runs the tests, or is the service.
func Main(m *testing.M, service func()) {
	if args := os.Getenv(argsEnv); args != "" {
		os.Args = append(os.Args[:1], strings.Fields(args)...)
		service()
		os.Exit(0)
	}
	redistest.Main(m)
}

// Process is a service that runs.
type Process struct {
	*testing.T
	Addr   string // where it listens
	client *http.Client
	cmd    *exec.Cmd
	over   chan error
}

// Start runs a service, which is killed at the end of the test.
func Start(t *testing.T, redisAddr, args string) *Process {
	t.Helper()
	// Another process may take the free port before the service does: then it ends, and
	// the next try has another port.
	for range 5 {
		if p := start(t, redisAddr, args); p.listens() {
			return p
		}
	}
	t.Fatal("the service ended five times")
	return nil
}

// start runs a service on a port that is free.
func start(t *testing.T, redisAddr, args string) *Process {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{T: t, Addr: l.Addr().String(), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, over: make(chan error, 1)}
	_ = l.Close()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=-addr %s -redis %s %s", argsEnv, p.Addr, redisAddr, args))
	p.cmd.Stdout, p.cmd.Stderr = os.Stdout, os.Stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.over <- p.cmd.Wait() }()
	t.Cleanup(p.Kill)
	return p
}

// listens waits until the service listens or has ended, and reports whether it listens.
func (p *Process) listens() (listens bool) {
	p.Helper()
	Until(p.T, "listens", func() bool {
		if len(p.over) > 0 {
			return true
		}
		conn, err := net.Dial("tcp", p.Addr)
		if err == nil {
			_ = conn.Close()
		}
		listens = err == nil
		return listens
	})
	return listens
}

// Kill ends the process at once, as a crash does.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.wait()
}

// Stop asks the process to end, as a platform does, and waits for it.
func (p *Process) Stop() {
	p.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.wait(); err != nil {
		p.Errorf("the service ended with %v", err)
	}
}

func (p *Process) wait() error {
	err := <-p.over
	p.over <- err
	p.client.CloseIdleConnections()
	return err
}

// answer is what a client has got.
type answer struct {
	status int
	body   string
	header http.Header
	err    error // no answer at all
}

// refused says that the lock was not to be had in time, and nothing was done.
func (a answer) refused() bool {
	return a.status == http.StatusLocked && strings.Contains(a.body, "urn:interlock:problem:held") ||
		a.status == http.StatusServiceUnavailable && strings.Contains(a.body, "urn:interlock:problem:unavailable")
}

// post sends a request of alice, with an idempotency key unless it is "".
func (p *Process) post(path, key string, change ...func(*http.Request)) answer {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.Addr+path, http.NoBody)
	if err != nil {
		return answer{err: err}
	}
	r.SetBasicAuth("alice", "secret")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, f := range change {
		f(r)
	}
	res, err := p.client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, strings.TrimSpace(string(body)), res.Header, err}
}

// want holds an answer against a status and a part of its body.
func (p *Process) want(a answer, status int, part string) {
	p.Helper()
	if a.err != nil || a.status != status || !strings.Contains(a.body, part) {
		p.Errorf("%d %q, %v; want %d with %q", a.status, a.body, a.err, status, part)
	}
}

// wantReplay is want for an answer that was stored.
func (p *Process) wantReplay(a answer) {
	p.Helper()
	p.want(a, http.StatusCreated, "paid")
	if a.header.Get("Idempotent-Replayed") != "true" {
		p.Error("the answer is not a replay")
	}
}

// Until waits for a state of another process.
func Until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

// number reads a counter of the bank.
func number(t *testing.T, rdb *redis.Client, name string) int64 {
	t.Helper()
	n, err := rdb.Get(t.Context(), name).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return n
}

// HTTP tests a service on net/http, gin or echo; gzip says whether it compresses
// its answers.
func HTTP(t *testing.T, gzip bool) {
	server := redistest.Shared(t)
	redisAddr, rdb := server.Addr(), server.Client(t)

	t.Run("what a client may ask for", func(t *testing.T) {
		p := Start(t, redisAddr, "")
		p.want(p.post("/payments", "a", func(r *http.Request) { r.Header.Del("Authorization") }), http.StatusUnauthorized, "")
		p.want(p.post("/payments", ""), http.StatusBadRequest, "idempotency-key-missing")
		p.want(p.post("/accounts/four/debit", ""), http.StatusBadRequest, "bad-key")
		p.want(p.post("/payments", "a"), http.StatusCreated, "paid")
		p.wantReplay(p.post("/payments", "a"))
		p.want(p.post("/payments?to=mallory", "a"), http.StatusUnprocessableEntity, "idempotency-key-reused")
		for _, replayed := range []string{"", "true"} {
			a := p.post("/payments", "a", func(r *http.Request) {
				r.SetBasicAuth("bob", "secret")
				r.Header.Set("Accept-Encoding", "gzip")
			})
			p.want(a, http.StatusCreated, "")
			if a.header.Get("Idempotent-Replayed") != replayed || (a.header.Get("Content-Encoding") == "gzip") != gzip {
				t.Errorf("bob got %v", a.header)
			}
		}
		if a, b := number(t, rdb, "paid:alice"), number(t, rdb, "paid:bob"); a != 1 || b != 1 {
			t.Errorf("alice has paid %d times, bob %d", a, b)
		}
	})
	t.Run("two processes lose no debit", func(t *testing.T) {
		processes := []*Process{Start(t, redisAddr, ""), Start(t, redisAddr, "")}
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				p := processes[i%2]
				path := []string{"/accounts/1/debit", "/accounts/01/debit", "/accounts/+1/debit"}[i%3]
				a := p.post(path, "")
				for end := time.Now().Add(patience); a.refused() && time.Now().Before(end); {
					a = p.post(path, "") // the machine had no time for it
				}
				p.want(a, http.StatusOK, "-")
			})
		}
		wg.Wait()
		if n := number(t, rdb, "balance:1"); n != -40 {
			t.Errorf("balance %d", n)
		}
	})
	t.Run("a killed process keeps its lock for a lease, and no longer", func(t *testing.T) {
		p := Start(t, redisAddr, "-work 1h -limit 1h -lease 2s")
		dead := make(chan answer, 1)
		go func() { dead <- p.post("/accounts/2/debit", "") }()
		Until(t, "the debit is under its lock", func() bool { return rdb.Exists(t.Context(), "interlock:{account/2}").Val() == 1 })
		p.Kill()
		if a := <-dead; a.err == nil {
			t.Errorf("the client of the killed process got %d", a.status)
		}
		p = Start(t, redisAddr, "")
		Until(t, "the lock has lapsed", func() bool {
			a := p.post("/accounts/2/debit", "")
			return a.status == http.StatusOK && a.body == "-1"
		})
	})
	t.Run("a killed process leaves a payment whose outcome is unknown, and made once", func(t *testing.T) {
		before := number(t, rdb, "paid:alice")
		p := Start(t, redisAddr, "-work 1h -limit 1h -lease 2s")
		dead := make(chan answer, 1)
		go func() { dead <- p.post("/payments", "killed") }()
		Until(t, "the payment is made", func() bool { return number(t, rdb, "paid:alice") == before+1 })
		p.Kill()
		<-dead
		p = Start(t, redisAddr, "")
		Until(t, "the claim has lapsed", func() bool {
			a := p.post("/payments", "killed")
			if a.status != http.StatusConflict {
				t.Fatalf("%d %q, %v", a.status, a.body, a.err)
			}
			return strings.Contains(a.body, "idempotency-outcome-unknown")
		})
		if n := number(t, rdb, "paid:alice"); n != before+1 {
			t.Errorf("%d payments", n-before)
		}
	})
	t.Run("a slow payment is made once, and its retry gets the answer", func(t *testing.T) {
		before := number(t, rdb, "paid:alice")
		p := Start(t, redisAddr, "-work 9s -limit 4s")
		p.want(p.post("/payments", "slow"), http.StatusServiceUnavailable, "too slow")
		p.want(p.post("/payments", "slow"), http.StatusConflict, "idempotency-in-flight")
		var last answer
		Until(t, "the payment is over", func() bool { last = p.post("/payments", "slow"); return last.status != http.StatusConflict })
		p.wantReplay(last)
		if n := number(t, rdb, "paid:alice"); n != before+1 {
			t.Errorf("%d payments", n-before)
		}
	})
	t.Run("a process that is told to end stores what is under way", func(t *testing.T) {
		before := number(t, rdb, "paid:alice")
		p := Start(t, redisAddr, "-work 6s -limit 4s")
		go p.post("/payments", "last")
		Until(t, "the payment is made", func() bool { return number(t, rdb, "paid:alice") == before+1 })
		p.Stop()
		p = Start(t, redisAddr, "")
		p.wantReplay(p.post("/payments", "last"))
		if n := number(t, rdb, "paid:alice"); n != before+1 {
			t.Errorf("%d payments", n-before)
		}
	})
}
