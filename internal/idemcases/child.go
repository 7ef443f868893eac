//go:build unix

package idemcases

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
)

// serveAsChild serves an endpoint, sends the payment to it, and ends on a signal.
func serveAsChild(t *testing.T, a adaptertest.Framework, in string, connect func(*testing.T, string) Records) {
	var o orders
	if err := json.Unmarshal([]byte(in), &o); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, a, connect(t, o.Address))
	reports, told := os.NewFile(3, "reports"), bufio.NewScanner(os.Stdin)
	defer func() { _ = reports.Close() }()
	say := func(r report) {
		if err := json.NewEncoder(reports).Encode(r); err != nil {
			f.Error(err)
		}
	}
	opts := []idempotency.Option{idempotency.Lease(processLease)}
	if o.Strict {
		opts = append(opts, idempotency.Strict())
	}
	bank := book(o.Bank)
	pay := func(ctx context.Context) {
		if err := bank.pay(ctx); err != nil {
			f.Error(err)
		}
	}
	e := f.serve(f.engine(opts...), func(ctx context.Context) (adaptertest.Result, string) {
		if o.Mark {
			if err := idempotency.MarkEffect(ctx); err != nil {
				f.Error(err)
			}
		}
		if o.Effect {
			pay(ctx)
		}
		say(report{Inside: true})
		if !told.Scan() {
			os.Exit(3) // the parent has gone
		}
		switch told.Text() {
		case toPay:
			pay(ctx)
			return adaptertest.OK, "paid late"
		case toMark:
			if err := idempotency.MarkEffect(ctx); err != nil {
				if !errors.Is(err, core.ErrLost) {
					f.Error(err)
				}
				<-ctx.Done() // it is about to end
				return adaptertest.None, ""
			}
			pay(ctx)
			return adaptertest.OK, "paid late"
		case toPanic:
			panic(toPanic)
		}
		return adaptertest.Failed, "failed late"
	})
	answer := e.pay(o.Key)
	say(report{Answer: &answer})
	for told.Scan() { // until the parent is done
		f.Errorf("told to %s, after the answer", told.Text())
	}
}

// child is such a process.
type child struct {
	f       *fixture
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	reports *json.Decoder
	output  strings.Builder
	ended   bool
}

// startChild starts one, and returns when its handler waits to go on.
func (f *fixture) startChild(o orders) *child {
	f.Helper()
	in, err := json.Marshal(o)
	if err != nil {
		f.Fatal(err)
	}
	only := "-test.run=^" + strings.ReplaceAll(regexp.QuoteMeta(f.Name()), "/", "$/^") + "$"
	c := &child{f: f, cmd: exec.CommandContext(context.WithoutCancel(f.Context()), os.Args[0], only)}
	// The race detector sleeps for a second at the end of a process.
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(in), "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	reports, theirs, err := os.Pipe()
	if err != nil {
		f.Fatal(err)
	}
	c.reports, c.cmd.ExtraFiles = json.NewDecoder(reports), []*os.File{theirs}
	if c.stdin, err = c.cmd.StdinPipe(); err == nil {
		err = c.cmd.Start()
	}
	_ = theirs.Close()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if !c.ended {
			_ = c.cmd.Process.Kill()
			_ = c.cmd.Wait()
		}
		_ = reports.Close()
		if f.Failed() {
			f.Logf("output of process %d:\n%s", c.cmd.Process.Pid, &c.output)
		}
	})
	if r := c.report(); !r.Inside {
		f.Fatalf("the process answered at once: %+v", r.Answer)
	}
	return c
}

func (c *child) report() (r report) {
	c.f.Helper()
	if err := c.reports.Decode(&r); err != nil {
		c.f.Fatalf("no report of the process: %v", err)
	}
	return r
}

func (c *child) signal(s syscall.Signal) {
	c.f.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.f.Fatal(err)
	}
}

// kill ends the process at once, as a crash would, and waits for its end.
func (c *child) kill() {
	c.f.Helper()
	c.signal(syscall.SIGKILL)
	c.ended = true
	if err := c.cmd.Wait(); err == nil {
		c.f.Error("the process was not killed")
	}
}

// wake lets a stopped process go on, gives its handler an order, and returns the answer to
// its client, when the process has ended in good order.
func (c *child) wake(what string) reply {
	c.f.Helper()
	if _, err := fmt.Fprintln(c.stdin, what); err != nil {
		c.f.Fatal(err)
	}
	c.signal(syscall.SIGCONT)
	r := c.report()
	if r.Answer == nil {
		c.f.Fatal("the handler ran twice")
	}
	_ = c.stdin.Close()
	c.ended = true
	if err := c.cmd.Wait(); err != nil {
		c.f.Errorf("the process: %v\n%s", err, &c.output)
	}
	return *r.Answer
}
