//go:build long && unix

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// childEnv makes the test binary a process that a test can stop, kill or starve:
// its value says which. It is told what to do by lines on its standard input, and
// ends with it.
const childEnv = "INTERLOCK_FAULT_CHILD"

// answer is what a child says, in a line.
type answer struct {
	Token   int64
	Lost    string    // what Err said, empty for nil
	Trusted time.Time // when it last trusted its lease
	Count   int
	Problem string
}

// process is a child as its test sees it.
type process struct {
	*scene
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// spawn starts a child on a server.
func (s *scene) spawn(mode, addr string, env ...string) *process {
	s.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+mode, childEnv+"_ADDR="+addr)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		s.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = cmd.Process.Kill() // a stopped one too; it may be gone
		_ = cmd.Wait()
	})
	return &process{s, cmd, in, bufio.NewScanner(out)}
}

// signal sends a signal.
func (p *process) signal(sig syscall.Signal) {
	p.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.Fatal(err)
	}
}

// tell tells the child to go on.
func (p *process) tell() {
	p.Helper()
	if _, err := fmt.Fprintln(p.in); err != nil {
		p.Fatal(err)
	}
}

// hear waits for the child's next answer.
func (p *process) hear() (a answer) {
	p.Helper()
	if !p.out.Scan() {
		p.Fatalf("the child has ended: %v", p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), &a); err != nil {
		p.Fatalf("%q: %v", p.out.Text(), err)
	}
	if a.Problem != "" {
		p.Errorf("the child says: %s", a.Problem)
	}
	return a
}

// finish ends the child's input and waits for its end.
func (p *process) finish() {
	p.Helper()
	if err := p.in.Close(); err != nil {
		p.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.Errorf("the child ended with %v", err)
	}
}

const (
	// childLease is the lease of a child.
	childLease = 5 * time.Second
	// starvedLease is that of a child whose renewals starve. It is short: a thousand
	// goroutines have to keep the core for as long.
	starvedLease = time.Second
)

// child is the main function of such a process.
func child(mode string) {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(childEnv + "_ADDR")})
	store, err := redisstore.New(rdb, quiet)
	if err != nil {
		panic(err)
	}
	lease := childLease
	if mode == "starve" {
		lease = starvedLease
	}
	l, err := core.New(store, core.Watchdog(lease))
	if err != nil {
		panic(err)
	}
	in := bufio.NewReader(os.Stdin)
	next := func() bool {
		_, err := in.ReadString('\n')
		return err == nil
	}
	switch mode {
	case "hold":
		childHolds(l, next)
	case "starve":
		childStarves(l, next)
	case "wait":
		childWaits(l, next)
	}
	for next() {
	}
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		panic(err)
	}
	if err := store.Close(); err != nil {
		panic(err)
	}
}

func reply(a answer) {
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		panic(err)
	}
}

// holding is a lease as an answer.
func holding(lease *core.Lease) answer {
	now := time.Now() // before it looks
	a := answer{Token: lease.Token()}
	if err := lease.Err(); err != nil {
		a.Lost = err.Error()
	} else {
		a.Trusted = now
	}
	return a
}

// childHolds holds the lock and answers each line by what it knows of its lease.
func childHolds(l *core.Locker, next func() bool) {
	lease, err := l.Lock(context.Background(), "k", kindOf(os.Getenv(kindEnv))...)
	if err != nil {
		reply(answer{Problem: err.Error()})
		return
	}
	for ok := true; ok; ok = next() {
		reply(holding(lease))
	}
	_ = lease.Release(context.Background()) // lost or not, which was told
}

// childStarves holds the lock on one core that a thousand goroutines want, some of
// them work under the lock.
func childStarves(l *core.Locker, next func() bool) {
	lease, err := l.Lock(context.Background(), "k")
	if err != nil {
		reply(answer{Problem: err.Error()})
		return
	}
	reply(holding(lease))
	next()
	var trusted atomic.Int64
	var over atomic.Bool
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			for !over.Load() {
				for range 100_000 { // the scheduler has to take the core away
				}
				if i%50 != 0 {
					continue
				}
				if a := holding(lease); a.Lost != "" {
					over.Store(true)
				} else {
					trusted.Store(a.Trusted.UnixNano()) // one core: nearly in order
				}
			}
		})
	}
	wg.Wait()
	a := holding(lease)
	a.Trusted, a.Count = time.Unix(0, trusted.Load()), runtime.GOMAXPROCS(0)
	reply(a)
	_ = lease.Release(context.Background())
}

// childWaiters is how many wait in each child: the race detector knows no more than
// 8,128 goroutines.
const childWaiters = 2500

// childWaits has many wait for a lock that another process holds, and cancels them
// all at once.
func childWaits(l *core.Locker, next func() bool) {
	ctx, cancel := context.WithCancel(context.Background())
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	var wrong atomic.Int64
	for range childWaiters {
		wg.Go(func() {
			if _, err := l.Lock(ctx, "k"); !errors.Is(err, context.Canceled) {
				wrong.Add(1)
			}
		})
	}
	for waiting := 0; waiting < childWaiters; runtime.Gosched() {
		if held := l.Held(); len(held) == 1 {
			waiting = held[0].Waiters
		}
	}
	reply(answer{Count: childWaiters})
	next()
	cancel()
	begin := time.Now()
	wg.Wait()
	took := time.Since(begin)
	a := answer{Count: len(l.Held())}
	if n := wrong.Load(); n > 0 {
		a.Problem = fmt.Sprintf("%d of %d waiters did not hear that they were cancelled", n, childWaiters)
	}
	if took > soon {
		a.Problem += fmt.Sprintf("; it took %v", took)
	}
	// What remains is the store's and the locker's, not one for each waiter.
	if n := runtime.NumGoroutine(); n > before+20 {
		a.Problem += fmt.Sprintf("; %d goroutines are left of %d", n-before, childWaiters)
	}
	reply(a)
}

func TestClientStoppedPastItsLease(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	l := s.locker(srv.Client(t))
	p := s.spawn("hold", srv.Addr())
	held := p.hear()
	p.signal(syscall.SIGSTOP)
	next := s.must(l, "k")
	granted := time.Now()
	if next.Token() <= held.Token {
		t.Errorf("token %d after %d", next.Token(), held.Token)
	}
	var r resource
	if err := r.write(next.Token(), "second"); err != nil {
		t.Error(err)
	}
	p.signal(syscall.SIGCONT)
	p.tell()
	// It wakes with the lock in its hands, as far as it could know.
	woken := p.hear()
	if woken.Lost == "" || woken.Trusted.After(granted) {
		t.Errorf("it trusts its lease after another was granted: %+v", woken)
	}
	s.wantErr(r.write(held.Token, "late"), errStale)
	s.release(next)
	p.finish()
	s.clean(srv)
}

func TestClientKilled(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	l := s.locker(srv.Client(t))
	p := s.spawn("hold", srv.Addr())
	held := p.hear()
	s.refused(l, "k", core.ErrHeld)
	p.signal(syscall.SIGKILL)
	killed := time.Now()
	next := s.must(l, "k")
	if took := time.Since(killed); took > childLease+soon/3 {
		t.Errorf("the lock of the dead was free after %v, its lease is %v", took, childLease)
	}
	if next.Token() <= held.Token {
		t.Errorf("token %d after %d", next.Token(), held.Token)
	}
	s.release(next)
	s.clean(srv)
}

func TestWatchdogStarved(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	l := s.locker(srv.Client(t))
	p := s.spawn("starve", srv.Addr(), "GOMAXPROCS=1")
	p.hear()
	p.tell()
	next := s.must(l, "k")
	granted := time.Now()
	a := p.hear()
	if a.Count != 1 {
		t.Errorf("it had %d cores: the test proves nothing", a.Count)
	}
	if a.Lost == "" || a.Trusted.After(granted) {
		t.Errorf("it trusted its lease %v after another was granted: %+v", a.Trusted.Sub(granted), a)
	}
	if a.Trusted.Unix() > 0 {
		t.Logf("the starved holder trusted its lease for the last time %v before the next grant", granted.Sub(a.Trusted))
	}
	s.release(next)
	p.finish()
	s.clean(srv)
}

func TestTenThousandWaitersCancelledAtOnce(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	l := s.locker(srv.Client(t))
	held := s.must(l, "k")
	var all []*process
	for range 4 {
		all = append(all, s.spawn("wait", srv.Addr()))
	}
	n := 0
	for _, p := range all {
		n += p.hear().Count
	}
	if n != 10_000 {
		t.Errorf("%d wait", n)
	}
	begin := time.Now()
	for _, p := range all {
		p.tell()
	}
	for _, p := range all {
		if a := p.hear(); a.Count != 0 {
			t.Errorf("a process still waits for %d keys", a.Count)
		}
	}
	t.Logf("10,000 heard of it within %v", time.Since(begin))
	s.release(held)
	if err := pass(l, "k"); err != nil {
		t.Error(err)
	}
	for _, p := range all {
		p.finish()
	}
	s.clean(srv)
}
