//go:build unix

package interlock_test

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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/redistest"
)

// childEnv makes TestIdempotentProcesses be one of the processes. It has the
// orders.
const childEnv = "INTERLOCK_IDEMPOTENT_CHILD"

// processLease is long enough for what has to come before its end, on a busy
// machine.
const processLease = 3 * time.Second

// orders are what a process is told to do: to serve an endpoint, and to send it a
// payment.
type orders struct {
	Addr   string // of the server
	Key    string
	Strict bool // the engine is
	Mark   bool // the handler marks the effect
	Effect bool // the effect happens before the handler waits
}

// What a handler does that was told to go on.
const (
	toPay   = "pay"   // have the effect, answer with success
	toFail  = "fail"  // answer with a failure
	toPanic = "panic" // panic with this
	toMark  = "mark"  // mark the effect; fail if that is refused
)

// report is what a process says.
type report struct {
	Inside bool // the handler waits to be told to go on
	Answer *reply
}

// book is the bank of all processes: it makes a payment once for each derived
// key, and counts how often it was asked.
type book struct {
	rdb *redis.Client
	key string // of the request, which names a case
}

func (l book) pay(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	pipe := l.rdb.TxPipeline()
	pipe.Incr(ctx, "asked:"+l.key)
	pipe.HSetNX(ctx, "made:"+l.key, idempotency.DownstreamKey(ctx), "1")
	_, err := pipe.Exec(ctx)
	return err
}

// want checks how often the bank was asked and how many payments it has made.
func (l book) want(f *fixture, asked, made int64) {
	f.Helper()
	n, err := l.rdb.Get(f.Context(), "asked:"+l.key).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		f.Fatal(err)
	}
	if m := l.rdb.HLen(f.Context(), "made:"+l.key).Val(); n != asked || m != made {
		f.Errorf("the bank was asked %d times and has made %d payments; want %d and %d", n, m, asked, made)
	}
}

// TestIdempotentProcesses runs the table of what happens when a process is killed,
// or stopped for longer than its lease, in the middle of a request. It also is these
// processes.
func TestIdempotentProcesses(t *testing.T) {
	for _, a := range adapters {
		if !a.idempotent {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			if in := os.Getenv(childEnv); in != "" {
				serveAsChild(t, a, in)
				return
			}
			srv := redistest.Start(t)
			cases := processTable(a)
			for i := range cases { // then all leases lapse together
				cases[i].begin(newFixture(t, a, srv))
			}
			for i := range cases {
				t.Run(cases[i].name, func(t *testing.T) {
					cases[i].f.T = t
					cases[i].end()
				})
			}
		})
	}
}

// serveAsChild serves an endpoint, sends the payment to it, and ends when it is
// told to.
func serveAsChild(t *testing.T, a adapter, in string) {
	var o orders
	if err := json.Unmarshal([]byte(in), &o); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: o.Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	f := &fixture{world: &world{t, a, nil, "interlock"}, wire: &wire{}}
	f.connect(rdb)
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
	bank := book{rdb, o.Key}
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
	o.Addr = f.srv.Addr()
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

// wake lets a stopped process go on, tells its handler what to do, and returns
// what its client was answered, when the process has ended in good order.
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

// rival is the endpoint in this process. Its handler pays, and answers with the
// generation.
func (f *fixture) rival(bank book, opts ...idempotency.Option) *endpoint {
	f.Helper()
	return f.serve(f.engine(opts...), func(ctx context.Context) (adaptertest.Result, string) {
		if err := bank.pay(ctx); err != nil {
			f.Error(err)
		}
		return adaptertest.OK, fmt.Sprint("paid by generation ", idempotency.Generation(ctx))
	})
}

// lapsed asks again and again until the lease of a process that does not answer
// has lapsed, and returns what is answered then.
func (e *endpoint) lapsed(key string) (a reply) {
	e.f.Helper()
	e.f.eventually("the lease of the other process has lapsed", func() bool {
		a = e.pay(key)
		return a != refused(idempotency.ReasonInFlight)
	})
	return a
}

// processRow is a case of processes.
type processRow struct {
	name string
	orders
	killed bool   // else it is stopped, and
	wakes  string // to do this
	first  reply  // after the lapse
	woken  reply  // of the process that wakes
	again  reply  // after all that

	f     *fixture
	rival *endpoint
	child *child
}

func processTable(a adapter) []*processRow {
	taken := reply{Text: "paid by generation 2"}
	again := taken
	again.Replayed = true
	unknown := refused(idempotency.ReasonOutcomeUnknown)
	late := reply{Text: "paid late"}
	lateAgain := reply{Text: "paid late", Replayed: true}
	// A handler that writes a failure has answered; an RPC that fails has not.
	failed := reply{Result: adaptertest.Failed, Text: "failed late"}
	if !a.http {
		failed = refused(core.ReasonLost)
	}
	panicked := reply{Result: adaptertest.Failed, Text: toPanic}
	lost := refused(core.ReasonLost)
	return []*processRow{
		{name: "killed before its effect", killed: true, first: taken, again: again},
		{name: "killed after its effect", killed: true, orders: orders{Effect: true}, first: taken, again: again},
		{name: "killed after marking its effect", killed: true, orders: orders{Mark: true}, first: unknown, again: unknown},
		{
			name: "killed after its marked effect", killed: true, orders: orders{Mark: true, Effect: true},
			first: unknown, again: unknown,
		},
		{name: "killed, and strict", killed: true, orders: orders{Strict: true, Effect: true}, first: unknown, again: unknown},

		// Another takes over and completes while it is stopped.
		{name: "wakes to commit", wakes: toPay, first: taken, woken: again, again: again},
		{name: "wakes to commit its effect", orders: orders{Effect: true}, wakes: toPay, first: taken, woken: again, again: again},
		{name: "wakes to fail", wakes: toFail, first: taken, woken: failed, again: again},
		{name: "wakes to panic", wakes: toPanic, first: taken, woken: panicked, again: again},
		{name: "wakes to mark its effect", wakes: toMark, first: taken, woken: lost, again: again},
		// No other process does, so an answer counts that comes after the lease.
		{name: "wakes after marking its effect", orders: orders{Mark: true}, wakes: toPay, first: unknown, woken: late, again: lateAgain},
		{name: "wakes, and strict", orders: orders{Strict: true}, wakes: toPay, first: unknown, woken: late, again: lateAgain},
	}
}

// begin has a process killed or stopped in its handler.
func (r *processRow) begin(f *fixture) {
	r.f, r.Key = f, strconv.Quote(r.name)
	r.rival = f.rival(book{f.rdb, r.Key})
	r.child = f.startChild(r.orders)
	if r.killed {
		r.child.kill()
	} else {
		r.child.signal(syscall.SIGSTOP)
	}
	// What became of it is not known before its lease is over.
	f.want(r.name+": before the lapse", r.rival.pay(r.Key), refused(idempotency.ReasonInFlight))
	f.want(r.name+": another payment", r.other(), refused(idempotency.ReasonKeyReused))
}

// other sends another payment with the key.
func (r *processRow) other() reply {
	r.f.Helper()
	return r.rival.call(payment{keys: []string{r.Key}, amount: 2})
}

// end waits for the lapse and has the process, if there is one, wake.
func (r *processRow) end() {
	f := r.f
	f.want("after the lapse", r.rival.lapsed(r.Key), r.first)
	var asked, made int64
	for _, happened := range []bool{r.Effect, r.first.Refusal == "", r.wakes == toPay} {
		if happened {
			asked, made = asked+1, 1
		}
	}
	if !r.killed {
		f.want("the one that wakes", r.child.wake(r.wakes), r.woken)
	}
	f.want("again", r.rival.pay(r.Key), r.again)
	f.want("another payment", r.other(), refused(idempotency.ReasonKeyReused))
	book{f.rdb, r.Key}.want(f, asked, made)
}
