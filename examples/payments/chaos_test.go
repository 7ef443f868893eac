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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

const (
	// chaosLimit bounds the test, chaosCall one request.
	chaosLimit = 2 * time.Minute
	chaosCall  = 10 * time.Second

	chaosClients   = 64
	chaosProcesses = 3
	chaosAccounts  = 40
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
	redistest.Eventually(p.t, 10*time.Second, func(ctx context.Context) error {
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
	const lease = 4 * time.Second
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
	if took := time.Since(killed); took > 2*lease {
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
	opening := int64(total)
	for i := range chaosAccounts {
		c.processes[0].Load().put(chaosAccount(i), opening)
	}

	// Each payment 1 to 5 times, the copies close to one another or far apart.
	type copied struct {
		*chaosPayment
		at int
	}
	var copies []copied
	for i := range total {
		p := &chaosPayment{
			payment: payment{payer: "carol", key: rand.Text(), account: chaosAccount(mathrand.IntN(chaosAccounts)), amount: 1},
			rpc:     i%4 == 0, ids: make(map[string]bool), answer: make(map[string]int),
		}
		c.payments = append(c.payments, p)
		for range 1 + mathrand.IntN(5) {
			copies = append(copies, copied{p, i + mathrand.IntN(1+[]int{2, 50, 1000}[mathrand.IntN(3)])})
		}
	}
	slices.SortFunc(copies, func(a, b copied) int { return a.at - b.at })
	sends := make(chan *chaosPayment)
	go func() {
		defer close(sends)
		for _, s := range copies {
			select {
			case sends <- s.chaosPayment:
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
	t.Logf("%d payments, sent %d times in %v, %d kills, %d pauses", total, len(copies), time.Since(begin), kills, pauses)

	c.checkAnswers(t)
	made := chaosLedger(t, rdb)
	c.checkLedger(t, rdb, made, opening)
	c.checkReplays(ctx, t)
	// Asking again has changed nothing.
	c.checkLedger(t, rdb, made, opening)
	t.Logf("checked after %v", time.Since(begin))
}

func chaosAccount(i int) string { return "account-" + strconv.Itoa(i) }

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

// chaosLedger returns the account of every payment that the bank has made, by its
// id.
func chaosLedger(t *testing.T, rdb *redis.Client) map[string]string {
	t.Helper()
	made := make(map[string]string)
	var cursor uint64
	for {
		keys, next, err := rdb.Scan(t.Context(), cursor, "payments:{ledger}:payment:*", 1000).Result()
		if err != nil {
			t.Fatal(err)
		}
		replies, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for _, key := range keys {
				pipe.HMGet(t.Context(), key, "id", "account")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range replies {
			fields := r.(*redis.SliceCmd).Val()
			made[fields[0].(string)] = strings.TrimPrefix(fields[1].(string), "payments:{ledger}:account:")
		}
		if cursor = next; cursor == 0 {
			return made
		}
	}
}

// checkLedger holds the balances against the payments that the bank has made, and
// those against what clients were told. A reference is one payment, so what was
// taken out of an account beyond them was taken twice.
func (c *chaos) checkLedger(t *testing.T, rdb *redis.Client, made map[string]string, opening int64) {
	t.Helper()
	taken := make(map[string]int64)
	for _, account := range made {
		taken[account]++
	}
	for i := range chaosAccounts {
		id := chaosAccount(i)
		balance, err := rdb.HGet(t.Context(), "payments:{ledger}:account:"+id, "balance").Int64()
		if err != nil {
			t.Fatal(err)
		}
		if balance != opening-taken[id] {
			t.Errorf("%s has %d, want %d after %d payments", id, balance, opening-taken[id], taken[id])
		}
	}
	known := make(map[string]bool)
	for _, p := range c.payments {
		for id := range p.ids {
			if made[id] != p.account || known[id] {
				t.Errorf("%s: answered with payment %s, which the bank does not have, or twice", p.key, id)
			}
			known[id] = true
		}
	}
	if len(made) > len(c.payments) {
		t.Errorf("%d payments made, %d wanted", len(made), len(c.payments))
	}
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
	if unknown.Load() > replayed.Load()/100 {
		t.Error("too many answers were lost")
	}
}
