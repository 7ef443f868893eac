package history

import (
	"cmp"
	"slices"
)

// span is a stretch of time, without its ends.
type span struct{ from, until int64 }

// overlaps counts the spans that begin while an earlier one lasts.
func overlaps(spans []span) int {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	n := 0
	var latest int64
	for _, s := range spans {
		if s.until <= s.from {
			continue // it ended before its holder could use it
		}
		if s.from < latest {
			n++
		}
		latest = max(latest, s.until)
	}
	return n
}

// Overlaps counts the holds of a lock that began while another was trusted by
// its holder.
func Overlaps(l *Lock) int {
	spans := make([]span, len(l.Holds))
	for i, h := range l.Holds {
		spans[i] = span{h.From, h.Until}
	}
	return overlaps(spans)
}

// OverlappingWrites counts the accepted writes that were made on a value read
// while another accepted read-and-write was under way, in the register with
// tokens and in the one without.
func OverlappingWrites(l *Lock) (fenced, unfenced int) {
	return overlaps(sections(l.Claims, l.Writes)), overlaps(sections(l.Reads, l.Plain))
}

// sections are the stretches from a read that has returned to the call of the
// write that follows it, of those writes that were accepted.
func sections(reads, writes []Record) []span {
	read := make(map[uint64]int64, len(reads))
	for _, r := range reads {
		read[r.Hold] = r.Return
	}
	var spans []span
	for _, w := range writes {
		if w.Outcome == Done {
			spans = append(spans, span{read[w.Hold], w.Call})
		}
	}
	return spans
}

// Regressions counts the grants with a token that is not greater than the token of an earlier
// grant, which had returned before their requests.
func Regressions(l *Lock) int {
	n := 0
	byCall := slices.Clone(l.Holds)
	slices.SortFunc(byCall, func(a, b Hold) int { return cmp.Compare(a.Call, b.Call) })
	var highest int64
	i := 0 // l.Holds before i had returned
	for _, h := range byCall {
		for ; i < len(l.Holds) && l.Holds[i].From < h.Call; i++ {
			highest = max(highest, l.Holds[i].Token)
		}
		if h.Token <= highest {
			n++
		}
	}
	return n
}
