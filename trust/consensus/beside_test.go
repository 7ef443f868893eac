//go:build long && linux

package consensus_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
)

// measure is for how long each rate is measured: go test -args -measure 5s.
var measure = flag.Duration("measure", 300*time.Millisecond, "for how long each rate is measured, in turns")

// turns is the number of turns of a measurement of two locks: other load on the machine then
// disturbs both.
const turns = 6

// pair takes a lock and gives it up.
type pair func(ctx context.Context, caller int, key string) error

// measured is the cost of pairs of lock and release of one kind.
type measured struct {
	pairs, writes, reads  int64
	took, client, members time.Duration // the last two of CPU
}

func (m measured) String() string {
	n := float64(m.pairs)
	return fmt.Sprintf("%.0f pairs a second, each of %.2f writing requests, %.2f reads, %.0f us of CPU here and %.0f us of the members",
		n/m.took.Seconds(), m.writesOfAPair(), float64(m.reads)/n, m.client.Seconds()*1e6/n, m.members.Seconds()*1e6/n)
}

func (m measured) writesOfAPair() float64 { return float64(m.writes) / float64(m.pairs) }

// beside measures two locks in turns.
func beside(t *testing.T, callers, keys int, members []*exec.Cmd, count func() (writes, reads int64), locks [2]pair) (all [2]measured) {
	t.Helper()
	for _, one := range locks {
		once(t, callers, keys, one) // sessions and nodes are made
	}
	for range turns {
		for i, one := range locks {
			m := &all[i]
			writes, reads := count()
			client, served := ownCPU(), cpuOf(t, members)
			begin := time.Now()
			m.pairs += keep(t, callers, keys, one)
			m.took += time.Since(begin)
			m.client, m.members = m.client+ownCPU()-client, m.members+cpuOf(t, members)-served
			w, r := count()
			m.writes, m.reads = m.writes+w-writes, m.reads+r-reads
		}
	}
	return all
}

// keep has callers take locks for a while, and returns how many pairs that were.
func keep(t *testing.T, callers, keys int, one pair) int64 {
	t.Helper()
	var n atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(*measure / turns)
	for i := range callers {
		all.Go(func() {
			for done := false; !done; done = !time.Now().Before(end) { // at least one
				if err := one(t.Context(), i, fmt.Sprint("rate-", i%keys)); err != nil {
					t.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	all.Wait()
	return n.Load()
}

// once has each caller take its lock once.
func once(t *testing.T, callers, keys int, one pair) {
	t.Helper()
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			if err := one(t.Context(), i, fmt.Sprint("rate-", i%keys)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// ownCPU is the CPU time of this process.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// cpuOf is the CPU time of some processes; proc(5) counts it in hundredths of a second.
func cpuOf(t *testing.T, processes []*exec.Cmd) (all time.Duration) {
	t.Helper()
	for _, p := range processes {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), ") ") // after the name of the program
		for _, field := range strings.Fields(rest)[11:13] {
			n, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			all += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return all
}

// idle has one process hold a lock, and another one wait for it, and counts the transactions
// of each: one each third of the lease at most.
func idle(t *testing.T, open func(process int) core.Store, transactions func(process int) int64) {
	t.Helper()
	const lease = 6 * time.Second
	var lockers [2]*core.Locker
	for i := range lockers {
		var err error
		if lockers[i], err = core.New(open(i), core.Watchdog(lease)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lockers[i].Close(context.Background()) })
	}
	held, err := lockers[0].Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Release(context.Background()) }()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = lockers[1].Lock(ctx, "k")
	}()
	pause(2 * lease / 3) // it waits
	before := [2]int64{transactions(0), transactions(1)}
	begin := time.Now()
	pause(2 * lease)
	most := int64(time.Since(begin)/(lease/3)) + 1
	for i, who := range []string{"a holder", "a process that waits"} {
		n := transactions(i) - before[i]
		t.Logf("%s: %d transactions in %v", who, n, time.Since(begin).Round(time.Millisecond))
		if n > most || i == 0 && n == 0 {
			t.Errorf("%s sends %d transactions in %d thirds of its lease", who, n, most)
		}
	}
	cancel()
	<-left
}
