//go:build long

package history

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// event is a record in short: what, from when to when, and how it ended.
func event(kind Kind, hold uint64, call, end int64, o Outcome) Record {
	return Record{Kind: kind, Outcome: o, Hold: hold, Call: call, Return: end, Token: int64(hold)}
}

// held is an acquire that was granted, trusted until a time.
func held(hold uint64, call, end, trusted int64) Record {
	r := event(Acquire, hold, call, end, Done)
	r.Trusted, r.Settled = trusted, 1
	return r
}

func withToken(r Record, token int64) Record {
	r.Token = token
	return r
}

// The lease of these histories is 100, and nothing is later than 10.
func TestOverlapAndMutex(t *testing.T) {
	released := func(hold uint64, call, end int64) Record { return event(Release, hold, call, end, Done) }
	for name, c := range map[string]struct {
		runs     [][]Record
		killed   int64 // the first of them
		overlaps int
		mutex    porcupine.CheckResult
	}{
		"one after the other": {
			runs:  [][]Record{{held(1, 0, 10, 20), released(1, 20, 30)}, {held(2, 5, 25, 40), released(2, 40, 41)}},
			mutex: porcupine.Ok,
		},
		"two at a time": {
			runs:     [][]Record{{held(1, 0, 10, 50), released(1, 50, 60)}, {held(2, 15, 20, 40), released(2, 40, 45)}},
			overlaps: 1, mutex: porcupine.Illegal,
		},
		"the first lease ended before the second began": {
			runs:  [][]Record{{held(1, 0, 10, 90), event(Release, 1, 300, 310, Lost)}, {held(2, 15, 100, 120), released(2, 120, 130)}},
			mutex: porcupine.Ok,
		},
		"killed, and the second got it before that": {
			runs:   [][]Record{{held(1, 0, 10, 110)}, {held(2, 15, 40, 120), released(2, 120, 130)}},
			killed: 60, overlaps: 1, mutex: porcupine.Illegal,
		},
		"killed, and the second got it after that": {
			runs:   [][]Record{{func() Record { r := held(1, 0, 10, 110); r.Settled = 0; return r }()}, {held(2, 15, 80, 120), released(2, 120, 130)}},
			killed: 60, mutex: porcupine.Ok,
		},
		"the second has a smaller token": {
			runs:  [][]Record{{withToken(held(1, 0, 10, 20), 9), released(1, 20, 30)}, {withToken(held(2, 35, 40, 50), 8), released(2, 50, 60)}},
			mutex: porcupine.Illegal,
		},
		"the second has the same token": {
			runs:  [][]Record{{held(1, 0, 10, 20), released(1, 20, 30)}, {withToken(held(2, 35, 40, 50), 1), released(2, 50, 60)}},
			mutex: porcupine.Illegal,
		},
		"refused while held": {
			runs:  [][]Record{{held(1, 0, 10, 50), released(1, 50, 60)}, {event(TryAcquire, 2, 20, 30, Refused)}},
			mutex: porcupine.Ok,
		},
		"refused when free": {
			runs:  [][]Record{{held(1, 0, 10, 50), released(1, 50, 60)}, {event(TryAcquire, 2, 70, 80, Refused)}},
			mutex: porcupine.Illegal,
		},
		"refused while the process keeps the lock for another of its callers": {
			runs: [][]Record{
				{held(1, 0, 10, 20), released(1, 20, 30), held(3, 15, 210, 220), released(3, 220, 230)},
				{event(TryAcquire, 4, 70, 80, Refused)},
				{held(2, 90, 95, 120), released(2, 120, 130)},
			},
			mutex: porcupine.Ok,
		},
		"refused for a waiter that was stopped until the lease of its first grant had ended": {
			runs: [][]Record{
				{held(1, 0, 10, 20), released(1, 20, 30)},
				{held(4, 40, 260, 270), released(4, 270, 280)},
				{event(TryAcquire, 3, 100, 110, Refused)},
				{held(2, 145, 150, 160), released(2, 160, 165)},
			},
			mutex: porcupine.Ok,
		},
		"refused for a try that was stopped like that, and refused at last": {
			runs: [][]Record{
				{held(1, 0, 10, 20), released(1, 20, 30)},
				{event(TryAcquire, 4, 40, 163, Refused)},
				{event(TryAcquire, 3, 100, 110, Refused)},
				{held(2, 145, 150, 160), released(2, 160, 165)},
			},
			mutex: porcupine.Ok,
		},
		"refused before any caller asks": {
			runs: [][]Record{
				{held(1, 0, 10, 20), released(1, 20, 30)},
				{event(TryAcquire, 3, 100, 110, Refused)},
				{held(2, 145, 150, 160), released(2, 160, 165)},
			},
			mutex: porcupine.Illegal,
		},
		"refused for a lease that no caller ended": {
			runs:   [][]Record{{held(1, 0, 10, 110)}, {event(TryAcquire, 2, 150, 160, Refused)}},
			killed: 50, mutex: porcupine.Ok,
		},
		"refused long after that": {
			runs:   [][]Record{{held(1, 0, 10, 110)}, {event(TryAcquire, 2, 500, 510, Refused)}},
			killed: 50, mutex: porcupine.Illegal,
		},
		"refused while an acquire of unknown outcome may have it": {
			runs:  [][]Record{{event(Acquire, 1, 0, 20, Unknown)}, {event(TryAcquire, 2, 100, 110, Refused)}},
			mutex: porcupine.Ok,
		},
		"refused behind the queue of its own process": {
			runs:  [][]Record{{event(TryAcquire, 1, 0, 100, Refused), held(2, 50, 150, 160), released(2, 160, 170)}},
			mutex: porcupine.Ok,
		},
		"granted though an acquire of unknown outcome may have it": {
			runs:  [][]Record{{event(Acquire, 1, 0, 0, Unknown)}, {held(2, 100, 110, 120), released(2, 120, 130)}},
			mutex: porcupine.Ok, killed: 90,
		},
		"granted though a release is not known to be over": {
			runs:  [][]Record{{held(1, 0, 10, 50), event(Release, 1, 50, 0, Unknown)}, {held(2, 60, 70, 80), released(2, 80, 90)}},
			mutex: porcupine.Ok, killed: 55,
		},
	} {
		t.Run(name, func(t *testing.T) {
			runs := make([]Run, len(c.runs))
			for i, records := range c.runs {
				runs[i] = Run{Records: records, Lease: 100}
			}
			runs[0].Killed = c.killed
			locks := Locks(runs, 10)
			if len(locks) != 1 {
				t.Fatalf("%d locks, want 1", len(locks))
			}
			if n := Overlaps(locks[0]); n != c.overlaps {
				t.Errorf("%d overlaps, want %d", n, c.overlaps)
			}
			if v := CheckMutex(locks[0], time.Minute); v.Result != c.mutex {
				t.Errorf("the mutex model says %s of %d operations, want %s", v.Result, v.Operations, c.mutex)
			}
		})
	}
}

func TestRegressions(t *testing.T) {
	holds := []Record{
		withToken(held(1, 0, 10, 20), 5), withToken(held(2, 5, 30, 40), 4), // asked for together: either may be first
		withToken(held(3, 50, 60, 70), 4), // and this is smaller than a token that was returned
	}
	l := Locks([]Run{{Records: holds, Lease: 100}}, 10)[0]
	if n := Regressions(l); n != 1 {
		t.Errorf("%d regressions, want 1", n)
	}
}

func TestRegister(t *testing.T) {
	write := func(value, before uint64, token, call int64, o Outcome) Record {
		return Record{Kind: FencedWrite, Outcome: o, Value: value, Before: before, Token: token, Call: call, Return: call + 5}
	}
	claim := func(token, call int64, o Outcome) Record {
		return Record{Kind: Claim, Outcome: o, Token: token, Call: call, Return: call + 5}
	}
	for name, c := range map[string]struct {
		claims, writes []Record
		last           uint64
		want           RegisterVerdict
	}{
		"a chain": {
			writes: []Record{write(1, 0, 1, 0, Done), write(2, 1, 2, 10, Done)}, last: 2,
			want: RegisterVerdict{Written: 2},
		},
		"two wrote on one value": {
			writes: []Record{write(1, 0, 1, 0, Done), write(2, 0, 2, 10, Done), write(3, 2, 3, 20, Done)}, last: 3,
			want: RegisterVerdict{Written: 3, Lost: 1},
		},
		"a stale write loses all since its read": {
			writes: []Record{write(1, 0, 1, 0, Done), write(2, 1, 2, 10, Done), write(9, 0, 3, 20, Done)}, last: 9,
			want: RegisterVerdict{Written: 3, Lost: 2},
		},
		"the last is gone": {
			writes: []Record{write(1, 0, 1, 0, Done)}, last: 0,
			want: RegisterVerdict{Written: 1, Lost: 1},
		},
		"unknown that happened, unknown that did not, and refused": {
			writes: []Record{
				write(1, 0, 1, 0, Unknown), write(2, 1, 2, 10, Done), write(3, 1, 1, 20, Unknown), write(4, 1, 1, 30, Refused),
			}, last: 2,
			want: RegisterVerdict{Written: 1},
		},
		"written after a greater claim": {
			claims: []Record{claim(1, 0, Done), claim(2, 10, Done)},
			writes: []Record{write(1, 0, 1, 20, Done)}, last: 1,
			want: RegisterVerdict{Written: 1, Stale: 1},
		},
		"written while a greater claim was on its way, or refused, or unknown": {
			claims: []Record{claim(1, 0, Done), claim(2, 10, Done), claim(3, 0, Refused), claim(4, 0, Unknown)},
			writes: []Record{write(1, 0, 1, 12, Done)}, last: 1,
			want: RegisterVerdict{Written: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := CheckRegister(c.claims, c.writes, c.last); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestOverlappingWrites(t *testing.T) {
	at := func(kind Kind, hold uint64, call, end int64) Record { return event(kind, hold, call, end, Done) }
	l := Locks([]Run{{Records: []Record{
		at(Read, 1, 0, 10), at(Read, 2, 20, 30), at(Write, 2, 40, 50), at(Write, 1, 60, 70),
		at(Claim, 1, 0, 10), at(Claim, 2, 20, 30), at(FencedWrite, 2, 40, 50), event(FencedWrite, 1, 60, 70, Refused),
	}}}, 10)[0]
	if fenced, plain := OverlappingWrites(l); fenced != 0 || plain != 1 {
		t.Errorf("%d fenced and %d unfenced, want 0 and 1", fenced, plain)
	}
}
