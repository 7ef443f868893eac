//go:build long

package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/quorum"
	"github.com/interlock-go/interlock/internal/redistest"
)

// breakage is a way in which a node can fail.
type breakage struct {
	name     string
	do, undo func(t *testing.T, g *group, node int)
}

// nodeTimeout is the default of [quorum.NodeTimeout] for a lease of 30 s.
const nodeTimeout = 300 * time.Millisecond

var breakages = []breakage{
	{
		"down",
		func(_ *testing.T, g *group, i int) { g.servers[i].Kill() },
		func(t *testing.T, g *group, i int) { g.servers[i].Restart(t) },
	},
	{
		"paused",
		func(t *testing.T, g *group, i int) { g.servers[i].Pause(t) },
		func(t *testing.T, g *group, i int) { g.servers[i].Resume(t) },
	},
	{
		"cut off",
		func(_ *testing.T, g *group, i int) { g.wires[i].sever(true) },
		func(_ *testing.T, g *group, i int) { g.wires[i].sever(false) },
	},
}

func TestKeepsGrantingWithAnyTwoNodesGone(t *testing.T) {
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			g := newGroup(t, 5)
			l := g.locker(t)
			sample(t, l, 50) // connections and scripts
			const n = 200
			healthy := sample(t, l, n)
			worst := time.Duration(0)
			for _, pair := range [][2]int{{0, 1}, {1, 3}, {2, 4}} {
				for _, i := range pair {
					b.do(t, g, i)
				}
				p50 := sample(t, l, n)
				worst = max(worst, p50)
				for _, i := range pair {
					b.undo(t, g, i)
				}
				if b.name == "down" {
					break // a restarted node is left out, and then two more cannot be spared
				}
				g.wantAll(t, l)
			}
			t.Logf("p50 healthy %v, with two nodes %s %v (%.2f)", healthy, b.name, worst, float64(worst)/float64(healthy))
			// The aim is 3 times. On a machine that others use the medians of two
			// minutes differ by more; a lock that waits for the lost nodes takes
			// the whole time that a node has.
			if worst > max(3*healthy, nodeTimeout/3) {
				t.Errorf("p50 with two nodes %s is %v, healthy it is %v", b.name, worst, healthy)
			}
			g.wantGone(t)
		})
	}
}

func TestProcessesShareAKeyWithTwoNodesGone(t *testing.T) {
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			g := newGroup(t, 5)
			var lockers []*core.Locker
			for range 4 {
				lockers = append(lockers, g.locker(t))
			}
			b.do(t, g, 1)
			b.do(t, g, 2)
			begin := time.Now()
			n, failed := contend(t, lockers, make([]atomic.Int64, 1), 1, 50)
			t.Logf("%d contended grants in %v; %d times too few nodes could be reached", n, time.Since(begin), failed)
			b.undo(t, g, 1)
			b.undo(t, g, 2)
			g.wantGone(t)
		})
	}
}

func TestGrantsNothingWithThreeNodesGone(t *testing.T) {
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			g := newGroup(t, 5)
			l := g.locker(t)
			release(t, lock(t, l, "warm"))
			for i := range 3 {
				b.do(t, g, i)
			}
			for i := range 5 {
				begin := time.Now()
				lease, err := l.Lock(t.Context(), fmt.Sprint("k", i), core.Wait(100*time.Millisecond))
				if !errors.Is(err, core.ErrUnavailable) {
					t.Errorf("error is %v, want ErrUnavailable", err)
				}
				if err == nil {
					release(t, lease)
				}
				if d := time.Since(begin); d > 10*time.Second {
					t.Errorf("it took %v to say so", d)
				}
			}
			for i := range 3 {
				b.undo(t, g, i)
			}
			// What the two others granted goes again, and so does what those that
			// were paused do late.
			g.wantGone(t)
		})
	}
}

func TestTokensGrowOverContendedGrantsWithMessageLoss(t *testing.T) {
	// One goroutine of each process for a key: nothing is handed on, every grant
	// is a vote.
	const lockers, keys, each = 3, 8, 2 // in a round
	rounds := 5
	if os.Getenv("INTERLOCK_SOAK") != "" {
		rounds = 105 // 5,040 grants, in about a minute
	}
	g := newGroup(t, 5)
	within := func(timeout time.Duration) (all []*core.Locker) {
		for range lockers {
			all = append(all, lockerOn(t, g.store(t, quorum.NodeTimeout(timeout)), core.Watchdog(10*time.Second)))
		}
		return all
	}
	for _, w := range g.wires {
		w.lose(0.3)
	}
	// A slow machine's nodes need more time, in order not to look lost as well.
	timeout := 150 * time.Millisecond
	all, last := within(timeout), make([]atomic.Int64, keys)
	for range rounds {
		begin := time.Now()
		n, failed := contend(t, all, last, 1, each)
		t.Logf("%d grants in %v with 30 %% of all requests and of all replies lost; a node had %v, and %d times too few could be reached",
			n, time.Since(begin), timeout, failed)
		if failed > n && timeout < 900*time.Millisecond {
			timeout = min(2*timeout, 900*time.Millisecond)
			all = within(timeout)
		}
	}
	for _, w := range g.wires {
		w.lose(0)
	}
	g.wantGone(t)
}

func TestARestartedNodeIsLeftOutForTheLongestLease(t *testing.T) {
	const longest = 2 * time.Second
	g := newGroup(t, 5)
	// A holds the lock on nodes 0 to 2 alone.
	ours, theirs := g.store(t, quorum.MaxTTL(longest)), g.store(t, quorum.MaxTTL(longest))
	a, b := lockerOn(t, ours, core.TTL(longest)), lockerOn(t, theirs, core.TTL(longest))
	for _, s := range []*quorum.Store{ours, theirs} {
		redistest.Eventually(t, 20*time.Second, func(ctx context.Context) error { // they know who the nodes are
			found, err := s.Check(ctx)
			for _, says := range found {
				if !strings.Contains(says, "appendonly is off") { // it does not answer in its time
					err = errors.Join(err, errors.New(says))
				}
			}
			return err
		})
	}
	g.servers[3].Pause(t)
	g.servers[4].Pause(t)
	lease := lock(t, a, "k")
	g.wires[3].sever(true) // and what was sent to the paused ones is not executed later
	g.wires[4].sever(true)
	g.servers[3].Restart(t)
	g.servers[4].Restart(t)
	// Node 2 forgets it. With the two others it would be a majority for b.
	g.servers[2].Restart(t)
	restarted := time.Now()
	g.wires[3].sever(false)
	g.wires[4].sever(false)
	for lease.Err() == nil {
		second, err := b.Lock(t.Context(), "k", core.Wait(50*time.Millisecond))
		if err == nil {
			if lease.Err() == nil {
				t.Fatalf("two holders: tokens %d and %d", lease.Token(), second.Token())
			}
			_ = second.Release(context.Background()) // its lease of two seconds may be over
		}
	}
	second := lock(t, b, "k")
	since := time.Since(restarted)
	if second.Token() <= lease.Token() {
		t.Errorf("token %d after %d", second.Token(), lease.Token())
	}
	if since < longest {
		t.Errorf("restarted nodes voted again after %v, before a lease of %v can have ended", since, longest)
	}
	t.Logf("the nodes voted again %v after their restart", since)
	_ = second.Release(context.Background()) // its lease of two seconds may be over
	_ = lease.Release(context.Background())
	g.wantGone(t)
}

func TestAProcessThatMeetsAYoungNodeLeavesItOut(t *testing.T) {
	begin := time.Now()
	g := newGroup(t, 3)
	store := func(longest time.Duration) *quorum.Store {
		nodes := make([]redis.UniversalClient, 3)
		for i, srv := range g.servers {
			nodes[i] = srv.Client(t)
		}
		s, err := quorum.New(nodes, quorum.MaxTTL(longest))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	// To this one the nodes are young for as long as the test runs.
	s := store(10 * time.Minute)
	if _, err := lockerOn(t, s).TryLock(t.Context(), "k"); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("error is %v, want ErrUnavailable", err)
	}
	if n := g.holders(t.Context(), "k"); len(n) > 0 {
		t.Errorf("a vote that does not count was taken on %v", n)
	}
	redistest.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		found, err := s.Check(ctx)
		if err != nil || !strings.Contains(strings.Join(found, "\n"), "started a short while ago") {
			return fmt.Errorf("Check says %q, %w", found, err)
		}
		return nil
	})
	const longest = 5 * time.Second
	held := lock(t, lockerOn(t, store(longest), core.TTL(longest)), "k") // it waits until they are old enough
	if since := time.Since(begin); since < longest {
		t.Errorf("the nodes voted %v after their start, before a lease of %v can have ended", since, longest)
	}
	_ = held.Release(context.Background()) // its lease of five seconds may be over
	g.wantGone(t)
}

func TestRenewalNeedsAMajority(t *testing.T) {
	const lease = 6 * time.Second
	g := newGroup(t, 5)
	l := g.locker(t, core.Watchdog(lease))
	g.wantAll(t, l)
	held := lock(t, l, "k")
	g.wantHeld(t, "k") // else it has a bare majority, and needs each of them
	g.wires[0].sever(true)
	g.servers[3].Pause(t)
	select {
	case <-held.Context().Done():
		t.Fatalf("lost with two nodes gone: %v", context.Cause(held.Context()))
	case <-time.After(3 * lease / 2):
	}
	g.wires[1].sever(true)
	cut := time.Now()
	select {
	case <-held.Context().Done():
	case <-time.After(10 * lease):
		t.Fatal("not lost with three nodes gone")
	}
	took := time.Since(cut)
	if cause := context.Cause(held.Context()); !errors.Is(cause, core.ErrLost) {
		t.Errorf("cause is %v, want ErrLost", cause)
	}
	// By its clock the holder is told before the lease is over. The margin is for a
	// machine that has other work.
	if took > lease+15*time.Second {
		t.Errorf("lost after %v, long after the lease of %v was over on the nodes", took, lease)
	}
	// Two still have it, which is not enough to be anybody's.
	_ = held.Release(context.Background())
	g.wires[0].sever(false)
	g.wires[1].sever(false)
	g.servers[3].Resume(t)
	g.wantGone(t)
}

func TestALeaseIsLostOnceAMajorityDoesNotKnowIt(t *testing.T) {
	g := newGroup(t, 5)
	l := g.locker(t, core.Watchdog(30*time.Second))
	g.wantAll(t, l)
	held := lock(t, l, "k")
	g.wantHeld(t, "k")
	flush := func(nodes ...*redis.Client) {
		t.Helper()
		for _, rdb := range nodes {
			redistest.Eventually(t, 20*time.Second, func(ctx context.Context) error { return rdb.FlushAll(ctx).Err() })
		}
	}
	flush(g.admins[:2]...)
	if err := checked(held); err != nil {
		t.Errorf("Check with three nodes of five: %v", err)
	}
	flush(g.admins[2])
	if err := checked(held); !errors.Is(err, core.ErrLost) {
		t.Errorf("Check with two nodes of five: %v, want ErrLost", err)
	}
	if err := held.Release(t.Context()); !errors.Is(err, core.ErrLost) {
		t.Errorf("Release: %v, want ErrLost", err)
	}
	flush(g.admins...)
}

func TestAcquiresThatAreCancelledLeaveNothingBehind(t *testing.T) {
	g := newGroup(t, 5)
	a, b := g.locker(t), g.locker(t)
	release(t, lock(t, a, "warm"))
	for _, w := range g.wires {
		w.lose(0.2)
	}
	var wg sync.WaitGroup
	for i := range 200 {
		l := []*core.Locker{a, b}[i%2]
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%20)*100*time.Microsecond)
			defer cancel()
			if lease, err := l.Lock(ctx, fmt.Sprint("k", i%7)); err == nil {
				_ = lease.Release(ctx)
			}
		})
	}
	wg.Wait()
	for _, w := range g.wires {
		w.lose(0)
	}
	g.wantGone(t)
}

func TestWhatStragglersTakeLateGoesAgain(t *testing.T) {
	g := newGroup(t, 5)
	l := g.locker(t)
	release(t, lock(t, l, "warm"))
	g.servers[2].Pause(t)
	g.servers[4].Pause(t)
	for i := range 5 {
		release(t, lock(t, l, fmt.Sprint("k", i)))
	}
	held := lock(t, l, "held")
	g.servers[2].Resume(t)
	g.servers[4].Resume(t)
	if err := checked(held); err != nil {
		t.Error(err)
	}
	release(t, held)
	g.wantGone(t)
}

func TestManyWhoAskAtOnceFindOneHolder(t *testing.T) {
	g := newGroup(t, 5)
	const n = 12
	var lockers []*core.Locker
	for range n {
		l := lockerOn(t, g.store(t, quorum.NodeTimeout(2*time.Second)))
		release(t, lock(t, l, "warm"))
		lockers = append(lockers, l)
	}
	for round := range 4 {
		start := make(chan struct{})
		grants := make(chan *core.Lease, n)
		var wg sync.WaitGroup
		for _, l := range lockers {
			wg.Go(func() {
				<-start
				var lease *core.Lease
				var err error
				for end := time.Now().Add(30 * time.Second); ; { // too few nodes may answer in their time
					lease, err = l.Lock(t.Context(), fmt.Sprint("k", round), core.Wait(3*time.Second))
					if !errors.Is(err, core.ErrUnavailable) || time.Now().After(end) {
						break
					}
				}
				switch {
				case err == nil:
					grants <- lease
				case !errors.Is(err, core.ErrHeld):
					t.Errorf("error is %v, want ErrHeld", err)
				}
			})
		}
		close(start)
		wg.Wait()
		close(grants)
		if len(grants) != 1 {
			t.Errorf("%d of %d got the lock, want 1", len(grants), n)
		}
		for lease := range grants {
			release(t, lease)
		}
	}
	g.wantGone(t)
}

func TestTwoAddressesOfOneServerHaveOneVote(t *testing.T) {
	g := newGroup(t, 2)
	other := strings.Replace(g.servers[0].Addr(), "127.0.0.1", "localhost", 1)
	nodes := []redis.UniversalClient{
		g.servers[0].Client(t), g.servers[1].Client(t),
		g.servers[0].Client(t, func(o *redis.Options) { o.Addr = other }),
	}
	s, err := quorum.New(nodes, quorum.AdmitYoung())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	redistest.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		found, err := s.Check(ctx)
		if !errors.Is(err, core.ErrConfig) || !strings.Contains(strings.Join(found, "\n"), "the same server as") {
			return fmt.Errorf("Check: %q, %w; want ErrConfig that names the two", found, err)
		}
		return nil
	})
	l := lockerOn(t, s)
	release(t, lock(t, l, "warm")) // two of three
	g.servers[1].Pause(t)
	defer g.servers[1].Resume(t)
	lease, err := l.Lock(t.Context(), "k", core.Wait(100*time.Millisecond))
	if err == nil {
		release(t, lease)
		t.Error("one server is a majority")
	}
}

func TestALeaseLongerThanMaxTTLIsRefused(t *testing.T) {
	g := newGroup(t, 3)
	l := lockerOn(t, g.store(t, quorum.MaxTTL(time.Second)))
	if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, core.ErrConfig) {
		t.Errorf("error is %v, want ErrConfig", err)
	}
}
