//go:build long && unix

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

const (
	redisEnv   = "ROLLING_REDIS"   // has the test binary be a process of the service
	leavingEnv = "ROLLING_LEAVING" // its flag
)

func init() { asService = serviceProcess }

// serviceProcess is a process of the service: it serves on the listeners that it inherits, until
// a signal as Kubernetes sends it.
func serviceProcess() bool {
	addr := os.Getenv(redisEnv)
	if addr == "" {
		return false
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	serve := func() error {
		public, err := net.FileListener(os.NewFile(3, "public"))
		if err != nil {
			return err
		}
		ops, err := net.FileListener(os.NewFile(4, "ops"))
		if err != nil {
			return err
		}
		if *leaving, err = time.ParseDuration(os.Getenv(leavingEnv)); err != nil {
			return err
		}
		rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1})
		store, err := redisstore.New(rdb)
		if err != nil {
			return err
		}
		return run(public, ops, store, rdb, ctx.Done())
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// pod is a process of the service.
type pod struct {
	cmd         *exec.Cmd
	public, ops string
	ended       chan error
}

// fleet are the processes that clients choose from, and what clients have seen.
type fleet struct {
	t       *testing.T
	srv     *redistest.Server
	leaving time.Duration
	client  *http.Client

	mu      sync.Mutex
	ready   []*pod
	turn    int
	done    int             // requests that were carried out
	refused int             // for the lock or the store
	broken  []string        // errors of connections
	closing map[string]bool // the processes that sent a client away with its answer
}

func newFleet(t *testing.T, leaving time.Duration) *fleet {
	f := &fleet{
		t: t, srv: redistest.Start(t), leaving: leaving, closing: map[string]bool{},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: time.Minute},
	}
	t.Cleanup(f.client.CloseIdleConnections)
	return f
}

// start starts a process, and returns when it is ready.
func (f *fleet) start() *pod {
	f.t.Helper()
	listen := func() (addr string, file *os.File) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			f.t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		if file, err = l.(*net.TCPListener).File(); err != nil {
			f.t.Fatal(err)
		}
		return l.Addr().String(), file
	}
	p := &pod{ended: make(chan error, 1)}
	var files [2]*os.File
	p.public, files[0] = listen()
	p.ops, files[1] = listen()
	p.cmd = exec.CommandContext(context.Background(), os.Args[0])
	p.cmd.Env = append(os.Environ(), redisEnv+"="+f.srv.Addr(), leavingEnv+"="+f.leaving.String())
	p.cmd.ExtraFiles = files[:]
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	for _, file := range files {
		_ = file.Close() // else the port would still be open when the process has ended
	}
	go func() { p.ended <- p.cmd.Wait() }()
	f.t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	until(f.t, "the process is ready", func() bool { return f.readiness(p) == http.StatusOK })
	f.mu.Lock()
	f.ready = append(f.ready, p)
	f.mu.Unlock()
	return p
}

// readiness is the status of a process's /readyz; 0 if it does not answer.
func (f *fleet) readiness(p *pod) int {
	res, err := f.client.Get("http://" + p.ops + "/readyz")
	if err != nil {
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// end has Kubernetes end a process. Its clients choose others when it is not ready any more,
// and has answered in that state.
func (f *fleet) end(p *pod) {
	f.t.Helper()
	f.signal(p)
	until(f.t, "the process is not ready", func() bool { return f.readiness(p) != http.StatusOK })
	until(f.t, "an answer sends its client to another process", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.closing[p.public]
	})
	f.forget(p)
	f.wait(p)
}

func (f *fleet) signal(p *pod) {
	f.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) forget(p *pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ready = slices.DeleteFunc(f.ready, func(other *pod) bool { return other == p })
}

func (f *fleet) wait(p *pod) {
	f.t.Helper()
	select {
	case err := <-p.ended:
		if err != nil {
			f.t.Errorf("a process ended with %v", err)
		}
	case <-time.After(time.Minute):
		f.t.Fatal("a process does not end a minute after its signal")
	}
}

// load has clients debit accounts until the function that it returns is called.
func (f *fleet) load(clients int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for i := range clients {
		working.Go(func() {
			for ctx.Err() == nil {
				f.debit(i % 4)
			}
		})
	}
	return func() { cancel(); working.Wait() }
}

func (f *fleet) debit(account int) {
	f.mu.Lock()
	f.turn++
	to := f.ready[f.turn%len(f.ready)].public
	f.mu.Unlock()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, fmt.Sprintf("http://%s/accounts/%d/debit", to, account), http.NoBody)
	if err != nil {
		panic(err)
	}
	r.SetBasicAuth("alice", "secret")
	res, err := f.client.Do(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err != nil:
		f.broken = append(f.broken, err.Error())
		return
	case res.StatusCode == http.StatusOK:
		f.done++
	default:
		f.refused++
	}
	_ = res.Body.Close()
	f.closing[to] = f.closing[to] || res.Close
}

// lockKey is the key of a lock in Redis, and of nothing else.
var lockKey = regexp.MustCompile(`^interlock:\{[^}]*\}$`)

// held returns the locks that have an owner.
func (f *fleet) held(ctx context.Context, rdb *redis.Client) (held []string) {
	f.t.Helper()
	keys, err := rdb.Keys(ctx, "interlock:*").Result()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, key := range keys {
		if !lockKey.MatchString(key) {
			continue
		}
		fields, err := rdb.HKeys(ctx, key).Result()
		if err != nil {
			f.t.Fatal(err)
		}
		if slices.ContainsFunc(fields, func(field string) bool { return strings.Contains(field, ":") }) {
			held = append(held, key)
		}
	}
	return held
}

// Six processes are replaced one by one while clients debit four accounts.
func TestARollingRestartBreaksNoRequestAndLeavesNoLock(t *testing.T) {
	f := newFleet(t, 5*time.Second)
	var pods []*pod
	for range 6 {
		pods = append(pods, f.start())
	}
	stop := f.load(8)
	for i, p := range pods {
		f.end(p)
		pods[i] = f.start()
	}
	stop()
	t.Logf("%d debits, %d refused, %d broken connections", f.done, f.refused, len(f.broken))
	if len(f.broken) > 0 {
		t.Errorf("%d requests of %d got an error of their connection, the first: %s", len(f.broken), f.done+f.refused+len(f.broken), f.broken[0])
	}
	for _, p := range pods {
		f.signal(p)
	}
	for _, p := range pods {
		f.wait(p)
	}
	rdb := f.srv.Client(t)
	if held := f.held(t.Context(), rdb); len(held) > 0 {
		t.Errorf("the processes have left the locks %q", held)
	}
	sum := 0
	for account := range 4 {
		balance, err := rdb.Get(t.Context(), fmt.Sprint("balance:", account)).Int()
		if err != nil {
			t.Fatal(err)
		}
		sum -= balance
	}
	if sum != f.done {
		t.Errorf("%d debits were answered, and %d were made", f.done, sum)
	}
}

// The control: where the process does not wait for the balancer, requests break.
func TestWithoutThePauseARestartBreaksRequests(t *testing.T) {
	f := newFleet(t, 0)
	first := f.start()
	f.start()
	stop := f.load(4)
	defer stop()
	f.signal(first)
	f.wait(first)
	until(t, "a request breaks", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.broken) > 0
	})
	f.forget(first)
}
