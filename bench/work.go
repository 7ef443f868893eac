package main

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// worker is a goroutine of a workload with its observations. Only sections may be read while
// it runs.
type worker struct {
	sections   atomic.Int64
	done       atomic.Bool
	waits      hist
	max        time.Duration
	violations int64
}

// crew starts n workers.
func (c *child) crew(n int, run func(g int, w *worker)) []worker {
	crew := make([]worker, n)
	for g := range crew {
		go func() {
			run(g, &crew[g])
			crew[g].done.Store(true)
		}()
	}
	return crew
}

// collect waits for the workers after the signal to stop, and adds up their observations.
// Goroutines that do not come back are counted and not waited for.
func (c *child) collect(crew []worker) {
	end := time.Now().Add(5 * time.Second)
	c.res.Waits = new(hist)
	for g := range crew {
		w := &crew[g]
		for !w.done.Load() && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		c.res.Shares = append(c.res.Shares, w.sections.Load())
		if !w.done.Load() {
			c.res.Stuck++
			continue
		}
		c.res.Waits.merge(&w.waits)
		c.res.Max = max(c.res.Max, w.max)
		c.res.Violations += w.violations
	}
}

// sections is the workload of most rows: lock, work, unlock, again.
func (c *child) sections() {
	c.begin()
	crew := c.crew(c.row.workers, func(g int, w *worker) {
		key := c.chooser(g)
		who := int64(c.Proc+1)<<32 | int64(g+1)
		for c.phase.Load() != stopped {
			c.section(w, g, key(), who)
		}
	})
	c.measure(len(crew))
	c.collect(crew)
}

// chooser returns the function that chooses a goroutine's next key.
func (c *child) chooser(g int) func() int {
	switch c.row.keys {
	case 1:
		return func() int { return 0 }
	case c.row.workers:
		return func() int { return g }
	}
	// The same sequences for each library.
	zipf := rand.NewZipf(rand.New(rand.NewPCG(uint64(g), 1)), 1.1, 1, uint64(c.row.keys-1))
	return func() int { return int(zipf.Uint64()) }
}

// section is one section of one goroutine.
func (c *child) section(w *worker, g, key int, who int64) {
	asked := time.Now()
	held, err := c.lib.lock(c.ctx, g, key)
	wait := time.Since(asked)
	if err != nil {
		if c.ctx.Err() == nil {
			c.fail(err)
			c.sleep(time.Millisecond)
		} else {
			w.max = max(w.max, wait) // it would have taken longer still
		}
		return
	}
	alone := c.proof.enter(key, who)
	if !alone {
		w.violations++
	}
	occupy(c.row.work)
	if alone {
		c.proof.leave(key)
	}
	// The slot is free before the lock is: the next one in must not find us.
	if err := c.lib.unlock(g, key, held); err != nil {
		c.fail(err)
	}
	if c.phase.Load() == measuring {
		w.sections.Add(1)
		w.waits.add(wait)
		w.max = max(w.max, wait)
	}
}

// hold takes many locks and keeps them. Where the library leaves renewing to the
// application, an application is played that does it each third of the lease.
func (c *child) hold() {
	n := c.row.keys
	held := make([]any, n)
	ctx := context.Background() // contexts from c.ctx end before it is looked at
	if h, err := c.lib.lock(ctx, 0, 0); err != nil {
		quit(err)
	} else if err := c.lib.unlock(0, 0, h); err != nil {
		quit(err)
	}
	// After one lock, so that connections and scripts are not counted.
	heap, stack := memory()
	c.res.Held = n
	// Many at a time, or the first leases had ended before the last was taken.
	spread(n, 128, func(k int) {
		h, err := c.lib.lock(ctx, k, k)
		if err != nil {
			quit(err)
		}
		if !c.proof.enter(k, int64(k+1)) {
			atomic.AddInt64(&c.res.Violations, 1)
		}
		held[k] = h
	})
	var failed atomic.Int64
	own := 0
	if lib, ok := c.lib.(watchdog); ok {
		own = 1
		go func() {
			for next := time.Now(); c.ctx.Err() == nil; next = next.Add(c.row.lease / 3) {
				c.sleep(time.Until(next))
				if n := lib.renewAll(c.ctx, held); c.phase.Load() != stopped {
					failed.Add(int64(n)) // else it was the end that failed it
				}
			}
		}()
	}
	c.begin()
	c.measure(own)
	heapEnd, stackEnd := memory()
	c.res.Heap, c.res.Stack = heapEnd-heap, stackEnd-stack
	c.res.Lost = int(failed.Load())
	if lib, ok := c.lib.(watcher); ok {
		for k, h := range held {
			if lib.lost(k, h) {
				c.res.Lost++
			}
		}
	}
	runtime.KeepAlive(held)
}

// memory is the memory in use after a collection.
func memory() (heap, stack int64) {
	runtime.GC()
	runtime.GC() // the first only finalized some objects
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.StackInuse)
}

// spread calls f for all numbers below n on some goroutines.
func spread(n, goroutines int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// handOver has two processes take turns under some keys and measures from the
// release in one to the grant in the other. Who has released does not ask again
// before the other has got it, and the other has been waiting for a while: a
// while that varies, so that no poll can be in step with it.
func (c *child) handOver() {
	c.begin()
	me := int64(c.Proc + 1)
	crew := c.crew(c.row.workers, func(g int, w *worker) {
		slot := &c.proof.slots[g]
		for c.phase.Load() != stopped {
			held, err := c.lib.lock(c.ctx, g, g)
			now := time.Now().UnixNano()
			if err != nil {
				if c.ctx.Err() == nil {
					c.fail(err)
				}
				continue
			}
			alone := c.proof.enter(g, me)
			if !alone {
				w.violations++
			}
			if by := slot.by.Load(); by != 0 && by != me && c.phase.Load() == measuring {
				took := time.Duration(now - slot.released.Load())
				w.sections.Add(1)
				w.waits.add(took)
				w.max = max(w.max, took)
			}
			turn := slot.grants.Add(1)
			c.sleep(50*time.Millisecond + rand.N(150*time.Millisecond))
			slot.by.Store(me)
			if alone {
				c.proof.leave(g)
			}
			slot.released.Store(time.Now().UnixNano())
			if err := c.lib.unlock(g, g, held); err != nil {
				c.fail(err)
			}
			for slot.grants.Load() == turn && c.ctx.Err() == nil {
				c.sleep(2 * time.Millisecond)
			}
		}
	})
	c.measure(len(crew))
	c.collect(crew)
}

// idle has the first process hold a key and the second wait for it, and measures the cost of
// the waiting.
func (c *child) idle() {
	if c.Proc == 0 {
		if _, err := c.lib.lock(c.ctx, 0, 0); err != nil {
			quit(err)
		}
		c.proof.enter(0, 1)
		c.begin()
		c.measure(0)
		c.res.Goroutines = 0 // the goroutines of the waiting process count
		return
	}
	c.begin()
	crew := c.crew(c.row.workers, func(g int, w *worker) {
		for c.phase.Load() != stopped {
			_, err := c.lib.lock(c.ctx, g, 0)
			switch {
			case err == nil:
				w.violations++ // the other process still has it
			case c.ctx.Err() == nil:
				c.fail(err)
			}
		}
	})
	c.measure(len(crew))
	c.collect(crew)
	c.res.Shares = nil // no goroutine was to get anything
}
