//go:build long && unix

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// childEnv makes the test binary a process that a test can stop or kill, on the server at
// this address. It gets orders by lines on its standard input, and ends with it.
const childEnv = "INTERLOCK_FAULT_CHILD"

// answer is an answer of a child, in a line.
type answer struct {
	Token   int64
	Lost    string    // what Err said, empty for nil
	Trusted time.Time // when it last trusted its lease
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
func (s *scene) spawn(addr string, env ...string) *process {
	s.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(append(os.Environ(), childEnv+"="+addr), env...)
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

// hear reads the child's next answer.
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

// childLease is the lease of a child.
const childLease = 5 * time.Second

// child is the main function of such a process.
func child() {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(childEnv)})
	store, err := redisstore.New(rdb, quiet)
	if err != nil {
		panic(err)
	}
	l, err := core.New(store, core.Watchdog(childLease))
	if err != nil {
		panic(err)
	}
	in := bufio.NewReader(os.Stdin)
	next := func() bool {
		_, err := in.ReadString('\n')
		return err == nil
	}
	if os.Getenv(kindEnv) == workerKind {
		childWorks(l, func() (string, bool) {
			text, err := in.ReadString('\n')
			return strings.TrimSpace(text), err == nil
		})
	} else {
		childHolds(l, next)
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

// kindEnv says how a child holds its lock.
const kindEnv = childEnv + "_KIND"

func kindOf(name string) []core.Option {
	switch name {
	case "shared":
		return []core.Option{core.Shared()}
	case "permit":
		return []core.Option{core.Permits(1)}
	}
	return nil
}

// childHolds holds the lock and answers each line with the state of its lease.
func childHolds(l *core.Locker, next func() bool) {
	lease, err := l.Lock(context.Background(), "k", kindOf(os.Getenv(kindEnv))...)
	if err != nil {
		reply(answer{Problem: err.Error()})
		return
	}
	for ok := true; ok; ok = next() {
		reply(holding(lease))
	}
	_ = lease.Release(context.Background()) // lost or not: the replies said it
}

func TestClientStoppedPastItsLease(t *testing.T) {
	for _, c := range []struct{ kind, next string }{{"", ""}, {"shared", ""}, {"permit", "permit"}} {
		t.Run("lock "+c.kind, func(t *testing.T) {
			s := stage(t)
			srv := redistest.Start(t)
			l := s.locker(srv.Client(t))
			p := s.spawn(srv.Addr(), kindEnv+"="+c.kind)
			held := p.hear()
			p.signal(syscall.SIGSTOP)
			next := s.must(l, "k", kindOf(c.next)...)
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
			p.finish()
			s.barred(l, "k", core.ErrHeld, core.Permits(1)) // a returned permit is not one more
			if err := next.Check(t.Context()); err != nil {
				t.Errorf("the next holder, after the stopped one has ended: %v", err)
			}
			s.release(next)
			s.clean(srv)
		})
	}
}

func TestClientKilled(t *testing.T) {
	for _, kind := range []string{"", "shared", "permit"} {
		t.Run("lock "+kind, func(t *testing.T) {
			s := stage(t)
			srv := redistest.Start(t)
			l := s.locker(srv.Client(t))
			p := s.spawn(srv.Addr(), kindEnv+"="+kind)
			held := p.hear()
			s.refused(l, "k", core.ErrHeld)
			p.signal(syscall.SIGKILL)
			next := s.must(l, "k") // when the lease of the dead has ended
			if next.Token() <= held.Token {
				t.Errorf("token %d after %d", next.Token(), held.Token)
			}
			s.release(next)
			s.clean(srv)
		})
	}
}
