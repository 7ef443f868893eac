package core_test

import (
	"sync/atomic"
	"testing"

	"github.com/interlock-go/interlock/core"
)

// scenes are small worlds: two processes with two callers each, and three with one.
func scenes() map[string]scene {
	turn, whole, only := []core.Option(nil), []core.Option{core.WholeLease()}, []core.Option{core.OneWaiter()}
	return map[string]scene{
		"in turn":                   {{turn, turn}, {turn, turn}},
		"three in turn":             {{turn}, {turn}, {turn}},
		"newest":                    {{newest, newest}, {newest, newest}},
		"newest and others":         {{turn, newest}, {newest, turn}},
		"one waiter":                {{only, only}, {only, only}},
		"three of which one waits":  {{only}, {only}, {only}},
		"whole leases":              {{turn, whole}, {whole, turn}},
		"shared and exclusive":      {{sharing, turn}, {turn, sharing}},
		"three, one of them shares": {{turn}, {sharing}, {turn}},
	}
}

// Every play with at most so many twists, near each other, ends well: there is one holder, tokens grow,
// and no caller sleeps while the lock is free.
func TestEveryPlayOfASmallWorldEndsWell(t *testing.T) {
	var plays atomic.Int64
	t.Cleanup(func() { t.Logf("%d plays", plays.Load()) })
	for name, s := range scenes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := 0
			var explore func(twists []twist, from, to int)
			explore = func(twists []twist, from, to int) {
				n++
				p := act(t, s, twists)
				if t.Failed() || len(twists) == mostTwists {
					return
				}
				for step := from; step < min(len(p.ways), to); step += everyStep {
					for choice := 1; choice < p.ways[step] && !t.Failed(); choice++ {
						explore(append(twists[:len(twists):len(twists)], twist{step, choice}), step+1, step+1+twistsWithin)
					}
				}
			}
			explore(nil, 1, mostSteps)
			t.Logf("%d plays", n)
			plays.Add(int64(n))
		})
	}
}
