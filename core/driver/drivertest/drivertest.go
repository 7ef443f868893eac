// Package drivertest is the contract of a [driver.Store] as a test suite. The
// author of a store runs it in a test of that store:
//
//	func TestContract(t *testing.T) {
//		drivertest.Run(t, func(t *testing.T) driver.Store { return open(t) })
//	}
//
// Most of the contract is a set of scenarios, testdata/*.txt, which read as plays;
// testdata/README.md describes their language. A failure names the line of the scenario. Only
// the parts with many goroutines, ended contexts or batches are Go code.
//
// A scenario that needs an optional interface of package driver, or a [driver.Hold] that a store may
// refuse ([driver.Limited]), is skipped for a store that lacks it. A store that cannot serve something in some
// setting, as offers on a Redis Cluster, is tested behind a struct that says so.
//
// It uses leases of a second or less and real time, so it takes some seconds. It
// shows that a store answers as the lock expects. It cannot show what happens
// when a server dies or the network breaks: the tests of the store must do that.
package drivertest

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// lease is for locks that do not end during a test.
	lease = 30 * time.Second
	// patience bounds the wait for an event.
	patience = 15 * time.Second
)

// Run tests a store. It calls open once for each part of the contract; open
// closes the store in t.Cleanup. The parts run in parallel, so several goroutines call
// open. The stores may share a server: every part uses keys that no other part uses.
// Run returns when all parts have ended.
func Run(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	all := contract(t)
	t.Run("contract", func(t *testing.T) { // this group ends after its last part
		for _, p := range all {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				if missing := p.run(t, open(t)); missing != "" {
					t.Skip(missing)
				}
			})
		}
	})
}

// RunInBubbles is [Run] in fake time: each part of the contract runs in a bubble of
// testing/synctest. It is for a store in memory, which has no network and reads the time
// with [time.Now].
func RunInBubbles(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	for _, p := range contract(t) {
		t.Run(p.name, func(t *testing.T) {
			missing := ""
			synctest.Test(t, func(t *testing.T) { missing = p.run(t, open(t)) })
			if missing != "" {
				t.Skip(missing) // a skip inside a bubble counts as a pass
			}
		})
	}
}

// part is a part of the contract: a scenario, or a test in its place.
type part struct {
	name  string
	needs []string
	steps []step
	test  func(s *stage)
}

// contract returns all parts.
func contract(t *testing.T) []part {
	t.Helper()
	all := slices.Clone(code)
	names, _ := fs.Glob(files, "testdata/*.txt") // the pattern is valid,
	for _, name := range names {
		text, _ := files.ReadFile(name) // and the files are embedded
		some, err := parse(name, string(text))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, some...)
	}
	return all
}

// run runs a part, unless the store lacks something that the part needs. A busy machine may take too
// long for a block of a scenario: then the scenario begins again with other keys.
func (p *part) run(t *testing.T, store driver.Store) (missing string) {
	t.Helper()
	for _, need := range p.needs {
		if !needs[need](store) {
			return "this part needs " + need + ", and the store does not have it"
		}
	}
	for end := soon(); ; {
		s, err := newStage(t, store), error(nil)
		if p.test != nil {
			p.test(s)
		} else {
			err = s.all(p.steps)
		}
		for _, stop := range s.stops {
			stop()
		}
		if err == nil {
			return ""
		}
		if !errors.Is(err, errLate) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// needs reports whether a store has what a part needs.
var needs = map[string]func(driver.Store) bool{
	"Turns": is[driver.Turns], "Registry": is[driver.Registry], "Lister": is[driver.Lister],
	"places": serves(driver.Hold{Kind: driver.Shared, TTL: lease}, driver.Hold{Kind: driver.Permit, TTL: lease}),
	"lines":  serves(driver.Hold{TTL: lease, Line: driver.Newest}, driver.Hold{TTL: lease, Line: driver.OneWaiter}),
	"moves":  serves(driver.Hold{TTL: lease, Moves: true}),
	"times": func(store driver.Store) bool { // as tokens
		rep, err := store.Acquire(context.Background(), driver.AcquireRequest{Key: "drivertest", Owner: "drivertest:1", TTL: time.Millisecond})
		return err == nil && rep.Token < 1<<52
	},
	"offers": serves(driver.Hold{TTL: lease, Offered: true}),
}

func is[I any](store driver.Store) bool { _, ok := store.(I); return ok }

func serves(all ...driver.Hold) func(driver.Store) bool {
	return func(store driver.Store) bool {
		limited, ok := store.(driver.Limited)
		return !slices.ContainsFunc(all, func(h driver.Hold) bool {
			return (h.Line != driver.InTurn || h.Moves || h.Offered) && !is[driver.Turns](store) || ok && limited.Serves(h) != nil
		})
	}
}
