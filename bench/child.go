package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// cellEnv carries a cell to the process that runs it.
const cellEnv = "INTERLOCK_BENCH_CELL"

// cell is a workload under a library.
type cell struct {
	Row, Library string
	Round        int
	Window       time.Duration
	Way          time.Duration // between client and server, each way; of a row that is far
	Profile      string        // a directory; empty for none

	// Filled in by the parent.
	Addr  string // of the server
	Proof string // the file of the shared memory
	Proc  int    // which of the cell's processes this is
	Spin  bool   // only keep the cores busy
	Relay bool   // only be the way
}

func (c *cell) name() string { return c.Row + "/" + c.Library }

// warmUp is the time before the window.
func (c *cell) warmUp() time.Duration { return min(c.Window/5, time.Second) }

// result has the measurements of a process, and after merge of a cell.
type result struct {
	Elapsed    time.Duration `json:",omitzero"`
	Shares     []int64       `json:",omitzero"` // sections of each goroutine
	Waits      *hist         `json:",omitzero"` // of the sections that were granted in the window
	Max        time.Duration `json:",omitzero"`
	Violations int64         `json:",omitzero"` // of mutual exclusion
	Errors     int64         `json:",omitzero"`
	Error      string        `json:",omitzero"` // the first
	Stuck      int           `json:",omitzero"` // calls that did not return within 5 s of their cancellation
	CPU        time.Duration `json:",omitzero"`
	Mallocs    uint64        `json:",omitzero"`
	Goroutines int           `json:",omitzero"` // beyond the workload's own

	Held  int   `json:",omitzero"` // locks that were held
	Heap  int64 `json:",omitzero"` // and their memory
	Stack int64 `json:",omitzero"`
	Lost  int   `json:",omitzero"`

	// Added by the parent.
	ByProcess []int64       `json:",omitzero"` // sections
	Window    time.Duration `json:",omitzero"` // between the two looks at Redis
	Commands  int64         `json:",omitzero"` // Redis commands between them, the commands of scripts too
	RedisCPU  time.Duration `json:",omitzero"`
}

func (r *result) sections() (n int64) {
	for _, s := range r.Shares {
		n += s
	}
	return n
}

// wait is a quantile of the waits.
func (r *result) wait(q float64) time.Duration { return r.Waits.quantile(q) }

// The phases of a cell, told by the parent.
const (
	warming int32 = iota
	measuring
	stopped
)

// child is a process that runs a cell, or its part of one.
type child struct {
	cell
	row   *row
	keys  []string
	lib   locks
	proof proof
	in    *bufio.Reader

	ctx    context.Context // ends with the window
	cancel context.CancelFunc
	phase  atomic.Int32
	before int // goroutines before there was a library

	failures atomic.Int64
	first    sync.Once
	res      result
}

// runChild runs a cell if this process was started for one.
func runChild() bool {
	spec := os.Getenv(cellEnv)
	if spec == "" {
		return false
	}
	c := &child{in: bufio.NewReader(os.Stdin)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := json.Unmarshal([]byte(spec), &c.cell); err != nil {
		quit(err)
	}
	if c.Spin {
		c.spin()
		return true
	}
	if c.Relay {
		c.relay()
		return true
	}
	c.row = rowOf(c.Row)
	c.keys = c.row.keyNames()
	var err error
	if c.proof, err = openProof(c.Proof, len(c.keys)); err != nil {
		quit(err)
	}
	c.before = runtime.NumGoroutine()
	if c.lib, err = open(c); err != nil {
		quit(err)
	}
	c.row.kind(c)
	c.res.Errors = c.failures.Load()
	if c.res.Waits == nil {
		c.res.Waits = new(hist)
	}
	if err := json.NewEncoder(os.Stdout).Encode(&c.res); err != nil {
		quit(err)
	}
	return true // nothing is closed: server and process are this cell's alone
}

// quit ends a child that cannot go on; the parent shows why.
func quit(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}

// await waits for a word of the parent. Its end is ours.
func (c *child) await(word string) {
	line, err := c.in.ReadString('\n')
	if err != nil || line != word+"\n" {
		quit(fmt.Errorf("waiting for %q: got %q, %w", word, line, err))
	}
}

// begin tells the parent that all is set up, and returns when all processes are.
func (c *child) begin() {
	fmt.Println("ready")
	c.await("go")
}

// measure returns when the window has ended, and notes the resources that the process used in
// it. own is how many goroutines the workload itself has.
func (c *child) measure(own int) {
	c.await("measure")
	stop := c.startProfile()
	cpu, mallocs := usage()
	start := time.Now()
	c.phase.Store(measuring)
	c.res.Goroutines = runtime.NumGoroutine() - c.before - own
	c.await("stop")
	c.phase.Store(stopped)
	c.res.Elapsed = time.Since(start)
	cpuEnd, mallocsEnd := usage()
	c.res.CPU, c.res.Mallocs = cpuEnd-cpu, mallocsEnd-mallocs
	stop()
	c.cancel()
}

// usage returns the CPU time and the allocations of this process so far.
func usage() (cpu time.Duration, mallocs uint64) {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		quit(err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), m.Mallocs
}

// spin keeps all cores but one busy until the parent ends, or ends this process:
// the machine of a service that has other things to do. No core has to be woken
// for the next request then, and there are fewer cores to go round.
func (c *child) spin() {
	var stop atomic.Bool
	for range max(1, runtime.NumCPU()-1) {
		go func() {
			for !stop.Load() { //nolint:revive // it spins, and that is all
			}
		}()
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, c.in) // until the parent closes it
	stop.Store(true)
}

// startProfile profiles the window, if that was asked for.
func (c *child) startProfile() (stop func()) {
	if c.Profile == "" {
		return func() {}
	}
	create := func(kind string) *os.File {
		f, err := os.Create(filepath.Join(c.Profile, fmt.Sprintf("%s-%s-%d.%s", c.Row, c.Library, c.Proc, kind)))
		if err != nil {
			quit(err)
		}
		return f
	}
	f := create("cpu")
	if err := pprof.StartCPUProfile(f); err != nil {
		quit(err)
	}
	return func() {
		pprof.StopCPUProfile()
		allocs := create("allocs") // since the start, not only in the window
		if err := pprof.Lookup("allocs").WriteTo(allocs, 0); err != nil {
			quit(err)
		}
		_, _ = f.Close(), allocs.Close()
	}
}

// fail counts an error of a library that was not asked for.
func (c *child) fail(err error) {
	c.failures.Add(1)
	c.first.Do(func() { c.res.Error = err.Error() })
}

// sleep is time.Sleep that ends with the window.
func (c *child) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	}
}
