package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// The store's bounds of connections from a process to each master.
const (
	maxConnections = 4 + 4 + 3 + 1 // requests, redirections, renewals, subscription
	responseSize   = 1024          // bytes of a response that is kept
)

// calibration measures on real servers.
type calibration struct {
	ctx          context.Context
	table        *table
	warm, window time.Duration // of a workload
	d            *deployment
}

// alone is many processes: their requests seldom share a pipeline. together is one process:
// its requests do.
var (
	alone    = workload{processes: 128, callers: 2}
	together = workload{processes: 1, callers: 512}
)

// calibrate measures on a single server and on Clusters.
func calibrate(ctx context.Context, t *table, warm, window time.Duration) error {
	c := calibration{ctx: ctx, table: t, warm: warm, window: window}
	whole := func(c *calibration) error {
		err := c.cells(
			workload{processes: 1, callers: 1}, workload{processes: 1, callers: 16}, together,
			workload{processes: 1, callers: 64, key: 64}, workload{processes: 32, callers: 8}, alone,
		)
		return errors.Join(err, c.contended(), c.records(), c.memory(), c.connecting(), c.expiring())
	}
	pairs := func(c *calibration) error { return c.cells(together, alone) }
	return errors.Join(
		c.on(0, 0, whole), c.on(3, 0, whole), c.on(1, 0, pairs), c.on(1, 1, pairs),
	)
}

// on measures on servers that are started for it.
func (c calibration) on(masters, replicas int, what func(*calibration) error) (err error) {
	if c.d, err = deploy(c.ctx, masters, replicas); err != nil {
		return err
	}
	defer c.d.stop()
	if err := what(&c); err != nil {
		return fmt.Errorf("%s: %w", c.d.name, err)
	}
	return nil
}

// cells measures pairs under some workloads.
func (c *calibration) cells(all ...workload) error {
	for _, w := range all {
		if err := c.pairs(w); err != nil {
			return err
		}
	}
	return nil
}

// measure drives a workload on a fresh fleet and returns the servers' load meanwhile and
// their number of connections.
func (c *calibration) measure(w workload) (o outcome, did load, clients float64, err error) {
	idle, err := c.d.read(c.ctx)
	if err != nil {
		return o, did, 0, err
	}
	f, err := newFleet(c.ctx, w.processes, c.d.open)
	if err != nil {
		return o, did, 0, err
	}
	o, err = f.drive(c.ctx, w, c.warm, c.window, func() error {
		now, err := c.d.read(c.ctx)
		did, clients = now.minus(did), now.clients-idle.clients
		return err
	})
	return o, did, clients, errors.Join(err, f.stop(c.ctx), errNothing(did.releases))
}

// pairs measures locks without contention.
func (c *calibration) pairs(w workload) error {
	_, did, clients, err := c.measure(w)
	if err != nil {
		return err
	}
	n := did.releases
	name := fmt.Sprintf("%s: %d x %d callers, own keys", c.d.name, w.processes, w.callers)
	if w.key > 0 {
		name += fmt.Sprintf(" of %d B", w.key)
	}
	share := 1.0
	if !c.d.clusters {
		share = 2 * n / did.requests // EVALSHA for several
	}
	c.table.add(name, "commands a pair", pairCommands(share), did.commands/n, exactly)
	if w.callers == 1 || c.d.clusters {
		in, out := pairBytes(max(w.key, shortKey), c.d.clusters)
		c.table.add(name, "bytes in a pair", in, did.in/n, nearly)
		if c.d.replicas == 0 {
			// Replies are so short that the topology and the greeting of a new connection
			// count where the pairs are few.
			c.table.add(name, "bytes out a pair", out, did.out/n, roughly)
		} else {
			c.table.note(name, "bytes out a pair, with those to the replica", did.out/n)
		}
	} else {
		c.table.note(name, "requests a call", share)
	}
	masters := float64(len(c.d.admins))
	each := clients / float64(w.processes) / masters
	c.table.note(name, "pairs a second", n/c.window.Seconds())
	c.table.note(name, "µs of CPU a pair", micros(did.cpu, n))
	c.table.note(name, "of that in scripts", micros(did.script, n))
	c.table.note(name, "µs of CPU a pair in the processes", micros(did.client, n))
	c.table.note(name, "requests a read", 2*n/did.reads)
	c.table.note(name, "connections a process and master", each)
	if each > maxConnections {
		return fmt.Errorf("%s: %.1f connections, at most %d were promised", name, each, maxConnections)
	}
	return nil
}

// leastShare says how evenly a key was shared.
const leastShare = "the smallest share of a process, 1 is even"

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

func errNothing(releases float64) error {
	if releases > 0 {
		return nil
	}
	return errors.New("nothing was released")
}

func micros(d time.Duration, n float64) float64 { return d.Seconds() * 1e6 / n }

// contended measures keys that several processes want.
func (c *calibration) contended() error {
	short := workload{processes: 8, callers: 1, keys: 1, hold: 3 * time.Millisecond}
	full := workload{processes: 4, callers: 4, keys: 1, hold: 2 * time.Millisecond}
	for _, w := range []workload{short, full} {
		o, did, _, err := c.measure(w)
		if err != nil {
			return err
		}
		turns := did.messages / float64(called(w.processes))
		turn := time.Duration(float64(o.elapsed) / turns)
		name := fmt.Sprintf("%s: %d processes on one key, %d callers each, %v", c.d.name, w.processes, w.callers, w.hold)
		c.table.note(name, leastShare, o.least)
		if w.callers == 1 {
			c.table.note(name, fmt.Sprintf("commands a turn, %d at least", shortTurn(w.processes, c.d.clusters)), did.commands/turns)
		} else {
			c.table.add(name, "turn, ms", ms(turnLength(o.perKey)), ms(turn), loosely)
			c.table.add(name, "commands a turn", fullTurn(w.processes, turn, c.d.clusters), did.commands/turns, roughly)
			_, replies := pairBytes(shortKey, c.d.clusters)
			replies += float64(earlyTries(w.processes, turn, c.d.clusters) * refusalBytes)
			calls := called(w.processes)
			replies += float64(listBytes(calls))
			message := callBytes(shortKey, calls)
			if !c.d.clusters { // the first is offered the lock in place of a call
				replies += float64(offerBytes(shortKey))
				calls--
			}
			c.table.add(name, "bytes out a turn", float64(calls*message)+replies, did.out/turns, roughly)
		}
	}
	return nil
}

// response is the content of a record.
var response = []byte(strings.Repeat("x", responseSize))

// records measures requests of an idempotent endpoint: fresh ones, then the same
// again.
func (c *calibration) records() error {
	s, end, err := c.d.store()
	if err != nil {
		return err
	}
	run := rand.Text()
	const goroutines = 64
	var fresh atomic.Int64
	pass := func(replay bool) (n int64, did load, err error) {
		if did, err = c.d.read(c.ctx); err != nil {
			return 0, did, err
		}
		var next, done atomic.Int64
		limit := fresh.Load()
		stop := time.Now().Add(c.window)
		var wg sync.WaitGroup
		var failed atomic.Pointer[error]
		for range goroutines {
			wg.Go(func() {
				for failed.Load() == nil {
					i := next.Add(1)
					if replay && i > limit || !replay && time.Now().After(stop) {
						return
					}
					if err := c.request(s, run, i, replay); err != nil {
						failed.Store(&err)
						return
					}
					done.Add(1)
				}
			})
		}
		wg.Wait()
		if !replay {
			fresh.Store(min(done.Load(), 20_000))
		}
		after, err := c.d.read(c.ctx)
		if first := failed.Load(); first != nil {
			err = errors.Join(err, *first)
		}
		return done.Load(), after.minus(did), err
	}
	for _, replay := range []bool{false, true} {
		name, model := c.d.name+": idempotent, fresh, 1 kB", float64(cmdClaim+cmdCommit)
		if replay {
			name, model = c.d.name+": idempotent, replay, 1 kB", cmdReplay
		}
		n, did, err := pass(replay)
		if err != nil || n == 0 {
			return errors.Join(err, end(), errNothing(float64(n)))
		}
		per := float64(n)
		c.table.add(name, "commands a request", model, did.commands/per, exactly)
		c.table.note(name, "bytes in a request", did.in/per)
		c.table.note(name, "bytes out a request", did.out/per)
		c.table.note(name, "µs of CPU a request", micros(did.cpu, per))
		if !replay {
			c.table.note(name, "bytes of memory a record", did.memory/per)
		}
	}
	return end()
}

// request is one request of an idempotent endpoint.
func (c *calibration) request(s idempotency.Store, run string, i int64, replay bool) error {
	id, token := fmt.Sprintf("%s%017d", run, i), fmt.Sprintf("%s-%017d-%t", run[:16], i, replay)
	deadline := time.Now().Add(5 * time.Second)
	got, err := s.Claim(c.ctx, record.ClaimRequest{
		ID: id, Token: token, Lease: 30 * time.Second, Retention: 24 * time.Hour, Deadline: deadline,
		Late: func(record.ClaimReply, error) {},
	})
	switch {
	case err != nil:
		return err
	case replay && len(got.Response) == len(response):
		return nil
	case replay || got.State != record.StateGranted:
		return fmt.Errorf("a claim of %s found it in state %v", id, got.State)
	}
	_, err = s.Commit(c.ctx, record.CommitRequest{
		ID: id, Token: token, Generation: got.Generation, Response: response, Retention: 24 * time.Hour, Deadline: deadline,
	})
	return err
}

// memory measures the memory of held locks, and of the fences they leave, in Redis and in the
// process.
func (c *calibration) memory() error {
	const locks = 100_000
	f, err := newFleet(c.ctx, 1, c.d.open)
	if err != nil {
		return err
	}
	f.leases = make([]*core.Lease, 0, locks)
	heap := inUse()
	empty, err := c.d.read(c.ctx)
	if err := f.holdEach(c.ctx, workload{key: shortKey + 1}, locks); err != nil {
		return errors.Join(err, f.stop(c.ctx))
	}
	full, err2 := c.d.read(c.ctx)
	c.table.note(c.d.name+": a held lock", "bytes of heap in its process", (inUse()-heap)/locks)
	err3 := f.release(c.ctx)
	left, err4 := c.d.read(c.ctx)
	name := c.d.name + ": keys of 17 B"
	c.table.note(name, "bytes in Redis a held lock with its fence", full.minus(empty).memory/locks)
	c.table.note(name, "bytes in Redis a fence that is left", left.minus(empty).memory/locks)
	return errors.Join(err, err2, err3, err4, f.stop(c.ctx))
}

// inUse is the heap after a collection.
func inUse() float64 {
	runtime.GC()
	runtime.GC() // the first only finalized some objects
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// connecting measures the servers' cost of a process's first request, which makes its
// connections: after a failover all processes connect at once.
func (c *calibration) connecting() error {
	const processes = 64
	f, err := newFleet(c.ctx, processes, c.d.open)
	if err != nil {
		return err
	}
	before, err := c.d.read(c.ctx)
	var w workload
	for p := range processes {
		err = errors.Join(err, f.hold(c.ctx, p, w.name(p)))
	}
	after, err2 := c.d.read(c.ctx)
	did := after.minus(before)
	name := c.d.name + ": a process's first request"
	c.table.note(name, "connections", did.clients/processes)
	c.table.note(name, "bytes in a connection", did.in/did.clients)
	c.table.note(name, "µs of CPU a connection", micros(did.cpu, did.clients))
	return errors.Join(err, err2, f.stop(c.ctx))
}

// expiring measures a server's cost of a fence that expires.
func (c *calibration) expiring() error {
	const keys, life = 100_000, 4 * time.Second
	if c.d.clusters {
		return nil // it is the same there
	}
	rdb := c.d.admins[0]
	// Earlier measurements have left fences, which would expire meanwhile.
	if err := rdb.FlushAll(c.ctx).Err(); err != nil {
		return err
	}
	_, err := rdb.Pipelined(c.ctx, func(p redis.Pipeliner) error {
		for i := range keys {
			p.Set(c.ctx, "interlock:{"+strconv.Itoa(i)+"}:fence", "1790000000000000", life)
		}
		return nil
	})
	if err != nil {
		return err
	}
	before, err := c.d.read(c.ctx)
	pause(c.ctx, 2*life)
	after, err2 := c.d.read(c.ctx)
	pause(c.ctx, life)
	quiet, err3 := c.d.read(c.ctx)
	cpu := after.minus(before).cpu - 2*quiet.minus(after).cpu
	c.table.note(c.d.name+": a fence's end", "µs of CPU", micros(cpu, keys))
	return errors.Join(err, err2, err3)
}
