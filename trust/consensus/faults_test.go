//go:build long && linux

package consensus_test

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// rounds is how often each fault happens: go test -args -rounds 50.
var rounds = flag.Int("rounds", 4, "how often each fault happens")

// history has the holds of the processes of a test.
type history struct {
	mu    sync.Mutex
	holds []held
	in    chan held
	done  chan struct{}
}

func newHistory() *history {
	h := &history{in: make(chan held, 1000), done: make(chan struct{})}
	go func() {
		defer close(h.done)
		for one := range h.in {
			h.mu.Lock()
			h.holds = append(h.holds, one)
			h.mu.Unlock()
		}
	}()
	return h
}

// since returns the holds that began after an instant.
func (h *history) since(at int64) (holds []held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, one := range h.holds {
		if one.from > at && one.to > 0 {
			holds = append(holds, one)
		}
	}
	return holds
}

// judged is the judgement of a history.
type judged struct {
	holds, lost int
	together    int // holds that began beside another one
	overlaps    []string
	back        []string // tokens that are not above the last one
}

// judge looks for two that had a lock at the same moment and must not, and for tokens that went back. Tokens of
// callers that hold a key together have no order.
func (h *history) judge() judged {
	h.mu.Lock()
	defer h.mu.Unlock()
	j := judged{holds: len(h.holds)}
	slices.SortFunc(h.holds, func(a, b held) int { return cmp.Compare(a.from, b.from) })
	open := map[string][]held{} // by key: the holds that go on
	highest, exclusive := map[string]int64{}, map[string]int64{}
	for _, one := range h.holds {
		if one.lost {
			j.lost++
		}
		if one.to == 0 {
			continue // it had the lock at no moment
		}
		key, kind, place := strings.Cut(one.key, "/")
		open[key] = slices.DeleteFunc(open[key], func(before held) bool { return before.to <= one.from })
		for _, before := range open[key] {
			if kind == "p" && len(open[key]) < permits || kind == "s" && before.key == one.key {
				continue
			}
			j.overlaps = append(j.overlaps, fmt.Sprintf("%s: %s for %v more when %s began for %v, tokens %d and %d", one.key,
				before.process, time.Duration(before.to-one.from), one.process, time.Duration(one.to-one.from), before.token, one.token))
		}
		if after := highest[key]; !place && one.token <= after || place && one.token <= exclusive[key] {
			j.back = append(j.back, fmt.Sprintf("%s: %d of %s after %d", one.key, one.token, one.process, after))
		}
		if open[key] = append(open[key], one); len(open[key]) > 1 {
			j.together++
		}
		if highest[key] = max(highest[key], one.token); !place {
			exclusive[key] = max(exclusive[key], one.token)
		}
	}
	return j
}

// waitFor waits until a lock is granted after an instant, and returns how long that took.
func (h *history) waitFor(t *testing.T, at int64) time.Duration {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); pause(5 * time.Millisecond) {
		if holds := h.since(at); len(holds) > 0 {
			first := slices.MinFunc(holds, func(a, b held) int { return cmp.Compare(a.from, b.from) })
			return time.Duration(first.from - at)
		}
	}
	t.Fatal("no lock is granted any more")
	return 0
}

// servers are the three members of a system.
type servers interface {
	addrs() []string
	// leading waits until there is a leader that all follow, and returns it.
	leading() server
	// led reports whether a member says that it leads.
	led() bool
}

// server is a member, a process.
type server interface {
	signal(s syscall.Signal)
	kill()
	start()
}

// run has some processes take locks of a kind while a fault happens again and again, until
// enough says that it is enough. It returns their holds.
func run[S servers](t *testing.T, c S, kind string, lease time.Duration, most int, fault func(c S, h *history, workers []*worker) string,
	enough func(*history) bool,
) judged {
	t.Helper()
	h := newHistory()
	var workers []*worker
	for i := range 3 {
		workers = append(workers, startWorker(t, c, fmt.Sprint("p", i), kind, lease, h.in))
	}
	h.waitFor(t, instant())
	var notes []string
	n := 0
	for ; n < most && !enough(h); n++ {
		if note := fault(c, h, workers); note != "" {
			notes = append(notes, note)
		}
	}
	for _, w := range workers {
		w.kill()
	}
	close(h.in)
	<-h.done
	j := h.judge()
	t.Logf("%d rounds, %d holds, %d lost, %d overlaps, %d tokens back; %s", n, j.holds, j.lost, len(j.overlaps), len(j.back),
		strings.Join(notes, " "))
	return j
}

func never(*history) bool { return false }

// alone fails the test if a lock was held twice.
func (j judged) alone(t *testing.T) {
	t.Helper()
	for _, o := range j.overlaps {
		t.Errorf("held twice: %s", o)
	}
	for _, b := range j.back {
		t.Errorf("a token went back: %s", b)
	}
	if j.holds < 20 {
		t.Errorf("only %d holds: the test has gone blind", j.holds)
	}
}

// stopLeader stops the leader for longer than a lease, and continues it.
func stopLeader[S servers](t *testing.T, lease time.Duration) func(S, *history, []*worker) string {
	return func(c S, h *history, _ []*worker) string {
		leader := c.leading()
		leader.signal(syscall.SIGSTOP)
		pause(lease + lease/2)
		at := instant()
		leader.signal(syscall.SIGCONT)
		pause(lease / 2)
		h.waitFor(t, at)
		return ""
	}
}

func TestNoLockIsHeldTwiceWhileTheLeaderIsStopped(t *testing.T) {
	const lease = 2 * time.Second
	run(t, newCluster(t), "interlock", lease, *rounds, stopLeader[*cluster](t, lease), never).alone(t)
}

// The clients still reach the leader, which does not know that others have elected another.
func TestNoLockIsHeldTwiceWhileTheLeaderIsCutOff(t *testing.T) {
	const lease = 2 * time.Second
	run(t, newCluster(t), "interlock", lease, *rounds, func(c *cluster, h *history, _ []*worker) string {
		leader := c.leader()
		c.network.cutOff(leader.id)
		pause(lease + lease/2)
		h.waitFor(t, instant()) // while it is cut off
		c.network.cutOff("")
		pause(lease / 2)
		if now := c.leader(); now == leader {
			return "the same leader" // the network has cut nothing off
		}
		return ""
	}, never).alone(t)
}

// The clients still reach a member that has lost the leader.
func TestNoLockIsHeldTwiceWhileAFollowerIsCutOff(t *testing.T) {
	const lease = 2 * time.Second
	run(t, newCluster(t), "interlock", lease, *rounds, func(c *cluster, h *history, _ []*worker) string {
		leader, client := c.leader(), c.client()
		follower := c.members[slices.IndexFunc(c.members, func(m *member) bool { return m != leader })]
		c.network.cutOff(follower.id)
		eventually(t, "the follower loses its leader", func() bool {
			ctx, cancel := timeout(t, time.Second)
			defer cancel()
			status, err := client.Status(ctx, follower.addr)
			return err == nil && status.Leader == 0
		})
		pause(lease)
		h.waitFor(t, instant())
		c.network.cutOff("")
		pause(lease / 2)
		return ""
	}, never).alone(t)
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); pause(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in a minute not: %s", what)
		}
	}
}

// The mutex on a lease of etcd is held twice under the same fault: a leader that goes on
// ends leases that are alive.
func TestALockOnALeaseOfEtcdIsHeldTwiceWhileTheLeaderIsStopped(t *testing.T) {
	const lease = 5 * time.Second
	overlapping := func(h *history) bool { return len(h.judge().overlaps) > 0 }
	j := run(t, newCluster(t), "lease", lease, 60, stopLeader[*cluster](t, lease), overlapping)
	if len(j.overlaps) == 0 {
		t.Error("the control was not held twice: the faults are too mild to show anything")
	}
	for _, o := range j.overlaps {
		t.Logf("held twice: %s", o)
	}
}

// A lease of 5 s outlives the election.
func TestNoLockIsHeldTwiceOrLostWhileTheLeaderIsKilled(t *testing.T) {
	killLeaders(t, newCluster(t), "interlock")
}

// killLeaders kills leaders while locks with a lease of 5 s are held, and logs when the next
// lock was granted, and when there was a leader.
func killLeaders[S servers](t *testing.T, c S, kind string) {
	t.Helper()
	const lease = 5 * time.Second
	probe, err := takers[kind](c.addrs(), lease)
	if err != nil {
		t.Fatal(err)
	}
	j := run(t, c, kind, lease, *rounds, func(c S, h *history, _ []*worker) string {
		leader := c.leading()
		leader.kill()
		begin, elected := time.Now(), make(chan time.Duration, 1)
		go func() {
			for time.Since(begin) < time.Minute && !c.led() {
				pause(10 * time.Millisecond)
			}
			elected <- time.Since(begin)
		}()
		took := granted(t, probe, begin) // of a key that no other process wants
		leader.start()
		c.leading()
		pause(time.Second)
		h.waitFor(t, instant())
		return fmt.Sprintf("%.2f/%.2f", took.Seconds(), (<-elected).Seconds())
	}, never)
	j.alone(t)
	if j.lost > 0 {
		t.Errorf("%d leases were lost", j.lost)
	}
}

// granted returns how long it takes until a lock is granted that is free.
func granted(t *testing.T, take taker, begin time.Time) time.Duration {
	t.Helper()
	for time.Since(begin) < time.Minute {
		ctx, cancel := timeout(t, 10*time.Second)
		_, _, release, err := take(ctx, "probe")
		cancel()
		if err == nil {
			took := time.Since(begin)
			release()
			return took
		}
	}
	t.Fatal("no lock is granted after the leader was killed")
	return 0
}

func TestNoLockIsHeldTwiceWhileItsHoldersAreStoppedAndKilled(t *testing.T) {
	const lease = time.Second
	run(t, newCluster(t), "interlock", lease, 4**rounds, disturbHolders[*cluster](t, "interlock", lease, lease+lease/2), never).alone(t)
}

// Exclusive holds, which begin with offers, holds beside others, and permits.
func TestPlacesAndOffersExcludeWhileProcessesAreStoppedAndKilled(t *testing.T) {
	placesUnder(t, newCluster(t), "interlock-kinds")
}

// placesUnder stops and kills processes and leaders while locks of all kinds are held.
func placesUnder[S servers](t *testing.T, c S, kind string) {
	t.Helper()
	const lease = 4 * time.Second
	holders, leader, n := disturbHolders[S](t, kind, lease, lease+lease/2), stopLeader[S](t, lease), 0
	j := run(t, c, kind, lease, 2**rounds, func(c S, h *history, workers []*worker) string {
		if n++; n%4 == 0 {
			return leader(c, h, workers)
		}
		return holders(c, h, workers)
	}, never)
	j.alone(t)
	if t.Logf("%d holds began beside another one", j.together); j.together < 20 {
		t.Errorf("only %d holds began beside another one: the test has gone blind", j.together)
	}
}

// disturbHolders stops one process for a time, and kills the next one.
func disturbHolders[S servers](t *testing.T, kind string, lease, stopped time.Duration) func(S, *history, []*worker) string {
	n := 0
	return func(c S, h *history, workers []*worker) string {
		i := n % len(workers)
		if n++; n%2 == 0 {
			workers[i].signal(syscall.SIGSTOP)
			pause(stopped)
			workers[i].signal(syscall.SIGCONT)
		} else {
			workers[i].kill()
			workers[i] = startWorker(t, c, fmt.Sprint("p", i, "-", n), kind, lease, h.in)
		}
		pause(lease / 2)
		h.waitFor(t, instant())
		return ""
	}
}

func TestTheJudgeFindsHoldersThatMustNotBeTogether(t *testing.T) {
	h := newHistory()
	for _, one := range []held{
		{key: "k/s", token: 1, from: 1, to: 10}, {key: "k/s", token: 2, from: 2, to: 10}, {key: "k", token: 3, from: 9, to: 12}, // beside two
		{key: "l/p", token: 2, from: 1, to: 10}, {key: "l/p", token: 1, from: 2, to: 10}, {key: "l/p", token: 3, from: 3, to: 10}, // the third
		{key: "m", token: 2, from: 1, to: 2}, {key: "m/s", token: 1, from: 3, to: 4}, // behind
	} {
		h.in <- one
	}
	close(h.in)
	<-h.done
	if j := h.judge(); len(j.overlaps) != 4 || len(j.back) != 1 || j.together != 4 {
		t.Errorf("%+v; want 2 overlaps of k, 2 of l, a token of m that went back, and 4 holds beside another one", j)
	}
}
