//go:build unix

package idemcases

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
)

// childEnv makes [RunProcesses] be a process of the table. It has the orders.
const childEnv = "INTERLOCK_IDEMPOTENT_CHILD"

// processLease is long enough for all events before its end, on a busy machine.
const processLease = 3 * time.Second

// orders are the orders of a process: to serve an endpoint, and to send it a payment.
type orders struct {
	Address string // of the records
	Bank    string // the file of the bank
	Key     string
	Strict  bool // the engine is
	Mark    bool // the handler marks the effect
	Effect  bool // the effect happens before the handler waits
}

// The ways to go on for a handler that waits.
const (
	toPay   = "pay"   // have the effect, answer with success
	toFail  = "fail"  // answer with a failure
	toPanic = "panic" // panic with this
	toMark  = "mark"  // mark the effect; fail if that is refused
)

// report is a report of a process.
type report struct {
	Inside bool // the handler waits for the order to go on
	Answer *reply
}

// book is the bank of all processes, a file with a line for each time that it was asked:
// the derived key. It makes a payment once for each.
type book string

func (l book) pay(ctx context.Context) error {
	file, err := os.OpenFile(string(l), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, idempotency.DownstreamKey(ctx))
	return errors.Join(err, file.Close())
}

// want checks how often the bank was asked and how many payments it has made.
func (l book) want(f *fixture, asked, made int) {
	f.Helper()
	text, err := os.ReadFile(string(l))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.Fatal(err)
	}
	keys := strings.Fields(string(text))
	n := len(keys)
	slices.Sort(keys)
	if m := len(slices.Compact(keys)); n != asked || m != made {
		f.Errorf("the bank was asked %d times and has made %d payments; want %d and %d", n, m, asked, made)
	}
}

// RunProcesses runs the table of what happens when a process is killed, or stopped for
// longer than its lease, in the middle of a request. It also is these processes, and
// does nothing else there. start starts a server, and says how connect, which is
// called in another process, finds its records. It runs over one framework of each
// protocol.
func RunProcesses(t *testing.T, over []adaptertest.Framework, start func(t *testing.T) (Records, string), connect func(t *testing.T, address string) Records) {
	for _, a := range over {
		t.Run(a.Label, func(t *testing.T) {
			if in := os.Getenv(childEnv); in != "" {
				serveAsChild(t, a, in, connect)
				return
			}
			t.Parallel()
			records, address := start(t)
			banks := t.TempDir()
			cases := processTable(a)
			for i, c := range cases { // then all leases lapse together
				c.Address, c.Bank = address, filepath.Join(banks, strconv.Itoa(i))
				c.begin(newFixture(t, a, records))
			}
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					c.f.T = t
					c.end()
				})
			}
		})
	}
}

// rival is the endpoint in this process. Its handler pays, and answers with the
// generation.
func (f *fixture) rival(bank book, opts ...idempotency.Option) *served {
	f.Helper()
	return f.serve(f.engine(opts...), func(ctx context.Context) (adaptertest.Result, string) {
		if err := bank.pay(ctx); err != nil {
			f.Error(err)
		}
		return adaptertest.OK, fmt.Sprint("paid by generation ", idempotency.Generation(ctx))
	})
}

// lapsed asks again and again until the lease of a process that does not answer has lapsed,
// and returns the answer.
func (e *served) lapsed(key string) (a reply) {
	e.f.Helper()
	e.f.eventually("the lease of the other process has lapsed", func() bool {
		a = e.pay(key)
		return a != refused(reason.InFlight)
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
	rival *served
	child *child
}

func processTable(a adaptertest.Framework) []*processRow {
	taken := reply{Text: "paid by generation 2"}
	again := taken
	again.Replayed = true
	unknown := refused(reason.OutcomeUnknown)
	late := reply{Text: "paid late"}
	lateAgain := reply{Text: "paid late", Replayed: true}
	// A handler that writes a failure has answered; an RPC that fails has not.
	failed := reply{Result: adaptertest.Failed, Text: "failed late"}
	if !a.HTTP {
		failed = refused(reason.Lost)
	}
	panicked := reply{Result: adaptertest.Failed, Text: toPanic}
	lost := refused(reason.Lost)
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
	r.rival = f.rival(book(r.Bank))
	r.child = f.startChild(r.orders)
	if r.killed {
		r.child.kill()
	} else {
		r.child.signal(syscall.SIGSTOP)
	}
	// Its outcome is not known before its lease has ended.
	f.want(r.name+": before the lapse", r.rival.pay(r.Key), refused(reason.InFlight))
	f.want(r.name+": another payment", r.other(), refused(reason.KeyReused))
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
	var asked, made int
	for _, happened := range []bool{r.Effect, r.first.Refusal == "", r.wakes == toPay} {
		if happened {
			asked, made = asked+1, 1
		}
	}
	if !r.killed {
		f.want("the one that wakes", r.child.wake(r.wakes), r.woken)
	}
	f.want("again", r.rival.pay(r.Key), r.again)
	f.want("another payment", r.other(), refused(reason.KeyReused))
	book(r.Bank).want(f, asked, made)
}
