//go:build long

package history

import "testing"

// in gives a record a way to hold a lock.
func in(way Way, r Record) Record {
	r.Way = way
	return r
}

// The lease of these histories is 100, nothing is later than 10, and there are 2 permits.
func TestCheckPlaces(t *testing.T) {
	hold := func(way Way, id uint64, from, until int64) []Record {
		return []Record{
			in(way, held(id, from-5, from, until)),
			in(way, event(Release, id, until, until+5, Done)),
		}
	}
	withTokens := func(token int64, records []Record) []Record {
		for i := range records {
			records[i].Token = token
		}
		return records
	}
	refused := func(way Way, id uint64, call, end int64) []Record {
		return []Record{in(way, event(TryAcquire, id, call, end, Refused))}
	}
	for name, c := range map[string]struct {
		runs                           [][]Record
		killed                         int64 // the first of them
		beside, crowded, tokens, wrong int
	}{
		"sharers together, and an exclusive holder after them": {
			runs: [][]Record{hold(Share, 1, 10, 50), hold(Share, 2, 20, 60), hold(Share, 3, 20, 70), hold(Alone, 4, 80, 90)},
		},
		"an exclusive holder beside a sharer": {
			runs:   [][]Record{hold(Share, 1, 10, 50), hold(Alone, 2, 40, 60)},
			beside: 1,
		},
		"sharers beside an exclusive holder": {
			runs:   [][]Record{hold(Alone, 1, 10, 50), hold(Share, 2, 20, 60), hold(Share, 3, 30, 60)},
			beside: 2,
		},
		"a permit beside an exclusive holder": {
			runs:   [][]Record{hold(Alone, 1, 10, 50), hold(Permit, 2, 20, 60)},
			beside: 1,
		},
		"two permits of two": {
			runs: [][]Record{hold(Permit, 1, 10, 50), hold(Permit, 2, 20, 60), hold(Permit, 3, 50, 60)},
		},
		"three permits of two": {
			runs:    [][]Record{hold(Permit, 1, 10, 50), hold(Permit, 2, 20, 60), hold(Permit, 3, 45, 60)},
			crowded: 1,
		},
		"a third permit when a killed process trusts none any more": {
			runs:   [][]Record{{func() Record { r := in(Permit, held(1, 0, 10, 110)); r.Settled = 0; return r }()}, hold(Permit, 2, 20, 150), hold(Permit, 3, 90, 95)},
			killed: 80,
		},
		"an exclusive holder's token below a sharer's": {
			runs:   [][]Record{withTokens(5, hold(Share, 1, 10, 20)), withTokens(4, hold(Alone, 2, 30, 40))},
			tokens: 1,
		},
		"a permit's token below an exclusive holder's": {
			runs:   [][]Record{withTokens(5, hold(Alone, 1, 10, 20)), withTokens(4, hold(Permit, 2, 30, 40))},
			tokens: 1,
		},
		"tokens of permits in another order than the grants": {
			runs: [][]Record{withTokens(5, hold(Permit, 1, 10, 20)), withTokens(4, hold(Permit, 2, 30, 40))},
		},
		"two permits with one token": {
			runs:   [][]Record{withTokens(5, hold(Permit, 1, 10, 20)), withTokens(5, hold(Permit, 2, 30, 40))},
			tokens: 1,
		},
		"two sharers with one token": {
			runs: [][]Record{withTokens(5, hold(Share, 1, 10, 20)), withTokens(5, hold(Share, 2, 15, 40))},
		},
		"refused when all permits are taken": {
			runs: [][]Record{hold(Permit, 1, 10, 50), hold(Permit, 2, 20, 60), refused(Permit, 3, 30, 40)},
		},
		"refused when a permit is taken and another free": {
			runs:  [][]Record{hold(Permit, 1, 10, 50), hold(Permit, 2, 20, 30), refused(Permit, 3, 40, 45)},
			wrong: 1,
		},
		"a permit refused beside an exclusive holder": {
			runs: [][]Record{hold(Alone, 1, 10, 50), refused(Permit, 2, 30, 40)},
		},
		"a sharer refused beside a sharer": {
			runs:  [][]Record{hold(Share, 1, 10, 50), refused(Share, 2, 30, 40)},
			wrong: 1,
		},
		"a sharer refused while an exclusive caller waits": {
			runs: [][]Record{hold(Share, 1, 10, 50), {in(Alone, held(2, 20, 60, 70)), in(Alone, event(Release, 2, 70, 75, Done))}, refused(Share, 3, 30, 40)},
		},
		"an exclusive caller refused beside a sharer": {
			runs: [][]Record{hold(Share, 1, 10, 50), refused(Alone, 2, 30, 40)},
		},
		"an exclusive caller refused when the sharer has left": {
			runs:  [][]Record{hold(Share, 1, 10, 50), refused(Alone, 2, 60, 70)},
			wrong: 1,
		},
		"refused for the permits of a killed process": {
			runs:   [][]Record{{in(Permit, held(1, 0, 10, 110)), in(Permit, held(2, 0, 10, 110))}, refused(Permit, 3, 150, 160)},
			killed: 50,
		},
		"refused long after the holders of the permits were killed": {
			runs:   [][]Record{{in(Permit, held(1, 0, 10, 110)), in(Permit, held(2, 0, 10, 110))}, refused(Permit, 3, 500, 510)},
			killed: 50, wrong: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			runs := make([]Run, len(c.runs))
			for i, records := range c.runs {
				runs[i] = Run{Records: records, Lease: 100}
			}
			runs[0].Killed = c.killed
			v := CheckPlaces(Locks(runs, 10)[0], 2)
			if v.Beside != c.beside || v.Crowded != c.crowded || v.Tokens != c.tokens || v.Wrong != c.wrong {
				t.Errorf("found %+v, want %d beside, %d crowded, %d tokens, %d wrong refusals",
					v, c.beside, c.crowded, c.tokens, c.wrong)
			}
		})
	}
}
