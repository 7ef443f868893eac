package history

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"
)

// PlacesVerdict lists the faults of a lock that several can hold.
type PlacesVerdict struct {
	// Beside is the number of holds that began while another was trusted, and a hold of the
	// two was exclusive.
	Beside int
	// Crowded is how many permits began while as many were trusted as there are.
	Crowded int
	// Tokens is how many grants have a wrong token: an exclusive one's is not above
	// all before it, another's not above the exclusive ones before it, or two permits
	// have the same.
	Tokens int
	// Judged is how many refusals could be judged, Wrong how many of them were
	// refused a place that no caller can have had, and Why describes the first.
	Judged, Wrong int
	Why           string
}

// CheckPlaces judges the holds of a lock that may be exclusive, shared, or out of
// atMost permits.
func CheckPlaces(l *Lock, atMost int) PlacesVerdict {
	var v PlacesVerdict
	v.Beside, v.Crowded = crowds(l.Holds, atMost)
	v.Tokens = misplacedTokens(l.Holds)
	all, alone := newPresence(l.Holds, nil), newPresence(l.Holds, func(h Hold) bool { return h.Way == Alone })
	for _, r := range l.Refusals {
		v.Judged++
		here, limit := all.during(r), 1
		switch r.Way {
		case Share:
			here = alone.during(r)
		case Permit:
			here += atMost * alone.during(r)
			limit = atMost
		case Alone:
		}
		if here >= limit {
			continue
		}
		v.Wrong++
		if v.Why == "" {
			v.Why = fmt.Sprintf("refused for %v from %d on, way %d, though %d can have had a place; %s",
				time.Duration(r.Return-r.Call), r.Call, r.Way, here, l.around(r))
		}
	}
	return v
}

// crowds counts the holds that began during holds that exclude them. holds are in the order
// of their beginning.
func crowds(holds []Hold, atMost int) (beside, crowded int) {
	var trusted []Hold // that have begun
	for _, h := range holds {
		if h.Until <= h.From {
			continue // it ended before its holder could use it
		}
		trusted = slices.DeleteFunc(trusted, func(other Hold) bool { return other.Until <= h.From })
		permits, excluded := 0, false
		for _, other := range trusted {
			excluded = excluded || h.Way == Alone || other.Way == Alone
			if other.Way == Permit {
				permits++
			}
		}
		if excluded {
			beside++
		}
		if h.Way == Permit && permits >= atMost {
			crowded++
		}
		trusted = append(trusted, h)
	}
	return beside, crowded
}

// misplacedTokens counts the grants with a wrong token. holds are in the order of their
// beginning.
func misplacedTokens(holds []Hold) int {
	wrong := 0
	byCall := slices.Clone(holds)
	slices.SortFunc(byCall, func(a, b Hold) int { return cmp.Compare(a.Call, b.Call) })
	permits := make(map[int64]bool)
	var highest, exclusive int64
	i := 0 // holds before i had returned
	for _, h := range byCall {
		for ; i < len(holds) && holds[i].From < h.Call; i++ {
			highest = max(highest, holds[i].Token)
			if holds[i].Way == Alone {
				exclusive = max(exclusive, holds[i].Token)
			}
		}
		switch {
		case h.Way == Alone && h.Token <= highest, h.Token <= exclusive, h.Way == Permit && permits[h.Token]:
			wrong++
		}
		if h.Way == Permit {
			permits[h.Token] = true
		}
	}
	return wrong
}

// presence is when holds may have been in the store: from when they were asked for
// until no delay could keep them there.
type presence struct{ from, until []int64 }

func newPresence(holds []Hold, which func(Hold) bool) (p presence) {
	for _, h := range holds {
		if which == nil || which(h) {
			p.from, p.until = append(p.from, h.Call), append(p.until, h.Gone)
		}
	}
	slices.Sort(p.from)
	slices.Sort(p.until)
	return p
}

// during counts the holds that may have been there at any time of an operation.
func (p presence) during(r Record) int {
	came := sort.Search(len(p.from), func(i int) bool { return p.from[i] > r.Return })
	left := sort.Search(len(p.until), func(i int) bool { return p.until[i] >= r.Call })
	return came - left
}
