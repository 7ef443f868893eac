//go:build long

package histories

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/child"
	"github.com/interlock-go/interlock/trust/internal/history"
)

// ordersEnv holds the orders of a process that is to work; see TestMain.
const ordersEnv = "HISTORIES_ORDERS"

// process is one run of a worker.
type process struct {
	orders orders
	*child.Process
	input  io.WriteCloser
	killed int64
	said   string // the file that its standard error goes to
}

// launch starts a worker: this program again. It ends with us; a process that is stopped
// would not notice the end of its input.
func launch(o orders, dir string) (*process, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{orders: o, said: filepath.Join(dir, fmt.Sprintf("%d.err", o.Run))}
	said, err := os.Create(p.said)
	if err != nil {
		return nil, err
	}
	defer func() { _ = said.Close() }() // the process has its own
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ordersEnv+"="+string(text))
	cmd.Stderr = said
	if p.input, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	p.Process, err = child.Start(cmd, syscall.SIGKILL)
	return p, err
}

// kill ends the process at once. The time is taken before: all that it does until
// the signal arrives is more than it is credited with.
func (p *process) kill() {
	p.killed = history.Now()
	p.Kill()
}

// run is the record of the process.
func (p *process) run() (history.Run, error) {
	records, err := history.Load(p.orders.Log)
	return history.Run{Records: records, Killed: p.killed, Lease: int64(lease)}, err
}

// crew is the processes of a test, each of which is stopped, killed and cut off
// by itself.
type crew struct {
	t      *testing.T
	dir    string
	orders orders
	places sync.WaitGroup

	mu     sync.Mutex
	next   int
	all    []*process
	faults map[string]int
	err    error
}

func newCrew(t *testing.T, o orders) *crew {
	return &crew{t: t, dir: t.TempDir(), orders: o, faults: make(map[string]int)}
}

// count notes that a fault was injected.
func (c *crew) count(fault string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[fault]++
}

// start starts a process.
func (c *crew) start() (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	o := c.orders
	o.Run = c.next
	o.Log = filepath.Join(c.dir, fmt.Sprintf("%d.log", o.Run))
	p, err := launch(o, c.dir)
	if err != nil {
		return nil, err
	}
	c.all = append(c.all, p)
	return p, nil
}

// serverFaults and processFaults tell one sequence of random numbers from another
// of the same seed.
const (
	serverFaults  = 1 << 48
	processFaults = 2 << 48
)

// gather starts n processes, and returns when each of them is at work: on a busy machine
// they are not for a long time.
func (c *crew) gather(n int) (all []*process) {
	c.t.Helper()
	for range n {
		p, err := c.start()
		if err != nil {
			c.t.Fatal(err)
		}
		all = append(all, p)
	}
	for _, p := range all {
		redistest.Eventually(c.t, time.Minute, func(context.Context) error {
			records, err := history.Load(p.orders.Log)
			if err == nil && !slices.ContainsFunc(records, func(r history.Record) bool { return r.Return != 0 }) {
				err = fmt.Errorf("process %d has done nothing", p.orders.Run)
			}
			return err
		})
	}
	return all
}

// work disturbs processes as the seed says, until ctx ends.
func (c *crew) work(ctx context.Context, all []*process) {
	for i, p := range all {
		c.places.Go(func() {
			rng := rand.New(rand.NewPCG(c.orders.Seed, processFaults|uint64(i)))
			for ctx.Err() == nil && p != nil {
				pause(ctx, part(rng, lease/4, 3*lease/2))
				p = c.disturb(ctx, p, rng)
			}
		})
	}
}

// part is a time between two.
func part(rng *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(rng.Int64N(int64(to-from)))
}

// disturb injects one fault into a process, and returns the process that has its place
// after it.
func (c *crew) disturb(ctx context.Context, p *process, rng *rand.Rand) *process {
	// Drawn whether used or not, so that one seed is one schedule.
	which, d, n := rng.IntN(10), part(rng, lease/10, 5*lease/2), 1+rng.IntN(4)
	if ctx.Err() != nil {
		return p
	}
	switch {
	case which < 4:
		c.count("process stopped")
		p.Signal(syscall.SIGSTOP) // if it is gone, its exit says so in the end
		pause(ctx, d)
		p.Signal(syscall.SIGCONT)
	case which < 5:
		c.count("process killed")
		p.kill()
		next, err := c.start()
		if err != nil {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
		}
		return next
	case which < 7:
		c.count("process cut off")
		_, _ = fmt.Fprintf(p.input, "cut %d\n", d.Milliseconds())
	default:
		c.count("replies lost")
		_, _ = fmt.Fprintf(p.input, "lose %d\n", n)
	}
	return p
}

// awaitPlaces has a process keep its locks until it has a place of every subject with places.
// It may be cut off for some more time.
func (c *crew) awaitPlaces(p *process) {
	_, _ = fmt.Fprintln(p.input, cling) // it has ended already, or it obeys
	for until := time.Now().Add(5 * lease); time.Now().Before(until); pause(c.t.Context(), lease/20) {
		records, err := history.Load(p.orders.Log)
		if err != nil {
			return // it was at its very beginning
		}
		released := make(map[uint64]bool)
		for _, r := range records {
			released[r.Hold] = released[r.Hold] || r.Kind == history.Release
		}
		has := make(map[uint32]bool)
		for _, r := range records {
			if r.Outcome == history.Done && r.Way != history.Alone && !released[r.Hold] {
				has[r.Subject] = true
			}
		}
		missing := slices.ContainsFunc(p.orders.Subjects, func(name string) bool {
			return hasPlaces(name) && !has[uint32(slices.Index(p.orders.Subjects, name))]
		})
		if !missing {
			return
		}
	}
}

// end has the processes end and returns the records of all. The last of them is killed, when
// the others have ended.
func (c *crew) end() (runs []history.Run, faults map[string]int, crashed time.Time) {
	c.t.Helper()
	c.places.Wait()
	if c.err != nil {
		c.t.Fatal(c.err)
	}
	var last *process
	for _, p := range c.all {
		if p.killed == 0 && last == nil {
			last = p
		} else if p.killed == 0 {
			_ = p.input.Close() // it has ended already, or it ends now
		}
	}
	bound := time.NewTimer(time.Minute)
	defer bound.Stop()
	for _, p := range c.all {
		if p == last {
			continue
		}
		select {
		case <-p.Done:
		case <-bound.C:
			bound.Reset(0)
			p.kill()
			c.t.Errorf("process %d did not end within a minute", p.orders.Run)
		}
	}
	if last != nil {
		c.awaitPlaces(last)
		crashed = time.Now() // before: it is not credited with its places
		last.kill()
	}
	for _, p := range c.all {
		if p.killed == 0 && !p.ProcessState.Success() {
			said, _ := os.ReadFile(p.said) // only to explain
			c.t.Errorf("process %d: %v\n%s", p.orders.Run, p.ProcessState, said)
		}
		run, err := p.run()
		if err != nil && p.killed == 0 { // a process that was killed at once has no log
			c.t.Error(err)
		}
		runs = append(runs, run)
	}
	return runs, maps.Clone(c.faults), crashed
}
