//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

const (
	// chaosLimit bounds a test that hangs, chaosCall one request.
	chaosLimit = 10 * time.Minute
	chaosCall  = 30 * time.Second
	// chaosSends is how long payments are sent at most. A slow machine sends fewer, of
	// which everything is checked.
	chaosSends = 90 * time.Second
	chaosLeast = 300 // payments, or the test has shown little

	chaosClients   = 64
	chaosProcesses = 3
	// chaosShare is how many payments are made from an account, of 1, 4, 16 and so
	// on: what it has lost, written in base 4, is how often each took effect.
	chaosShare   = 20
	chaosBase    = 4
	chaosOpening = 2 << (2 * chaosShare)
)

// killedMidFlight starts a payment of 10 through each front end, of an account of
// its name, and kills the process once it works on all of them.
func (p *process) killedMidFlight(rdb *redis.Client, pays map[string]payment) {
	p.t.Helper()
	var under []<-chan reply
	for _, c := range p.clients {
		slow := pays[c.frontend()]
		slow.behaviour = "delay=1h"
		under = append(under, later(func() reply { return c.pay(p.t.Context(), slow) }))
	}
	redistest.Eventually(p.t, time.Minute, func(ctx context.Context) error {
		for id := range pays { // the lock is taken after the claim
			if rdb.Exists(ctx, "interlock:{account/"+id+"}").Val() == 0 {
				return fmt.Errorf("the payment through %s is not under way", id)
			}
		}
		return nil
	})
	p.signal(syscall.SIGKILL)
	for _, u := range under {
		if a := <-u; a.err == nil || a.reason != "" {
			p.t.Errorf("the killed process answered: %+v", a)
		}
	}
}

func TestAPaymentOfAKilledProcessIsTakenOverWhenItsLeaseHasLapsed(t *testing.T) {
	server := redistest.Shared(t)
	rdb := server.Client(t)
	// Long enough for all that comes before its end, on a busy machine.
	const lease = 10 * time.Second
	victim := startServing(t, server.Addr(), "-faults", "-work", "0", "-lease", lease.String())
	other := startServing(t, server.Addr(), "-faults", "-work", "0", "-lease", lease.String())
	other.putAll()
	pays := make(map[string]payment)
	for _, front := range frontends {
		pays[front] = payment{payer: "carol", key: rand.Text(), account: front, amount: 10}
	}
	victim.killedMidFlight(rdb, pays)
	killed := time.Now()

	// At once it is not known that the process is dead.
	for _, c := range other.clients {
		p := pays[c.frontend()]
		if a := c.pay(t.Context(), p); a.reason != "idempotency-in-flight" {
			t.Errorf("before the lapse through %s: %+v", c.frontend(), a)
		}
		p.amount++
		if a := c.pay(t.Context(), p); a.reason != "idempotency-key-reused" {
			t.Errorf("another payment before the lapse through %s: %+v", c.frontend(), a)
		}
	}
	for _, c := range other.clients {
		var made reply
		redistest.Eventually(t, 3*lease, func(ctx context.Context) error {
			if made = c.pay(ctx, pays[c.frontend()]); made.reason == "idempotency-in-flight" {
				return errors.New("the dead process's claim has not lapsed")
			}
			return nil
		})
		if !made.done() || made.replayed || made.account.Balance != 90 {
			t.Errorf("after the lapse through %s: %+v", c.frontend(), made)
		}
		if a := c.pay(t.Context(), pays[c.frontend()]); !a.replayed || a.payment != made.payment {
			t.Errorf("once more through %s: %+v, want %+v", c.frontend(), a, made)
		}
		other.wantBalance(c.frontend(), 90)
	}
	if took := time.Since(killed); took > 3*lease {
		t.Errorf("took %v after the kill, with a lease of %v", took, lease)
	}
}

// chaosPayment is a payment and what its clients were told.
type chaosPayment struct {
	payment
	rpc bool // which way it is sent: over the other it would be another request

	mu     sync.Mutex
	made   int             // answered as carried out
	ids    map[string]bool // answered with success
	answer map[string]int  // other answers, by reason
}

func (p *chaosPayment) note(a reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case a.done():
		p.ids[a.payment] = true
		if !a.replayed {
			p.made++
		}
	case a.reason == "":
		p.answer["no answer"]++
	default:
		p.answer[a.reason]++
	}
}

// chaosReasons are the answers that kills and pauses explain. None of them says
// that the payment was made, and some not that it was not.
var chaosReasons = []string{
	"no answer", "idempotency-in-flight", "idempotency-outcome-unknown", "idempotency-unavailable",
	"held", "unavailable", "lost", "stale-token", "ledger-unavailable", "outcome-unknown",
}

// chaos is a bank in three processes, any of which may be dead.
type chaos struct {
	processes [chaosProcesses]atomic.Pointer[process]
	payments  []*chaosPayment
}

// send sends a payment through a front end of a process that was there a moment
// ago.
func (c *chaos) send(ctx context.Context, p *chaosPayment) (a reply, sent bool) {
	process := c.processes[mathrand.IntN(chaosProcesses)].Load()
	if process == nil {
		return reply{}, false
	}
	rest, rpc := process.clients[:len(process.clients)-1], process.clients[len(process.clients)-1]
	through := rest[mathrand.IntN(len(rest))]
	if p.rpc {
		through = rpc
	}
	ctx, cancel := context.WithTimeout(ctx, chaosCall)
	defer cancel()
	return through.pay(ctx, p.payment), true
}

// hammer has 64 clients send what comes from a channel. One that meets a dead
// process tries the next.
func (c *chaos) hammer(ctx context.Context, sends <-chan *chaosPayment, note func(*chaosPayment, reply)) *sync.WaitGroup {
	wg := new(sync.WaitGroup)
	for range chaosClients {
		wg.Go(func() {
			for p := range sends {
				for ctx.Err() == nil {
					if a, sent := c.send(ctx, p); sent {
						note(p, a)
						break
					}
				}
			}
		})
	}
	return wg
}

// Whatever dies, and whenever: no payment takes effect twice, and none is lost
// that a client was told of.
func TestNoPaymentIsMadeTwiceOrLostWhateverDies(t *testing.T) {
	total := 10_000
	if testing.Short() {
		total = 600
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), chaosLimit)
	defer cancel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	serve := func() *process {
		// Leases that lapse within the chaos, and a bank that is slow enough to be
		// killed at work.
		return startServing(t, server.Addr(), "-work", "1ms", "-ttl", "1s", "-lease", "1s", "-wait", "2s")
	}
	c := &chaos{}
	for i := range c.processes {
		c.processes[i].Store(serve())
	}
	// Each payment 1 to 5 times, the copies close to one another or far apart.
	type copied struct {
		*chaosPayment
		at int
	}
	var copies []copied
	for i := range total {
		p := newChaosPayment(i)
		if p.amount == 1 {
			if err := rdb.HSet(t.Context(), "payments:{ledger}:account:"+p.account, "balance", chaosOpening).Err(); err != nil {
				t.Fatal(err)
			}
		}
		c.payments = append(c.payments, p)
		for range 1 + mathrand.IntN(5) {
			copies = append(copies, copied{p, i + mathrand.IntN(1+[]int{2, 50, 1000}[mathrand.IntN(3)])})
		}
	}
	slices.SortFunc(copies, func(a, b copied) int { return a.at - b.at })
	sends := make(chan *chaosPayment)
	sent := make(map[*chaosPayment]bool) // read when all is answered
	go func() {
		defer close(sends)
		enough := time.After(chaosSends)
		for _, s := range copies {
			select {
			case sends <- s.chaosPayment:
				sent[s.chaosPayment] = true
			case <-enough:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	answered := make(chan struct{})
	wg := c.hammer(ctx, sends, (*chaosPayment).note)
	go func() {
		defer close(answered)
		wg.Wait()
	}()

	kills, pauses := c.wreak(t, server, serve, answered)
	if ctx.Err() != nil {
		t.Fatalf("not done within %v, after %d kills and %d pauses", chaosLimit, kills, pauses)
	}
	c.payments = slices.DeleteFunc(c.payments, func(p *chaosPayment) bool { return !sent[p] })
	t.Logf("%d of %d payments, sent up to %d times in all in %v, %d kills, %d pauses", len(c.payments), total, len(copies), time.Since(begin), kills, pauses)
	if len(c.payments) < chaosLeast {
		t.Errorf("only %d payments were sent: this has shown little", len(c.payments))
	}

	c.checkAnswers(t)
	c.checkLedger(t, rdb)
	c.checkReplays(ctx, t)
	c.checkLedger(t, rdb) // asking again has changed nothing
	t.Logf("checked after %v", time.Since(begin))
}

// newChaosPayment makes the i-th. Neighbours share five accounts, so that they
// wait for one another's locks.
func newChaosPayment(i int) *chaosPayment {
	block, place := i/(5*chaosShare), i%(5*chaosShare)
	amount := int64(1)
	for range place / 5 {
		amount *= chaosBase
	}
	return &chaosPayment{
		payment: payment{
			payer: "carol", key: rand.Text(), amount: amount,
			account: "account-" + strconv.Itoa(block) + "-" + strconv.Itoa(place%5),
		},
		rpc: mathrand.IntN(4) == 0, ids: make(map[string]bool), answer: make(map[string]int),
	}
}

// wreak kills processes and pauses Redis at random, until all is answered. It
// leaves everything running.
func (c *chaos) wreak(t *testing.T, server *redistest.Server, serve func() *process, answered <-chan struct{}) (kills, pauses int) {
	t.Helper()
	// pass paces the chaos, and reports whether it goes on.
	pass := func(least, most time.Duration) bool {
		timer := time.NewTimer(least + mathrand.N(most-least))
		defer timer.Stop()
		select {
		case <-answered:
			return false
		case <-timer.C:
			return true
		}
	}
	kill := func(i int) {
		p := c.processes[i].Swap(nil)
		p.signal(syscall.SIGKILL)
		_ = p.wait() // killed
		kills++
	}
	for on := true; on && pass(200*time.Millisecond, 900*time.Millisecond); {
		victim := mathrand.IntN(chaosProcesses)
		switch what := mathrand.IntN(3); what {
		case 0:
			kill(victim)
			on = pass(10*time.Millisecond, 500*time.Millisecond)
			c.processes[victim].Store(serve())
		default:
			server.Pause(t)
			pauses++
			on = pass(20*time.Millisecond, 1500*time.Millisecond)
			if what == 1 { // its requests have been sent, and are yet to be executed
				kill(victim)
			}
			server.Resume(t)
			if what == 1 {
				c.processes[victim].Store(serve())
			}
		}
	}
	return kills, pauses
}

// checkAnswers looks for what a client must not be told.
func (c *chaos) checkAnswers(t *testing.T) {
	t.Helper()
	all, success, silent := make(map[string]int), 0, 0
	for _, p := range c.payments {
		if len(p.ids) > 1 || p.made > 1 {
			t.Errorf("%s: carried out %d times, %d ids", p.key, p.made, len(p.ids))
		}
		for reason, n := range p.answer {
			all[reason] += n
		}
		if len(p.ids) > 0 {
			success++
		} else {
			silent++
		}
	}
	for reason := range all {
		if !slices.Contains(chaosReasons, reason) {
			t.Errorf("answered %q", reason)
		}
	}
	t.Logf("%d payments answered with success, %d never; other answers: %v", success, silent, all)
	if success < silent {
		t.Error("most payments were not made: this has shown little")
	}
}

// checkLedger holds what the accounts have lost against what clients were told.
func (c *chaos) checkLedger(t *testing.T, rdb *redis.Client) {
	t.Helper()
	balances := make(map[string]int64)
	ids := make(map[string]bool)
	effects := 0
	for _, p := range c.payments {
		balance, found := balances[p.account]
		if !found {
			var err error
			if balance, err = rdb.HGet(t.Context(), "payments:{ledger}:account:"+p.account, "balance").Int64(); err != nil {
				t.Fatal(err)
			}
			balances[p.account] = balance
		}
		times := (chaosOpening - balance) / p.amount % chaosBase
		effects += int(times)
		if times > 1 || len(p.ids) > 0 && times != 1 {
			t.Errorf("%s took effect %d times, and was answered with success %d times, with %v", p.key, times, len(p.ids), p.answer)
		}
		for id := range p.ids {
			if ids[id] {
				t.Errorf("%s: the answer of another payment", p.key)
			}
			ids[id] = true
		}
	}
	t.Logf("%d payments took effect", effects)
}

// checkReplays asks once more for every payment that was answered with success.
// The answer may be missing only where its process was killed before it could
// store it; then the client is told so.
func (c *chaos) checkReplays(ctx context.Context, t *testing.T) {
	t.Helper()
	sends := make(chan *chaosPayment)
	go func() {
		defer close(sends)
		for _, p := range c.payments {
			if len(p.ids) > 0 {
				sends <- p
			}
		}
	}()
	var replayed, unknown atomic.Int64
	c.hammer(ctx, sends, func(p *chaosPayment, a reply) {
		for end := time.Now().Add(time.Minute); a.reason == "idempotency-unavailable" && time.Now().Before(end); {
			if next, sent := c.send(ctx, p); sent { // Redis had no time for it
				a = next
			}
		}
		switch {
		case a.done() && a.replayed && p.ids[a.payment]:
			replayed.Add(1)
		case a.reason == "idempotency-outcome-unknown":
			unknown.Add(1)
		default:
			t.Errorf("%s: was answered with %v, and now %+v", p.key, slices.Collect(maps.Keys(p.ids)), a)
		}
	}).Wait()
	t.Logf("asked again: %d replayed, %d outcome unknown", replayed.Load(), unknown.Load())
	if unknown.Load() > max(10, replayed.Load()/100) {
		t.Error("too many answers were lost")
	}
}
