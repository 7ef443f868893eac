package run

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/fleet"
)

// afterEnded makes a lock on a store without a clock that ended processes wait for. Its holder releases it, and may end, too.
func afterEnded(t *testing.T, random *rand.Rand) (server *castest.Memory, how string) {
	t.Helper()
	server = castest.NewMemory()
	holder := hostOf(t, server)
	t.Cleanup(holder.close)
	lease, err := holder.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	dead, offers, ends, pause := 1+random.IntN(4), random.IntN(2) == 1, random.IntN(2) == 1, time.Duration(random.IntN(8000))*time.Millisecond
	for range dead {
		h := hostOf(t, server)
		t.Cleanup(h.close)
		if offers { // from its second wait on it takes offers
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			_, _ = h.Lock(short, "k")
			cancel()
		}
		go func() { _, _ = h.Lock(ctx, "k") }()
		time.Sleep(100 * time.Millisecond)
		close(h.cut)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ends {
		close(holder.cut)
	}
	time.Sleep(pause)
	return server, fmt.Sprintf("%d ended processes, which take offers: %t; the holder ends: %t; %v after the release", dead, offers, ends, pause)
}

const (
	endedRounds = 200
	endedSoon   = 10 * time.Second // the offer to an ended process, the turns of the others, and requests
)

// A cron job with -wait 0 stays while an ended process is offered the lock.
func TestRunsThatDoNotWaitHaveTheLocksThatEndedProcessesWaitFor(t *testing.T) {
	var longest time.Duration
	for seed := range uint64(endedRounds) {
		synctest.Test(t, func(t *testing.T) {
			server, how := afterEnded(t, rand.New(rand.NewPCG(seed, 0)))
			took, said, err := askOnce(t, server)
			if longest = max(longest, took); err != nil || took > endedSoon {
				t.Errorf("round %d, %s: %v after %v, and it said %q; want the lock within %v", seed, how, err, took, said, endedSoon)
			}
		})
	}
	t.Logf("%d rounds; a run stays for %v at most", endedRounds, longest)
}

// A wait for a free lock does not wait for ended processes.
func TestWaitsEndForLocksThatEndedProcessesWaitFor(t *testing.T) {
	var longest time.Duration
	for seed := range uint64(endedRounds) {
		synctest.Test(t, func(t *testing.T) {
			server, how := afterEnded(t, rand.New(rand.NewPCG(seed, 0)))
			eye := hostOf(t, server)
			defer eye.close()
			f, err := fleet.On(eye.store)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), endedSoon)
			defer cancel()
			if err := f.Wait(ctx, "k"); err != nil {
				t.Errorf("round %d, %s: %v; want that the lock is free within %v", seed, how, err, endedSoon)
			}
			longest = max(longest, time.Since(began))
		})
	}
	t.Logf("%d rounds; a wait takes %v at most", endedRounds, longest)
}
