//go:build long && linux

package consensus_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/natsstore"
)

func TestNATSKeepsTheContractOfAServer(t *testing.T) {
	c := newNATS(t, 0)
	castest.Run(t, func(*testing.T) casstore.Server { return natsstore.Server(c.js(), natsBucket) })
}

func TestTheStoreOnNATSKeepsItsContract(t *testing.T) {
	c := newNATS(t, 0)
	drivertest.Run(t, func(t *testing.T) driver.Store { return openNATS(t, c.js(), casstore.Timeout(limit)) })
}

// natsLease outlives an election of NATS, which takes four to nine seconds.
const natsLease = 15 * time.Second

func TestOnNATSNoLockIsHeldTwiceOrLostWhileTheLeaderIsKilled(t *testing.T) {
	const lease = natsLease
	j := run(t, newNATS(t, 0), "nats", lease, *rounds, func(c *natsCluster, h *history, _ []*worker) string {
		leader := c.leading()
		leader.kill()
		at := instant()
		took := h.waitFor(t, at)
		leader.start()
		c.leading()
		pause(time.Second)
		h.waitFor(t, instant())
		return fmt.Sprintf("%.2f", took.Seconds())
	}, never)
	j.alone(t)
	if j.lost > 0 {
		t.Errorf("%d leases were lost", j.lost)
	}
}

func TestOnNATSNoLockIsHeldTwiceWhileTheLeaderIsStopped(t *testing.T) {
	const lease = 4 * time.Second
	run(t, newNATS(t, 0), "nats", lease, *rounds, stopNATSLeader(t, 12*time.Second), never).alone(t)
}

// stopNATSLeader stops the leader of the bucket for long enough that others elect another one, and continues it.
func stopNATSLeader(t *testing.T, stopped time.Duration) func(*natsCluster, *history, []*worker) string {
	return func(c *natsCluster, h *history, _ []*worker) string {
		leader := c.leading()
		leader.signal(syscall.SIGSTOP)
		pause(stopped)
		at := instant()
		leader.signal(syscall.SIGCONT)
		h.waitFor(t, at)
		c.leading()
		return ""
	}
}

func TestOnNATSNoLockIsHeldTwiceWhileItsHolderIsCutOff(t *testing.T) {
	cutHolders(t, newNATS(t, 0), "nats-long")
}

func TestOnNATSCheckNamesWhatIsUnsafe(t *testing.T) {
	c := newNATS(t, 0)
	store := openNATS(t, c.js())
	check := func() string {
		ctx, cancel := timeout(t, limit)
		defer cancel()
		found, err := store.Check(ctx)
		if err != nil {
			return err.Error()
		}
		return strings.Join(found, "; ")
	}
	if found := check(); found != "" {
		t.Errorf("three members: %s; want nothing", found)
	}
	away := c.follower()
	away.kill()
	eventually(t, "Check says that a member is away", func() bool { return strings.Contains(check(), "the member "+away.name+" is away") })
}

// The lock that many programs make of a bucket is held twice under the same faults.
func TestALockByAValueOfABucketIsHeldTwiceWhileItsHolderIsStopped(t *testing.T) {
	const lease = 2 * time.Second
	overlapping := func(h *history) bool { return len(h.judge().overlaps) > 0 }
	j := run(t, newNATS(t, 0), "nats-value", lease, 60, disturbHolders[*natsCluster](t, "nats-value", lease, 2*lease), overlapping)
	if len(j.overlaps) == 0 {
		t.Error("the control was not held twice: the faults are too mild to show anything")
	}
	for _, o := range j.overlaps {
		t.Logf("held twice: %s", o)
	}
}

// All kinds of holds, while the leader is killed, stopped and moved, a member is away, and processes are stopped and
// killed, with members that take two batches at once.
func TestOnNATSAllKindsExcludeUnderAllFaults(t *testing.T) {
	const lease, least = 4 * time.Second, 5_000
	c := newNATS(t, 2)
	holders := disturbHolders[*natsCluster](t, "nats-kinds", lease, lease+lease/2)
	stop := stopNATSLeader(t, 12*time.Second)
	faults := []func(h *history, workers []*worker) string{
		func(h *history, workers []*worker) string { return "stopped" + stop(c, h, workers) },
		func(h *history, workers []*worker) string { return "holder" + holders(c, h, workers) },
		func(h *history, _ []*worker) string {
			c.stepDown()
			h.waitFor(t, instant())
			return "moved"
		},
		func(h *history, _ []*worker) string {
			away := c.follower()
			away.kill()
			h.waitFor(t, instant())
			pause(2 * lease)
			away.start()
			c.leader()
			return "away"
		},
		func(h *history, workers []*worker) string { return "holder" + holders(c, h, workers) },
		func(h *history, _ []*worker) string {
			leader := c.leader()
			leader.kill()
			h.waitFor(t, instant())
			leader.start()
			c.leader()
			return "killed"
		},
	}
	n := 0
	j := run(t, c, "nats-kinds", lease, 200, func(_ *natsCluster, h *history, workers []*worker) string {
		note := faults[n%len(faults)](h, workers)
		n++
		return note
	}, func(h *history) bool { return n >= len(faults)**rounds/2 && len(h.since(0)) >= least })
	j.alone(t)
	if t.Logf("%d holds began beside another one", j.together); j.together < 20 {
		t.Errorf("only %d holds began beside another one: the test has gone blind", j.together)
	}
}
