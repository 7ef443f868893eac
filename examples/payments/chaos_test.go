//go:build long && linux

package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/redistest"
)

const (
	chaosPayments  = 2000
	chaosClients   = 32
	chaosProcesses = 3
	// chaosShare is how many payments are made from an account, of 1, 4, 16 and so
	// on: what it has lost, written in base 4, is how often each took effect.
	chaosShare, chaosBase = 20, 4
	chaosOpening          = 2 << (2 * chaosShare)
)

// chaosReasons are the answers that kills and pauses explain. None of them says
// that the payment was made, and some not that it was not.
var chaosReasons = []string{
	"no answer", string(reason.InFlight), string(reason.OutcomeUnknown), string(reason.NoRecord),
	string(reason.Held), string(reason.Unavailable), string(reason.Lost), "stale-token", "ledger-unavailable", "outcome-unknown",
}

// process is a running program, with clients of its HTTP front ends.
type process struct {
	cmd     *exec.Cmd
	clients []client
}

// startProcess runs the program, and returns when it accepts.
func startProcess(t *testing.T, redis string) *process {
	t.Helper()
	// Leases that lapse within the chaos, and a bank that is slow enough to be killed at work.
	p := &process{cmd: exec.Command(os.Args[0], "-serve", "-addr", anyPort, "-redis", redis,
		"-work", "20ms", "-ttl", "1s", "-lease", "1s", "-wait", "2s")}
	p.cmd.Env = append(os.Environ(), childEnv+"=1")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for range append(frontends, "debug") {
		var name, addr string
		if lines.Scan(); lines.Err() != nil {
			t.Fatal(lines.Err())
		}
		if _, err := fmt.Sscanf(lines.Text(), "listening %s %s", &name, &addr); err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		if !slices.Contains(frontends[:3], name) {
			continue
		}
		c, err := dial(name, addr, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.clients = append(p.clients, c)
	}
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // killed
	for _, c := range p.clients {
		_ = c.hangUp()
	}
}

// chaosPayment is a payment and what its clients were told.
type chaosPayment struct {
	key, account string
	amount       int64

	mu     sync.Mutex
	made   int             // answered as carried out
	ids    map[string]bool // answered with success
	answer map[string]int  // other answers, by reason
}

// chaos is a bank in several processes, and each may be dead.
type chaos struct {
	t         *testing.T
	processes [chaosProcesses]atomic.Pointer[process]
	payments  []*chaosPayment
}

// send sends a payment through a front end of a process that was there a moment ago.
func (c *chaos) send(p *chaosPayment) (id string, replayed bool, err error) {
	process := c.processes[mathrand.IntN(chaosProcesses)].Load()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	var header metadata.MD
	front := process.clients[mathrand.IntN(len(process.clients))]
	made, err := front.Pay(keyed(ctx, p.key, ""), pays(p.account, p.amount), grpc.Header(&header))
	return made.GetPaymentId(), len(header.Get("idempotent-replayed")) > 0, err
}

// hammer has the clients send payments, until there are none left.
func (c *chaos) hammer(sends []*chaosPayment, each func(p *chaosPayment)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range chaosClients {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(sends)); i = next.Add(1) - 1 {
				each(sends[i])
			}
		})
	}
	wg.Wait()
}

// note sends a payment and notes the answer.
func (c *chaos) note(p *chaosPayment) {
	id, replayed, err := c.send(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		p.answer[reasonOf(err)]++
	case !replayed:
		p.made++
		fallthrough
	default:
		p.ids[id] = true
	}
}

// However processes die: no payment takes effect twice, and a payment that a client was
// told about is not lost.
func TestNoPaymentIsMadeTwiceOrLostWhateverDies(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := &chaos{t: t}
	for i := range c.processes {
		c.processes[i].Store(startProcess(t, server.Addr()))
	}
	defer func() {
		for i := range c.processes {
			c.processes[i].Load().kill()
		}
	}()
	var sends []*chaosPayment // each payment 1 to 5 times, the copies close to one another or far apart
	for i := range chaosPayments {
		p := &chaosPayment{key: rand.Text(), amount: 1, ids: make(map[string]bool), answer: make(map[string]int)}
		for range i / 5 % chaosShare {
			p.amount *= chaosBase
		}
		p.account = fmt.Sprint("account-", i/(5*chaosShare), "-", i%5) // neighbours share five accounts
		if p.amount == 1 {
			rdb.HSet(t.Context(), "payments:{ledger}:account:"+p.account, "balance", chaosOpening)
		}
		c.payments = append(c.payments, p)
		for range 1 + mathrand.IntN(5) {
			sends = append(sends, p)
		}
	}
	for i := range sends {
		j := min(len(sends)-1, i+mathrand.IntN([]int{3, 60}[i%2]))
		sends[i], sends[j] = sends[j], sends[i]
	}
	answered := make(chan struct{})
	go func() { defer close(answered); c.hammer(sends, c.note) }()
	kills, pauses := c.wreak(server, answered)
	t.Logf("%d payments sent %d times, %d kills, %d pauses", len(c.payments), len(sends), kills, pauses)
	if kills == 0 || pauses == 0 {
		t.Error("nothing died: this has shown little")
	}
	c.check(rdb)

	// The answer of a payment that succeeded may be missing only where its process was killed
	// before it could store it; then the client is told so.
	var replayed, unknown atomic.Int64
	c.hammer(c.payments, func(p *chaosPayment) {
		if len(p.ids) == 0 {
			return
		}
		var id string
		var again bool
		err := fmt.Errorf("not sent")
		for end := time.Now().Add(patience); err != nil && reasonOf(err) != string(reason.OutcomeUnknown) && time.Now().Before(end); {
			id, again, err = c.send(p)
		}
		switch {
		case err == nil && again && p.ids[id]:
			replayed.Add(1)
		case reasonOf(err) == string(reason.OutcomeUnknown):
			unknown.Add(1)
		default:
			t.Errorf("%s: was answered with %v, and now %q, %t, %v", p.key, p.ids, id, again, err)
		}
	})
	t.Logf("asked again: %d replayed, %d outcome unknown", replayed.Load(), unknown.Load())
	if unknown.Load() > max(10, replayed.Load()/100) {
		t.Error("too many answers were lost")
	}
	c.check(rdb) // asking again has changed nothing
}

// wreak kills processes and pauses Redis at random, until all is answered. It leaves
// everything running.
func (c *chaos) wreak(server *redistest.Server, answered <-chan struct{}) (kills, pauses int) {
	// pass paces the chaos, and reports whether it goes on.
	pass := func(least, most time.Duration) bool {
		select {
		case <-answered:
			return false
		case <-time.After(least + mathrand.N(most-least)):
			return true
		}
	}
	again := func(victim int) {
		c.processes[victim].Swap(startProcess(c.t, server.Addr())).kill()
		kills++
	}
	for on := true; on && pass(200*time.Millisecond, 900*time.Millisecond); {
		victim := mathrand.IntN(chaosProcesses)
		dies := mathrand.IntN(3)
		if dies > 0 {
			server.Pause(c.t)
			pauses++
			on = pass(20*time.Millisecond, 1500*time.Millisecond)
		}
		if dies < 2 { // in a pause its requests have been sent, and are yet to be executed
			_ = c.processes[victim].Load().cmd.Process.Kill()
		}
		if dies > 0 {
			server.Resume(c.t)
		}
		if dies < 2 {
			again(victim)
		}
	}
	return kills, pauses
}

// check holds what the accounts have lost against what clients were told.
func (c *chaos) check(rdb *redis.Client) {
	c.t.Helper()
	balances, ids, success := make(map[string]int64), make(map[string]bool), 0
	for _, p := range c.payments {
		if _, found := balances[p.account]; !found {
			balance, err := rdb.HGet(c.t.Context(), "payments:{ledger}:account:"+p.account, "balance").Int64()
			if err != nil {
				c.t.Fatal(err)
			}
			balances[p.account] = balance
		}
		times := (chaosOpening - balances[p.account]) / p.amount % chaosBase
		if times > 1 || len(p.ids) > 0 && times != 1 || len(p.ids) > 1 || p.made > 1 {
			c.t.Errorf("%s took effect %d times, was answered %d times as made, by the ids %v, and by %v", p.key, times, p.made, p.ids, p.answer)
		}
		for reason := range p.answer {
			if !slices.Contains(chaosReasons, reason) {
				c.t.Errorf("answered %q", reason)
			}
		}
		for id := range p.ids {
			if ids[id] {
				c.t.Errorf("%s: the answer of another payment", p.key)
			}
			ids[id] = true
			success++
		}
	}
	if success < len(c.payments)/2 {
		c.t.Errorf("%d of %d payments were made: this has shown little", success, len(c.payments))
	}
}
