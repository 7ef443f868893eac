package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// mutexState is the lock as the model knows it: who holds it, the greatest token,
// and when it may be given to another at the earliest and is free at the latest.
type mutexState struct {
	owner            uint64 // 0: no process
	grants           int    // so far
	fence            int64
	earliest, latest int64
}

// grant is an acquire that was granted, as an input of the model. Tokens grow, so
// that there is only one possible order of the grants; without their place in it
// the search would try all orders of simultaneous waiters.
type grant struct {
	*Hold
	place int // from 1
}

// freed is a release.
type freed struct {
	*Hold
	known bool // its outcome is
}

// refusal is a try that was refused because another has the lock.
type refusal struct{ call int64 }

// mutexModel is a mutex with leases and tokens. Since a lease ends by itself,
// whether a grant is right depends on when it returned: an operation therefore
// carries its times. Unknown outcomes widen the window between the earliest and
// the latest end of a lease, and so there is always one next state.
var mutexModel = porcupine.Model{
	Init: func() any { return mutexState{} },
	Step: func(state, input, _ any) (bool, any) {
		s := state.(mutexState)
		switch in := input.(type) {
		case grant:
			if in.place != s.grants+1 || in.Token <= s.fence || s.owner != 0 && s.earliest > in.From {
				return false, s
			}
			return true, mutexState{in.ID, in.place, in.Token, in.Until, in.Gone}
		case freed:
			switch {
			case s.owner != in.ID: // its lease had ended and another has the lock
			case in.known:
				s.owner = 0
			default:
				s.earliest = 0
			}
			return true, s
		case refusal:
			return s.owner != 0 && in.call <= s.latest, s
		}
		panic("unreachable: the inputs are made below")
	},
}

// MutexVerdict is the model's finding about a lock.
type MutexVerdict struct {
	// Operations is how many the history has.
	Operations int
	// Result is whether there is an order of them that a mutex allows, which is
	// porcupine.Unknown when none was found in time.
	Result porcupine.CheckResult
	// Why gives the reason if there is none: the first refusal that is impossible by itself,
	// or else the impossible grants and releases.
	Why string
}

// CheckMutex looks for an order of a lock's operations that fits a mutex with
// leases: no grant before the last hold was released or not trusted any more, each
// with a greater token, no refusal of a free lock.
//
// An acquire of unknown outcome may have taken the lock and may lose it again at
// any moment, so it forbids no grant and is no operation here; but while it lasts
// no caller is wrongly refused (see Lock.Refusals).
func CheckMutex(l *Lock, timeout time.Duration) MutexVerdict {
	ops := operations(l, l.Refusals)
	v := MutexVerdict{Operations: len(ops), Result: porcupine.CheckOperationsTimeout(mutexModel, ops, timeout)}
	if v.Result != porcupine.Illegal {
		return v
	}
	v.Why = "no order of the grants and releases"
	if porcupine.CheckOperationsTimeout(mutexModel, operations(l, nil), timeout) != porcupine.Ok {
		return v
	}
	for _, r := range l.Refusals {
		if porcupine.CheckOperationsTimeout(mutexModel, operations(l, []Record{r}), timeout) == porcupine.Illegal {
			v.Why = fmt.Sprintf("refused although free, from %d on for %v; %s",
				r.Call, time.Duration(r.Return-r.Call), l.around(r))
			break
		}
	}
	return v
}

// around describes the holds next to an operation, in times that count from its
// call.
func (l *Lock) around(r Record) string {
	at := func(t int64) time.Duration { return time.Duration(t - r.Call) }
	var before, after string
	waiting := 0
	for _, h := range l.Holds { // by the time of the grant
		text := fmt.Sprintf("granted %v to %v, trusted until %v, gone %v", at(h.Call), at(h.From), at(h.Until), at(h.Gone))
		if h.Call < r.Call && h.From > r.Return {
			waiting++
		}
		if h.From < r.Return {
			before = text
		} else if after == "" {
			after = text
		}
	}
	return fmt.Sprintf("before: %s; after: %s; %d that get it later wait", before, after, waiting)
}

// operations is the history of a lock for the model.
func operations(l *Lock, refusals []Record) []porcupine.Operation {
	var ops []porcupine.Operation
	add := func(input any, call, end int64) {
		if end == 0 {
			end = math.MaxInt64 // open-ended: killed before its end
		}
		ops = append(ops, porcupine.Operation{Input: input, Call: call, Return: end})
	}
	holds := slices.Clone(l.Holds)
	slices.SortFunc(holds, func(a, b Hold) int { return cmp.Compare(a.Token, b.Token) })
	for i := range holds {
		h := &holds[i]
		add(grant{h, i + 1}, h.Call, h.From)
		if r := h.Release; r != nil {
			add(freed{h, r.Outcome == Done}, r.Call, r.Return)
		}
	}
	for _, r := range refusals {
		add(refusal{r.Call}, r.Call, r.Return)
	}
	return ops
}
