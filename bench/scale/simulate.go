package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
)

// size is how large a simulation is.
type size struct {
	processes    int // in all
	servers      int
	warm, window time.Duration
}

// simulation is one workload on servers in memory.
type simulation struct {
	size
	ctx   context.Context
	table *table
}

// simulate confirms the model with many processes.
func simulate(ctx context.Context, t *table, s size) error {
	sim := simulation{s, ctx, t}
	return errors.Join(
		sim.uncontended(), sim.holding(), sim.waiting(50), sim.waiting(100), sim.shortTurns(),
		sim.fullTurns(4), sim.fullTurns(16),
	)
}

// open makes a process's store on the servers.
func (c cluster) open() (core.Store, func() error, error) {
	return c.store(), func() error { return nil }, nil
}

// run drives a workload on fresh servers and returns what they did meanwhile.
func (s *simulation) run(w workload) (o outcome, did counts, servers cluster, err error) {
	servers = newCluster(s.servers)
	f, err := newFleet(s.ctx, w.processes, servers.open)
	if err != nil {
		return o, did, servers, err
	}
	o, err = f.drive(s.ctx, w, s.warm, s.window, func() error {
		did = servers.counted().minus(did)
		return nil
	})
	return o, did, servers, errors.Join(err, f.stop(s.ctx))
}

func (s *simulation) uncontended() error {
	w := workload{processes: s.processes, callers: 1}
	_, did, servers, err := s.run(w)
	if err != nil || did.releases == 0 {
		return errors.Join(err, errNothing(did.releases))
	}
	name := fmt.Sprintf("%d processes, each with its own keys", w.processes)
	s.table.add(name, "requests a pair", 2, did.requests/did.releases, exactly)
	s.table.add(name, "commands a pair", pairCommands(1), did.commands/did.releases, exactly)
	s.table.note(name, "requests to the busiest server, of the average", servers.spread())
	return nil
}

// perHolder is how many locks a process holds, or how many of its callers wait.
const perHolder = 20

func (s *simulation) holding() error {
	const lease = 3 * time.Second
	servers := newCluster(s.servers)
	f, err := newFleet(s.ctx, s.processes/10, servers.open, core.Watchdog(lease))
	if err != nil {
		return err
	}
	if err := f.holdEach(s.ctx, workload{}, perHolder); err != nil {
		return errors.Join(err, f.stop(s.ctx))
	}
	rounds := s.window/(lease/3) + 1 // all leases began together: from between two to between two
	pause(s.ctx, lease/6)
	before, begin := servers.counted(), time.Now()
	pause(s.ctx, rounds*lease/3)
	did, seconds := servers.counted().minus(before), time.Since(begin).Seconds()
	name := fmt.Sprintf("%d processes hold %d locks each, %v lease", len(f.lockers), perHolder, lease)
	s.table.add(name, "commands a lock and second", renewals(lease), did.commands/float64(len(f.leases))/seconds, nearly)
	return f.stop(s.ctx)
}

// waiting has so many processes wait for each of some keys that are held.
func (s *simulation) waiting(each int) error {
	servers := newCluster(s.servers)
	keys := max(1, s.processes/2/each)
	w := workload{processes: each * keys, callers: perHolder, keys: keys}
	f, err := newFleet(s.ctx, w.processes+1, servers.open)
	if err != nil {
		return err
	}
	for k := range keys {
		if err := f.hold(s.ctx, w.processes, w.name(k)); err != nil {
			return errors.Join(err, f.stop(s.ctx))
		}
	}
	rest := &fleet{lockers: f.lockers[:w.processes]}
	var did counts
	o, err := rest.drive(s.ctx, w, s.warm, s.window, func() error {
		did = servers.counted().minus(did)
		return nil
	})
	name := fmt.Sprintf("%d processes wait for each of %d held keys, %d callers each", each, keys, w.callers)
	s.table.add(name, "commands a key and second", polls(each), did.commands/float64(keys)/o.elapsed.Seconds(), roughly)
	return errors.Join(err, f.stop(s.ctx))
}

func (s *simulation) shortTurns() error {
	w := workload{processes: s.processes / 5, callers: 1, hold: 3 * time.Millisecond}
	w.keys = w.processes / 8
	o, did, _, err := s.run(w)
	if err != nil || did.releases == 0 {
		return errors.Join(err, errNothing(did.releases))
	}
	name := fmt.Sprintf("%d processes on each of %d keys, one caller each, 3 ms", w.processes/w.keys, w.keys)
	s.table.note(name, fmt.Sprintf("commands a section, %d at least", shortTurn), did.commands/did.releases)
	s.table.add(name, "messages a section", float64(w.processes/w.keys), did.messages/did.releases, roughly)
	s.table.note(name, leastShare, o.least)
	return nil
}

func (s *simulation) fullTurns(each int) error {
	w := workload{callers: 4, hold: 2 * time.Millisecond, keys: max(1, s.processes/10/each)}
	w.processes = w.keys * each
	o, did, _, err := s.run(w)
	if err != nil || did.releases == 0 {
		return errors.Join(err, errNothing(did.releases))
	}
	name := fmt.Sprintf("%d processes on each of %d keys, %d callers each, 2 ms", each, w.keys, w.callers)
	turn := time.Duration(float64(o.elapsed) * float64(w.keys) / did.releases)
	s.table.add(name, "turn, ms", ms(turnLength(o.perKey)), ms(turn), loosely)
	s.table.add(name, "commands a turn", fullTurn(each, turn), did.commands/did.releases, roughly)
	s.table.add(name, "messages a turn", float64(each), did.messages/did.releases, roughly)
	s.table.note(name, "commands a section", did.commands/o.sections)
	s.table.note(name, leastShare, o.least)
	return nil
}

// leastShare says how evenly a key was shared.
const leastShare = "the smallest share of a process, 1 is even"

// crowd has many processes want one key, and notes how many get nothing.
func (s *simulation) crowd(each int) error {
	w := workload{processes: each, callers: 2, hold: time.Millisecond, keys: 1}
	// The turn of each process comes three times.
	s.window = max(s.window, time.Duration(3*each)*turnTime*3/2)
	o, did, _, err := s.run(w)
	if err != nil || did.releases == 0 {
		return errors.Join(err, errNothing(did.releases))
	}
	name := fmt.Sprintf("%d processes on one key, %d callers each, 1 ms", each, w.callers)
	s.table.note(name, "commands a turn", did.commands/did.releases)
	s.table.note(name, "processes that got nothing in three rounds", float64(o.starved))
	return nil
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

func errNothing(releases float64) error {
	if releases > 0 {
		return nil
	}
	return errors.New("nothing was released")
}
