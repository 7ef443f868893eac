//go:build long

package histories

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
)

var (
	duration = flag.Duration("duration", 20*time.Second, "for how long each topology is at work")
	seedFlag = flag.Uint64("seed", 0, "of the faults and the processes' choices; default a new one")
	crewSize = flag.Int("processes", 3, "how many processes take locks at a time")
)

// TestMain also is the beginning of the processes that take locks.
func TestMain(m *testing.M) {
	text := os.Getenv(ordersEnv)
	if text == "" {
		redistest.Main(m) // exits
	}
	var o orders
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = work(o, os.Stdin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestHistories has processes take locks of each topology under faults, and judges their
// histories.
func TestHistories(t *testing.T) {
	var rows, placesRows []row
	for _, top := range topologies {
		t.Run(top.name, func(t *testing.T) {
			where, faults := top.start(t)
			crew := orders{Servers: where, Subjects: []string{product}, Goroutines: 24, Keys: 96}
			if top.name != quorumOfFive { // which has no places
				crew.Subjects = append(crew.Subjects, productPlaces)
			}
			verdicts, injected := play(t, crew, faults, *duration)
			v := verdicts[0]
			rows = append(rows, row{top.name, injected, v})
			for _, f := range faults {
				if injected[f.name] == 0 && *duration >= time.Minute {
					t.Errorf("%q was never injected", f.name)
				}
			}
			t.Logf("%d refusals judged", v.tries)
			if v.granted < 100 {
				t.Errorf("%d grants are no test of a lock", v.granted)
			}
			if n := v.overlapsFenced + v.fencedLost + v.fencedStale; n > 0 {
				t.Errorf("fenced register: %d overlapping writes, %d lost, %d of stale tokens",
					v.overlapsFenced, v.fencedLost, v.fencedStale)
			}
			if by := v.caughtBy(); top.exclusive && len(by) > 0 {
				t.Errorf("objected to by %v: %s", by, v.why)
			}
			if v.undecided > 0 {
				t.Errorf("%d locks were not judged within %v each", v.undecided, searchTime)
			}
			if len(verdicts) > 1 {
				wantPlaces(t, top, verdicts[1])
				placesRows = append(placesRows, row{top.name, nil, verdicts[1]})
			}
		})
	}
	if err := errors.Join(report(os.Stdout, rows), reportPlaces(os.Stdout, placesRows)); err != nil {
		t.Error(err)
	}
}

// TestBrokenLocksAreCaught does the same with defective locks, and with two sound locks.
func TestBrokenLocksAreCaught(t *testing.T) {
	wantCaught(t, []string{product, control}, broken)
}

// wantCaught has processes use locks that are whole and locks that are broken, and wants
// the checkers to object to the broken ones, and to no other. A defect shows only when
// calls overlap. On a busy machine few do, so missed cases are played again, with fewer
// other locks.
func wantCaught(t *testing.T, whole, broken []string) {
	t.Helper()
	const plays = 5
	missed := broken
	for n := 0; n < plays && len(missed) > 0; n++ {
		missed = playBroken(t, whole, missed)
	}
	for _, name := range missed {
		t.Errorf("%s: not caught in %d plays", name, plays)
	}
}

// playBroken plays once, and returns the broken locks that were missed.
func playBroken(t *testing.T, whole, broken []string) (missed []string) {
	t.Helper()
	s := redistest.Start(t, durable)
	subjects := slices.Concat(whole, broken)
	crew := orders{Servers: servers{Kind: single, Addrs: []string{s.Addr()}}, Subjects: subjects, Goroutines: 4, Keys: 2}
	verdicts, _ := play(t, crew, nil, min(*duration, 20*time.Second))
	for i, v := range verdicts {
		by := v.caughtBy()
		t.Logf("%-32s %5d holds: %s", subjects[i], v.granted, strings.Join(by, ", "))
		switch isBroken := i >= len(whole); {
		case isBroken && len(by) == 0:
			missed = append(missed, subjects[i])
		case !isBroken && len(by) > 0:
			t.Errorf("%s: objected to by %v: %s", subjects[i], by, v.why)
		}
	}
	return missed
}

// play has processes take the locks for a time, while they and the servers suffer
// faults, and returns a verdict for each subject and how often each fault was
// injected.
func play(t *testing.T, o orders, faults []fault, d time.Duration) ([]*verdict, map[string]int) {
	t.Helper()
	o.Seed = *seedFlag
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	t.Logf("-seed %d -duration %v", o.Seed, d)
	registers := redistest.Start(t)
	o.Registers = registers.Addr()
	// A long run is to see more of the locks than of the servers' absence.
	gap := min(max(lease, d/20), 3*lease)
	c := newCrew(t, o)
	// At the end of a long run nothing happens for longer than doubts last, so that each
	// refusal must have its reason.
	quiet := time.Duration(0)
	if d >= time.Minute {
		quiet = time.Duration(slack) + 4*lease
	}
	all := c.gather(*crewSize)
	ctx, stop := context.WithTimeout(t.Context(), d-quiet)
	defer stop()
	c.work(ctx, all)
	rng := rand.New(rand.NewPCG(o.Seed, serverFaults))
	order := rng.Perm(len(faults)) // each of them once, and then at random
	for n := 0; len(faults) > 0 && ctx.Err() == nil; n++ {
		f := faults[rng.IntN(len(faults))]
		if n < len(order) {
			f = faults[order[n]]
		}
		pause(ctx, part(rng, gap/2, 2*gap))
		if ctx.Err() == nil {
			// With the test's context: a play that has begun is ended.
			f.do(t.Context(), rng)
			c.count(f.name)
		}
	}
	<-ctx.Done()
	pause(t.Context(), quiet)
	runs, injected, crashed := c.end()
	vacant := vacancies(t, o, c.next+1, crashed)
	verdicts := judge(t, runs, o, registers.Client(t))
	for i, v := range verdicts {
		v.vacancy = vacant[i]
	}
	return verdicts, injected
}
