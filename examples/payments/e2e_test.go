//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/internal/redistest"
)

// childEnv makes the test binary be the program itself, so that what runs in
// the child processes is compiled as the tests are, with -race if they are.
const childEnv = "PAYMENTS_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		// go-redis asks once a second whether a server is back, and notices only
		// then that its client was closed.
		redistest.Main(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
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
	t       *testing.T
	cmd     *exec.Cmd
	clients []client // of its front ends, in their order
	addrs   []string
	debug   string // where its debug page is
	stdout  *bufio.Reader
	stderr  strings.Builder
	exited  chan struct{} // closed once waited for; err is then set
	err     error
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
	for _, front := range frontends {
		line, err := p.stdout.ReadString('\n')
		if err != nil {
			t.Fatalf("no line of %s on stdout: %v", front, err)
		}
		var addr string
		if n, err := fmt.Sscanf(line, "listening "+front+" %s\n", &addr); n != 1 || err != nil {
			t.Fatalf("line %q, want \"listening %s host:port\"", line, front)
		}
		c, hangUp, err := dial(front, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(hangUp)
		p.clients, p.addrs = append(p.clients, c), append(p.addrs, addr)
	}
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("no line of the debug page on stdout: %v", err)
	}
	if n, err := fmt.Sscanf(line, "listening debug %s\n", &p.debug); n != 1 || err != nil {
		t.Fatalf("line %q, want \"listening debug URL\"", line)
	}
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

// later makes a request from a goroutine of its own.
func later(request func() reply) <-chan reply {
	done := make(chan reply, 1)
	go func() { done <- request() }()
	return done
}

func (p *process) put(id string, balance int64) {
	p.t.Helper()
	if a := p.clients[0].put(p.t.Context(), id, balance); !a.done() {
		p.t.Fatalf("put %s: %v", id, a.failure())
	}
}

func (p *process) wantBalance(id string, want int64) {
	p.t.Helper()
	for _, c := range p.clients {
		if a := c.get(p.t.Context(), id); !a.done() || a.account.Balance != want {
			p.t.Errorf("%s through %s: %+v, want balance %d", id, c.frontend(), a, want)
		}
	}
}

// debitsInWork starts a debit of 10 through each front end, of an account of its
// name, and returns once all are between their read and their write, which the
// claims in the ledger show.
func (p *process) debitsInWork(rdb *redis.Client) map[string]<-chan reply {
	p.t.Helper()
	token := func(ctx context.Context, id string) string {
		return rdb.HGet(ctx, "payments:{ledger}:account:"+id, "fence").Val()
	}
	before, under := make(map[string]string), make(map[string]<-chan reply)
	for _, c := range p.clients {
		id := c.frontend()
		before[id] = token(p.t.Context(), id)
		under[id] = later(func() reply { return c.debit(p.t.Context(), id, 10) })
	}
	redistest.Eventually(p.t, time.Minute, func(ctx context.Context) error {
		for id := range under {
			if token(ctx, id) == before[id] {
				return fmt.Errorf("the debit through %s has not read its account", id)
			}
		}
		return nil
	})
	return under
}

// putAll opens an account for each front end.
func (p *process) putAll() {
	p.t.Helper()
	for _, front := range frontends {
		p.put(front, 100)
	}
}

// debitOthers debits each account by 1, through the front end after its own.
func (p *process) debitOthers() {
	p.t.Helper()
	for i, id := range frontends {
		c := p.clients[(i+1)%len(p.clients)]
		if a := c.debit(p.t.Context(), id, 1); !a.done() {
			p.t.Errorf("the successor of %s through %s: %v", id, c.frontend(), a.failure())
		}
	}
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
	for _, want := range []string{"lost updates", "expected balance", "p50", "p99", "Redis commands per request", "money lost", "exact", "carried out", "3 permits", "wrong", "keys refused over gRPC"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the table lacks %q", want)
		}
	}
	for line := range strings.Lines(stderr.String()) {
		// On a busy machine Redis may not answer the bank in time, which the bank logs.
		if !strings.Contains(line, "ledger unavailable") {
			t.Errorf("noise on stderr: %s", line)
		}
	}
	t.Log("\n" + stdout.String())
}

// The spans are lines of their own, before the table.
func TestDemonstrationWithSpans(t *testing.T) {
	var stdout strings.Builder
	args := []string{"-redis", redistest.Shared(t).Addr(), "-otel", "stdout", "-work", "0"}
	if status := run(t.Context(), args, &stdout, t.Output()); status != 0 {
		t.Errorf("exit status %d", status)
	}
	spans, table := 0, ""
	for line := range strings.Lines(stdout.String()) {
		switch isSpan := strings.HasPrefix(line, "{"); {
		case isSpan && table != "":
			t.Fatalf("after the table: %s", line)
		case isSpan:
			spans++
		default:
			table += line
		}
	}
	if spans < 3*clients || !strings.Contains(table, "expected balance") {
		t.Errorf("%d spans, then\n%s", spans, table)
	}
}

func TestDemonstrationOnRealRedis(t *testing.T) {
	server := redistest.Start(t)
	var stdout strings.Builder
	if status := run(t.Context(), []string{"-redis", server.Addr()}, &stdout, t.Output()); status != 0 {
		t.Errorf("exit status %d", status)
	}
	// The bank remembers references for as long as their keys are good.
	rdb := server.Client(t)
	for _, key := range rdb.Keys(t.Context(), "payments:*").Val() {
		if left := rdb.TTL(t.Context(), key).Val(); !strings.HasPrefix(key, "payments:{ledger}:payment:") || left <= 0 || left > time.Minute {
			t.Errorf("left behind: %s for %v", key, left)
		}
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

	const debits, each = 15, 8 // per front end
	var wg sync.WaitGroup
	hammer := func(n int, request func() reply) {
		for range n {
			wg.Go(func() {
				if a := request(); !a.done() {
					t.Error(a.failure())
				}
			})
		}
	}
	for _, p := range ps {
		for _, c := range p.clients {
			hammer(debits, func() reply { return c.debit(t.Context(), "alice", 1) })
			hammer(each, func() reply { return c.transfer(t.Context(), "alice", "bob", 3) })
			hammer(each, func() reply { return c.transfer(t.Context(), "bob", "alice", 2) })
		}
	}
	wg.Wait()
	const fronts = 8
	ps[1].wantBalance("alice", 1000-fronts*(debits+each*3-each*2))
	ps[0].wantBalance("bob", 1000+fronts*(each*3-each*2))
}

func TestTheNextWaiterGetsTheLockOfAKilledProcess(t *testing.T) {
	const ttl = 2 * time.Second
	server := redistest.Shared(t)
	rdb := server.Client(t)
	other := startServing(t, server.Addr(), "-wait", "1m", "-work", "0")
	other.putAll()

	dead := make(map[string]reply)
	var killed time.Time
	for range 5 {
		victim := startServing(t, server.Addr(), "-ttl", ttl.String(), "-wait", "1m", "-work", "1h")
		under := victim.debitsInWork(rdb)
		victim.signal(syscall.SIGKILL)
		killed = time.Now()
		lost := false
		for id, d := range under {
			dead[id] = <-d
			lost = lost || dead[id].reason == "lost"
		}
		if !lost {
			break
		}
		// A busy machine let a lease end before the kill: another victim.
	}
	other.debitOthers()
	// Within the lease and a second; the margin is for a machine that has other work.
	if took := time.Since(killed); took > ttl+15*time.Second {
		t.Errorf("took %v, want success soon after the lease of %v", took, ttl)
	}
	for id, a := range dead {
		if a.reason != "" || a.err == nil {
			t.Errorf("the killed process answered through %s: %+v", id, a)
		}
		other.wantBalance(id, 99)
	}
}

func TestAStoppedProcessHasLostItsLease(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client(t)
	stopped := startServing(t, server.Addr(), "-ttl", "1s", "-work", "1m")
	other := startServing(t, server.Addr(), "-wait", "1m", "-work", "0")
	other.putAll()

	late := stopped.debitsInWork(rdb)
	stopped.signal(syscall.SIGSTOP)
	other.debitOthers()
	stopped.signal(syscall.SIGCONT)
	// It notices at once, long before its work is done. The ledger says so, or
	// the lock whose loss ended the work.
	for id, l := range late {
		if a := <-l; a.reason != "stale-token" && a.reason != "lost" {
			t.Errorf("the stopped process through %s: %v, want stale-token or lost", id, a.failure())
		}
		other.wantBalance(id, 99)
	}
}

// The locks are deleted by hand while their holder is stopped: that one believes
// in its leases, and only the ledger knows better.
func TestTheLedgerRefusesAHolderThatDoesNotKnowItLostTheLock(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client(t)
	holder := startServing(t, server.Addr(), "-ttl", "1m", "-work", "5s")
	other := startServing(t, server.Addr(), "-ttl", "1m", "-work", "0")
	other.putAll()

	late := holder.debitsInWork(rdb)
	holder.signal(syscall.SIGSTOP)
	locks := rdb.Keys(t.Context(), "interlock:*").Val()
	if len(locks) < len(late) {
		t.Fatalf("locks in Redis: %v", locks)
	}
	rdb.Del(t.Context(), locks...)
	other.debitOthers()
	holder.signal(syscall.SIGCONT)
	for id, l := range late {
		if a := <-l; a.reason != "stale-token" {
			t.Errorf("the late write through %s: %v, want stale-token", id, a.failure())
		}
		other.wantBalance(id, 99)
	}
}

func TestSIGTERMDrainsAllFrontEnds(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client(t)
	p := startServing(t, server.Addr(), "-work", "1s")
	p.putAll()

	running := p.debitsInWork(rdb)
	p.signal(syscall.SIGTERM)
	for id, r := range running {
		if a := <-r; !a.done() || a.account.Balance != 90 {
			t.Errorf("the running debit through %s: %+v", id, a)
		}
	}
	rest, err := io.ReadAll(p.stdout)
	if err != nil || len(rest) > 0 {
		t.Errorf("more on stdout: %q, %v", rest, err)
	}
	if err := p.wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	for i, c := range p.clients {
		if a := c.get(t.Context(), frontends[i]); a.err == nil || a.reason != "" {
			t.Errorf("%s still answers: %+v", c.frontend(), a)
		}
	}
	if locks := rdb.Keys(t.Context(), "interlock:*}").Val(); len(locks) > 0 {
		t.Errorf("locks left behind: %v", locks)
	}
}

// span is what stdouttrace prints, in part.
type span struct {
	Name        string
	SpanContext struct{ TraceID, SpanID string }
	Parent      struct{ SpanID string }
	Attributes  []struct {
		Key   string
		Value struct{ Value any }
	}
}

func (s span) attribute(key string) any {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.Value
		}
	}
	return nil
}

// Whichever way a request comes, its trace shows one acquisition and one release
// of the same lock, below the request.
func TestSpansOnStdout(t *testing.T) {
	p := startServing(t, redistest.Shared(t).Addr(), "-work", "0", "-otel", "stdout")
	p.put("alice", 100)
	for _, c := range p.clients {
		if a := c.debit(t.Context(), "alice", 1); !a.done() {
			t.Fatal(a.failure())
		}
	}
	p.signal(syscall.SIGTERM)
	rest, err := io.ReadAll(p.stdout)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.wait(); err != nil {
		t.Errorf("exit: %v", err)
	}

	debits := make(map[string]span) // the requests, by span
	below := make(map[string][]span)
	for line := range strings.Lines(string(rest)) {
		var s span
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if strings.Contains(strings.ToLower(s.Name), "debit") {
			debits[s.SpanContext.SpanID] = s
		}
		below[s.Parent.SpanID] = append(below[s.Parent.SpanID], s)
		if strings.Contains(line, "alice") {
			t.Errorf("a span names the account: %s", line)
		}
	}
	var fronts, keys []string
	for id, d := range debits {
		front, _ := d.attribute("payments.frontend").(string)
		fronts = append(fronts, front)
		var names []string
		for _, s := range below[id] {
			verb, _, _ := strings.Cut(s.Name, " account/")
			names = append(names, verb)
			key, _ := s.attribute("interlock.key_hash").(string)
			keys = append(keys, key)
			if s.SpanContext.TraceID != d.SpanContext.TraceID {
				t.Errorf("%s: %s is in another trace", front, s.Name)
			}
		}
		if slices.Sort(names); !slices.Equal(names, []string{"lock acquire", "lock release"}) {
			t.Errorf("%s: below %s are %v", front, d.Name, names)
		}
	}
	if slices.Sort(fronts); !slices.Equal(fronts, slices.Sorted(slices.Values(frontends))) {
		t.Errorf("debits through %v, want one through each of %v", fronts, frontends)
	}
	if slices.Sort(keys); len(keys) == 0 || keys[0] == "" || keys[0] != keys[len(keys)-1] {
		t.Errorf("keys of one account: %v", keys)
	}
}

func TestAStartThatFails(t *testing.T) {
	addr := redistest.Shared(t).Addr()
	p := startServing(t, addr)
	cases := map[string][]string{"no Redis": {"-serve", "-redis", "127.0.0.1:1"}}
	for i, flag := range []string{"-addr", "-gin", "-echo", "-grpc"} {
		cases[flag+" taken"] = []string{"-serve", "-redis", addr, "-addr", anyPort, flag, p.addrs[i]}
	}
	for name, args := range cases {
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
