//go:build long

package histories

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/trust/internal/history"
)

const (
	// slack is by how much a request can be late: a process, a network and a
	// server that stand still one after the other.
	slack = int64(6 * lease)
	// searchTime bounds the search for an order of one lock's operations.
	searchTime = time.Minute
)

// verdict is the checkers' finding about one subject.
type verdict struct {
	acquires, granted, refused, unknown int
	releases, fenced, plain             int
	locks, lost, overlaps, regressions  int
	overlapsFenced, overlapsPlain       int
	fencedLost, fencedStale, plainLost  int
	modelled, impossible, undecided     int // operations and locks of the model
	tries                               int // the refused among the operations

	ways            [3]int // the grants by how they are held
	beside, crowded int    // holds next to an exclusive one, permits above their number
	tokens          int    // of places, misplaced
	judged, wrongly int    // refusals of places
	left            int    // places of killed processes
	vacancy                // after the end

	why string // of the first that is impossible

	overlapTime, modelTime, registerTime time.Duration
}

func (v *verdict) operations() int { return v.acquires + v.releases + v.fenced + v.plain }

// caughtBy names the checkers that object.
func (v *verdict) caughtBy() []string {
	var by []string
	if v.overlaps > 0 {
		by = append(by, fmt.Sprintf("overlap (%d)", v.overlaps))
	}
	if v.regressions+v.impossible > 0 {
		by = append(by, fmt.Sprintf("mutex (%d locks, %d tokens)", v.impossible, v.regressions))
	}
	if v.beside+v.crowded+v.tokens+v.wrongly > 0 {
		by = append(by, fmt.Sprintf("places (%d not alone, %d too many, %d tokens, %d refused)", v.beside, v.crowded, v.tokens, v.wrongly))
	}
	if v.stuck+v.surplus > 0 {
		by = append(by, fmt.Sprintf("vacancy (%d keys stuck, %d with too many places)", v.stuck, v.surplus))
	}
	if n := v.fencedLost + v.fencedStale + v.overlapsFenced; n > 0 {
		by = append(by, fmt.Sprintf("register (%d lost, %d stale)", v.fencedLost, v.fencedStale))
	}
	return by
}

// judge has the three checkers look at each lock of each subject.
func judge(t *testing.T, runs []history.Run, o orders, registers *redis.Client) []*verdict {
	t.Helper()
	subjects := o.Subjects
	all := make([]*verdict, len(subjects))
	for i := range all {
		all[i] = &verdict{}
	}
	for _, run := range runs {
		for _, r := range run.Records {
			all[r.Subject].count(r)
		}
	}
	for _, l := range history.Locks(runs, slack) {
		v := all[l.Subject]
		v.locks++
		for _, h := range l.Holds {
			if h.Release != nil && h.Until < h.Release.Call {
				v.lost++
			}
		}
		begin := time.Now()
		if o.Servers.Kind != single {
			// A release that a failover lost gives the lock its lease back, and a split vote
			// refuses a lock that no process holds.
			l.Refusals = nil
		}
		if hasPlaces(subjects[l.Subject]) {
			v.placesOf(l, keyName(subjects[l.Subject], l.Key))
		} else {
			v.overlaps += history.Overlaps(l)
		}
		fenced, plain := history.OverlappingWrites(l)
		v.overlapsFenced, v.overlapsPlain = v.overlapsFenced+fenced, v.overlapsPlain+plain
		v.overlapTime += time.Since(begin)

		if !hasPlaces(subjects[l.Subject]) {
			begin = time.Now()
			v.mutexOf(l, keyName(subjects[l.Subject], l.Key))
			v.modelTime += time.Since(begin)
		}

		lastFenced, lastPlain, err := lastValues(t.Context(), registers, keyName(subjects[l.Subject], l.Key))
		if err != nil {
			t.Fatal(err)
		}
		begin = time.Now()
		f := history.CheckRegister(l.Claims, l.Writes, lastFenced)
		v.fencedLost, v.fencedStale = v.fencedLost+f.Lost, v.fencedStale+f.Stale
		v.plainLost += history.CheckRegister(nil, l.Plain, lastPlain).Lost
		v.registerTime += time.Since(begin)
	}
	return all
}

// mutexOf has the model look at a lock.
func (v *verdict) mutexOf(l *history.Lock, name string) {
	v.regressions += history.Regressions(l)
	v.tries += len(l.Refusals)
	m := history.CheckMutex(l, searchTime)
	v.modelled += m.Operations
	switch m.Result {
	case porcupine.Ok:
	case porcupine.Illegal:
		v.impossible++
		if v.why == "" {
			v.why = fmt.Sprintf("%s: %s", name, m.Why)
		}
	case porcupine.Unknown:
		v.undecided++
	}
}

// count counts an operation.
func (v *verdict) count(r history.Record) {
	switch r.Kind {
	case history.Acquire, history.TryAcquire:
		v.acquires++
		switch r.Outcome {
		case history.Done:
			v.granted++
			v.ways[r.Way]++
		case history.Refused:
			v.refused++
		case history.Unknown, history.Lost:
			v.unknown++
		}
		return
	case history.Release:
		v.releases++
	case history.FencedWrite:
		v.fenced++
	case history.Write:
		v.plain++
	case history.Claim, history.Read: // belong to the writes
		return
	}
	if r.Outcome == history.Unknown {
		v.unknown++
	}
}

// row is a line of the table.
type row struct {
	topology string
	faults   map[string]int
	*verdict
}

// report prints the rows in Markdown.
func report(w io.Writer, rows []row) error {
	var b strings.Builder
	b.WriteString("\n| topology | operations | grants | unknown outcomes | leases lost | overlaps of trusted holds " +
		"| overlapping writes accepted: unfenced, fenced | acknowledged writes lost: unfenced, fenced " +
		"| locks that are no mutex | checked in: overlap, mutex, register |\n|---|---|---|---|---|---|---|---|---|---|\n")
	operations := 0
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d, %d | %d of %d, %d of %d | %d of %d | %v, %v, %v |\n",
			r.topology, r.operations(), r.granted, r.unknown, r.lost, r.overlaps, r.overlapsPlain, r.overlapsFenced,
			r.plainLost, r.plain, r.fencedLost, r.fenced, r.impossible+r.undecided, r.locks,
			round(r.overlapTime), round(r.modelTime), round(r.registerTime))
		operations += r.operations()
	}
	fmt.Fprintf(&b, "| all | %d |\n\n| topology | faults |\n|---|---|\n", operations)
	for _, r := range rows {
		list := make([]string, 0, len(r.faults))
		for _, name := range slices.Sorted(maps.Keys(r.faults)) {
			list = append(list, fmt.Sprintf("%s %d", name, r.faults[name]))
		}
		fmt.Fprintf(&b, "| %s | %s |\n", r.topology, strings.Join(list, "; "))
	}
	_, err := io.WriteString(w, b.String()+"\n")
	return err
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
