//go:build long

package quorum_test

import (
	"context"
	"errors"
	"fmt"
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

// breakage is a kind of failure of a node.
type breakage struct {
	name     string
	do, undo func(t *testing.T, g *group, node int)
}

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
			t.Parallel()
			g := newGroup(t, 5)
			var lockers []*core.Locker
			for range 4 {
				lockers = append(lockers, g.locker(t))
			}
			last := make([]atomic.Int64, 1)
			for i := range 5 {
				for j := range i {
					b.do(t, g, i)
					b.do(t, g, j)
					n, failed := contend(t, lockers, last, 1, 10)
					t.Logf("%d contended grants without nodes %d and %d; %d times too few nodes could be reached", n, j, i, failed)
					b.undo(t, g, i)
					b.undo(t, g, j)
					if b.name == "down" {
						g.wantGone(t)
						return // a restarted node is left out, and then two more cannot be spared
					}
					for _, l := range lockers {
						g.wantAll(t, l)
					}
				}
			}
			g.wantGone(t)
		})
	}
}

func TestGrantsNothingWithThreeNodesGone(t *testing.T) {
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
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
			// The votes of the two others go again, and so do late votes of the paused nodes.
			g.wantGone(t)
		})
	}
}

func TestTokensGrowOverContendedGrantsWithMessageLoss(t *testing.T) {
	t.Parallel()
	// One goroutine of each process for a key: nothing is handed on, every grant
	// is a vote.
	const lockers, keys, each, rounds = 3, 8, 2, 105 // 5,040 grants
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
		n, failed := contend(t, all, last, 1, each)
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
	t.Parallel()
	const longest = 2 * time.Second
	g := newGroup(t, 5)
	for _, srv := range g.servers {
		srv.Vouch(t, "interlock", longest)
	}
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
	g.wires[3].sever(true) // and requests to the paused ones are not executed later
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

func TestAProcessThatMeetsNodesWithoutAMarkLeavesThemOut(t *testing.T) {
	t.Parallel()
	const longest = 5 * time.Second
	g := newGroup(t, 3)
	for _, srv := range g.servers {
		srv.Restart(t)
	}
	s := g.store(t, quorum.MaxTTL(longest))
	begin := time.Now()
	if _, err := lockerOn(t, s, core.TTL(longest)).TryLock(t.Context(), "k"); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("error is %v, want ErrUnavailable", err)
	}
	if n := g.holders(t.Context(), "k"); len(n) > 0 {
		t.Errorf("a vote that does not count was taken on %v", n)
	}
	found, err := s.Check(t.Context())
	if err != nil || !strings.Contains(strings.Join(found, "\n"), "may have forgotten locks") {
		t.Errorf("Check says %q, %v", found, err)
	}
	held := lock(t, lockerOn(t, s, core.TTL(longest)), "k") // it waits
	if since := time.Since(begin); since < longest {
		t.Errorf("the nodes voted after %v, before a lease of %v can have ended", since, longest)
	}
	_ = held.Release(context.Background()) // its lease of five seconds may be over
	g.wantGone(t)

	// FLUSHALL loses the locks of a node, but its run id stays.
	second := g.store(t, quorum.MaxTTL(longest))
	held = lock(t, lockerOn(t, second, core.TTL(longest)), "k")
	begin = time.Now()
	for _, rdb := range g.admins {
		if err := rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	next := lock(t, lockerOn(t, s, core.TTL(longest)), "k")
	if since := time.Since(begin); since < longest {
		t.Errorf("the nodes voted %v after they had lost a lease of %v", since, longest)
	}
	_ = next.Release(context.Background())
	_ = held.Release(context.Background())
	g.wantGone(t)
}

func TestRenewalNeedsAMajority(t *testing.T) {
	t.Parallel()
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
	// By its clock the holder gets the loss before the lease ends. The margin is for a
	// machine that has other work.
	if took > lease+15*time.Second {
		t.Errorf("lost after %v, long after the lease of %v had ended on the nodes", took, lease)
	}
	// Two still have it, which is not enough for a holder.
	_ = held.Release(context.Background())
	g.wires[0].sever(false)
	g.wires[1].sever(false)
	g.servers[3].Resume(t)
	g.wantGone(t)
}

func TestAcquiresThatAreCancelledLeaveNothingBehind(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	g := newGroup(t, 2)
	other := strings.Replace(g.servers[0].Addr(), "127.0.0.1", "localhost", 1)
	nodes := []redis.UniversalClient{
		g.servers[0].Client(t), g.servers[1].Client(t),
		g.servers[0].Client(t, func(o *redis.Options) { o.Addr = other }),
	}
	s, err := quorum.New(nodes)
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
