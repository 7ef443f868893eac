//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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

// childEnv makes the test binary be the program itself, so that what runs in
// the child processes is compiled as the tests are, with -race if they are.
const childEnv = "PAYMENTS_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		redistest.Main(m)
		return
	}
	go func() {
		// The parent never writes: the end of stdin is the end of the parent,
		// whatever became of its cleanups.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	main()
}

// process is a running payments program.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string
	stdout *bufio.Reader
	stderr strings.Builder
	exited chan struct{} // closed once waited for; err is then set
	err    error
}

// command prepares the program.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	return cmd
}

// startServing runs the program with -serve and returns once it accepts.
func startServing(t *testing.T, redisAddr string, args ...string) *process {
	t.Helper()
	args = append([]string{"-serve", "-addr", "127.0.0.1:0", "-redis", redisAddr}, args...)
	p := &process{t: t, cmd: command(context.WithoutCancel(t.Context()), args...), exited: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		_, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended before
		_ = p.wait()             // killed, most likely
		if t.Failed() {
			t.Logf("stderr of process %d:\n%s", p.cmd.Process.Pid, p.stderr.String())
		}
	})
	p.stdout = bufio.NewReader(stdout)
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("no line on stdout: %v", err)
	}
	var addr string
	if n, err := fmt.Sscanf(line, "listening http %s\n", &addr); n != 1 || err != nil {
		t.Fatalf("first line %q, want \"listening http host:port\"", line)
	}
	p.url = "http://" + addr
	return p
}

func (p *process) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// wait waits for the end of the process. It is called from one goroutine.
func (p *process) wait() error {
	select {
	case <-p.exited:
	default:
		_, _ = io.Copy(io.Discard, p.stdout)
		p.err = p.cmd.Wait()
		close(p.exited)
	}
	return p.err
}

// post sends a request from a goroutine of its own.
func (p *process) post(path string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.url+path, http.NoBody)
		if err != nil {
			done <- outcome{err: err}
			return
		}
		a, err := send(req)
		done <- outcome{a, err}
	}()
	return done
}

type outcome struct {
	answered
	err error
}

func (o outcome) ok() bool { return o.err == nil && o.status == http.StatusOK }

func (o outcome) String() string { return fmt.Sprintf("%d %s %v", o.status, o.raw, o.err) }

func (p *process) put(id string, balance int) {
	p.t.Helper()
	if a := request(p.t, http.MethodPut, fmt.Sprintf("%s/accounts/%s?balance=%d", p.url, id, balance)); a.status != http.StatusOK {
		p.t.Fatalf("put %s: %d %s", id, a.status, a.raw)
	}
}

func (p *process) wantBalance(id string, want int) {
	p.t.Helper()
	if a := request(p.t, http.MethodGet, p.url+"/accounts/"+id); a.body["balance"] != float64(want) {
		p.t.Errorf("%s: %s, want balance %d", id, a.raw, want)
	}
}

// debitInWork starts a debit and returns once it is between its read and its
// write, which the claim in the ledger shows.
func (p *process) debitInWork(rdb *redis.Client, id string) <-chan outcome {
	p.t.Helper()
	token := func(ctx context.Context) string {
		return rdb.HGet(ctx, "payments:{ledger}:account:"+id, "token").Val()
	}
	before := token(p.t.Context())
	done := p.post("/accounts/" + id + "/debit?amount=10")
	redistest.Eventually(p.t, 10*time.Second, func(ctx context.Context) error {
		if token(ctx) == before {
			return errors.New("the debit has not read the account")
		}
		return nil
	})
	return done
}

func TestDemonstrationWithoutFlags(t *testing.T) {
	cmd := command(t.Context())
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
	}
	for _, want := range []string{"lost updates", "expected balance", "p50", "p99", "Redis commands per request", "money lost", "exact"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the table lacks %q", want)
		}
	}
	if stderr.Len() > 0 {
		t.Errorf("noise on stderr:\n%s", stderr.String())
	}
	t.Log("\n" + stdout.String())
}

func TestDemonstrationOnRealRedis(t *testing.T) {
	server := redistest.Start(t)
	var stdout strings.Builder
	if status := run(t.Context(), []string{"-redis", server.Addr()}, &stdout, t.Output()); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if keys := server.Client(t).Keys(t.Context(), "payments:*").Val(); len(keys) > 0 {
		t.Errorf("left behind: %v", keys)
	}
	t.Log("\n" + stdout.String())
}

func TestDemonstrationOnACluster(t *testing.T) {
	cluster := redistest.Cluster(t, 3, 0)
	var stdout strings.Builder
	if status := run(t.Context(), []string{"-redis", strings.Join(cluster.Addrs(), ",")}, &stdout, t.Output()); status != 0 {
		t.Errorf("exit status %d", status)
	}
	t.Log("\n" + stdout.String())
}

// A wait that is too short for everybody must show as refusals, not as a loss.
func TestDemonstrationWithRefusals(t *testing.T) {
	server := redistest.Shared(t)
	var stdout strings.Builder
	if status := run(t.Context(), []string{"-redis", server.Addr(), "-wait", "20ms", "-work", "5ms"}, &stdout, t.Output()); status != 0 {
		t.Errorf("exit status %d", status)
	}
	t.Log("\n" + stdout.String())
}

func TestTwoProcessesShareOneBank(t *testing.T) {
	addr := redistest.Shared(t).Addr()
	ps := []*process{
		startServing(t, addr, "-wait", "1m", "-work", "1ms"),
		startServing(t, addr, "-wait", "1m", "-work", "1ms"),
	}
	ps[0].put("alice", 1000)
	ps[0].put("bob", 1000)

	const debits, each = 60, 30 // per process
	var wg sync.WaitGroup
	hammer := func(n int, p *process, path string) {
		for range n {
			wg.Go(func() {
				if o := <-p.post(path); !o.ok() {
					t.Errorf("%s: %v", path, o)
				}
			})
		}
	}
	for _, p := range ps {
		hammer(debits, p, "/accounts/alice/debit?amount=1")
		hammer(each, p, "/transfers/alice/bob?amount=3")
		hammer(each, p, "/transfers/bob/alice?amount=2")
	}
	wg.Wait()
	ps[1].wantBalance("alice", 1000-2*debits-2*each*3+2*each*2)
	ps[0].wantBalance("bob", 1000+2*each*3-2*each*2)
}

func TestTheNextWaiterGetsTheLockOfAKilledProcess(t *testing.T) {
	const ttl = 2 * time.Second
	server := redistest.Shared(t)
	rdb := server.Client(t)
	victim := startServing(t, server.Addr(), "-ttl", ttl.String(), "-work", "1h")
	other := startServing(t, server.Addr(), "-ttl", ttl.String(), "-wait", "1m", "-work", "0")
	other.put("alice", 100)

	dead := victim.debitInWork(rdb, "alice")
	victim.signal(syscall.SIGKILL)
	killed := time.Now()
	o := <-other.post("/accounts/alice/debit?amount=1")
	if took := time.Since(killed); !o.ok() || took > ttl+time.Second {
		t.Errorf("after %v: %v, want success within the lease of %v plus 1 s", took, o, ttl)
	}
	if d := <-dead; d.err == nil {
		t.Errorf("the killed process answered: %v", d)
	}
	other.wantBalance("alice", 99)
}

func TestAStoppedProcessHasLostItsLease(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client(t)
	stopped := startServing(t, server.Addr(), "-ttl", "1s", "-work", "1m")
	other := startServing(t, server.Addr(), "-ttl", "1s", "-wait", "1m", "-work", "0")
	other.put("alice", 100)

	late := stopped.debitInWork(rdb, "alice")
	stopped.signal(syscall.SIGSTOP)
	if o := <-other.post("/accounts/alice/debit?amount=1"); !o.ok() {
		t.Errorf("the successor: %v", o)
	}
	stopped.signal(syscall.SIGCONT)
	// It notices at once, long before its work is done. 409 is the ledger's
	// answer, 500 that of the lock whose loss ended the work.
	if o := <-late; o.status != http.StatusConflict && o.status != http.StatusInternalServerError {
		t.Errorf("the stopped process: %v, want 409 or 500", o)
	}
	other.wantBalance("alice", 99)
}

// The lock is deleted by hand while its holder is stopped: that one believes in
// its lease, and only the ledger knows better.
func TestTheLedgerRefusesAHolderThatDoesNotKnowItLostTheLock(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client(t)
	holder := startServing(t, server.Addr(), "-ttl", "1m", "-work", "1s")
	other := startServing(t, server.Addr(), "-ttl", "1m", "-work", "0")
	other.put("alice", 100)

	late := holder.debitInWork(rdb, "alice")
	holder.signal(syscall.SIGSTOP)
	locks := rdb.Keys(t.Context(), "interlock:*").Val()
	if len(locks) == 0 {
		t.Fatal("no lock in Redis")
	}
	rdb.Del(t.Context(), locks...)
	if o := <-other.post("/accounts/alice/debit?amount=1"); !o.ok() {
		t.Errorf("the successor: %v", o)
	}
	holder.signal(syscall.SIGCONT)
	if o := <-late; o.status != http.StatusConflict {
		t.Errorf("the late write: %v, want 409", o)
	}
	other.wantBalance("alice", 99)
}

func TestSIGTERMDrains(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client(t)
	p := startServing(t, server.Addr(), "-work", "1s")
	p.put("alice", 100)

	running := p.debitInWork(rdb, "alice")
	p.signal(syscall.SIGTERM)
	if o := <-running; !o.ok() || o.body["balance"] != 90. {
		t.Errorf("the running debit: %v", o)
	}
	rest, err := io.ReadAll(p.stdout)
	if err != nil || len(rest) > 0 {
		t.Errorf("more on stdout: %q, %v", rest, err)
	}
	if err := p.wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	if locks := rdb.Keys(t.Context(), "interlock:*}").Val(); len(locks) > 0 {
		t.Errorf("locks left behind: %v", locks)
	}
}

func TestAStartThatFails(t *testing.T) {
	addr := redistest.Shared(t).Addr()
	p := startServing(t, addr)
	for name, args := range map[string][]string{
		"port taken": {"-serve", "-redis", addr, "-addr", strings.TrimPrefix(p.url, "http://")},
		"no Redis":   {"-serve", "-redis", "127.0.0.1:1"},
	} {
		var stdout strings.Builder
		if status := run(t.Context(), args, &stdout, t.Output()); status != 1 || stdout.Len() > 0 {
			t.Errorf("%s: status %d, stdout %q", name, status, stdout.String())
		}
	}
	if status := run(t.Context(), []string{"-ttl", "0"}, io.Discard, t.Output()); status != 2 {
		t.Errorf("a wrong flag: status %d, want 2", status)
	}
	if status := run(t.Context(), []string{"-h"}, io.Discard, t.Output()); status != 0 {
		t.Errorf("-h: status %d, want 0", status)
	}
}
