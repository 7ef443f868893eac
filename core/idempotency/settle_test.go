package idempotency

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/reason"
)

var update = flag.Bool("update", false, "write the table of docs/idempotency.md")

// row is a row of the table. The first row that fits the facts counts.
type row struct {
	handler, unit string // the columns
	fits          func(facts) bool
	plan          plan
}

// table is the table of docs/idempotency.md. It says in its own words what settle decides.
func table() []row {
	nothingDone := func(f facts) bool {
		return f.unit == unitUnclear || f.unit == unitRefused || f.unit == unitAborted && f.success ||
			f.unit == unitRolledBack && (tooLong(f) || f.overflow == brokenOff || f.lost && !f.inner)
	}
	return []row{
		{
			"ended its transaction itself", "unknown",
			func(f facts) bool { return f.unit == unitEnded },
			plan{mark, refusal, reason.OutcomeUnknown},
		},
		{
			"gave an answer to store", "committed",
			func(f facts) bool { return f.unit == unitCommitted },
			plan{does: keep, gets: ownAnswer},
		},
		{
			"the same, and another attempt took over", "rolled back",
			func(f facts) bool { return f.unit == unitOvertaken },
			plan{does: keep, gets: winners},
		},
		{
			"`MarkEffect`, or a `Once` step without outcome, and any of the next five rows", "",
			func(f facts) bool { return (f.marked || f.stepOpen) && nothingDone(f) },
			plan{leave, refusal, reason.OutcomeUnknown},
		},
		{
			"gave an answer to store, no reply to the commit", "unknown",
			func(f facts) bool { return f.unit == unitUnclear },
			plan{abandonLater, refusal, reason.InFlight},
		},
		{
			"the same, commit refused", "rolled back",
			func(f facts) bool { return f.unit == unitRefused || f.unit == unitAborted && f.success },
			plan{abandon, refusal, reason.RolledBack},
		},
		{
			"gave an answer over `MaxResponse`", "rolled back",
			func(f facts) bool { return f.unit == unitRolledBack && tooLong(f) },
			plan{abandon, refusal, reason.ResponseTooLarge},
		},
		{
			"broke its response off", "rolled back",
			func(f facts) bool { return f.unit == unitRolledBack && f.overflow == brokenOff },
			plan{abandon, refusal, reason.RolledBack},
		},
		{
			"lost its lock, or its claim without an answer to store", "rolled back",
			func(f facts) bool { return f.unit == unitRolledBack && f.lost && !f.inner },
			plan{abandon, refusal, reason.RolledBack},
		},
		{
			"`HandOver`, and broke its response off", "none",
			func(f facts) bool { return f.handed && f.overflow == brokenOff },
			plan{keep, refusal, reason.InFlight},
		},
		{
			"broke its response off", "none",
			func(f facts) bool { return f.overflow == brokenOff },
			plan{storeNone, refusal, reason.ResponseUnavailable},
		},
		{
			"sent an answer over `MaxResponse`", "none",
			func(f facts) bool { return f.overflow == sentDecided },
			plan{does: keep, gets: ownAnswer},
		},
		{
			"had such an answer, another attempt took over", "none",
			func(f facts) bool { return f.overflow == takenOver },
			plan{does: keep, gets: winners},
		},
		{
			"lost its lock or claim, no answer", "none",
			func(f facts) bool { return f.lost && (f.overflow == withheld || f.silent && f.overflow == fits) },
			plan{does: leave, gets: lossOf},
		},
		{
			"failed by an inner call that lost its lock, or was refused after `MarkEffect` or with such a step", "any",
			func(f facts) bool { return f.inner && (f.innerRan || f.marked || f.stepOpen) },
			plan{does: leave, gets: inners},
		},
		{
			"failed by an inner call that was refused", "any",
			func(f facts) bool { return f.inner },
			plan{does: abandon, gets: inners},
		},
		{
			"`HandOver`, and an answer to store, over `MaxResponse`", "any",
			func(f facts) bool { return f.handed && stored(f) && (f.long || f.overflow == sentUndecided) },
			plan{does: keep, gets: ownAnswer},
		},
		{
			"gave an answer to store, over `MaxResponse`", "any",
			func(f facts) bool { return stored(f) && (f.long || f.overflow == sentUndecided) },
			plan{does: storeNone, gets: ownAnswer},
		},
		{
			"gave an answer to store", "any", stored, plan{does: store, gets: ownAnswer},
		},
		{
			"lost its lock or claim, another answer", "none",
			func(f facts) bool { return f.lost },
			plan{does: leave, gets: ownAnswer},
		},
		{
			"gave another answer, over `MaxResponse`, with a `Once` step without outcome", "none",
			func(f facts) bool { return f.stepOpen && f.overflow != fits },
			plan{does: leave, gets: ownAnswer},
		},
		{
			"gave another answer, with a `Once` step without outcome", "any",
			func(f facts) bool { return f.stepOpen },
			plan{leave, refusal, reason.OutcomeUnknown},
		},
		{
			"gave another answer", "any",
			func(facts) bool { return true },
			plan{does: abandon, gets: ownAnswer},
		},
	}
}

// stored reports whether an answer is of a kind that is stored.
func stored(f facts) bool {
	switch f.class {
	case invalid:
		return !f.releaseInvalid || f.marked || f.storeAll
	case deferred:
		return f.marked || f.storeAll
	case failed:
		return f.marked || f.storeAll || f.strict
	}
	return true
}

// tooLong reports whether its length alone kept an answer from the commit.
func tooLong(f facts) bool { return f.overflow == oversized || f.long && fitToCommit(f) }

// fitToCommit reports whether an answer is committed with the transaction of its handler, if it
// is not too long.
func fitToCommit(f facts) bool {
	return f.class != deferred && f.class != failed && stored(f) && f.overflow == fits &&
		!f.inner && !f.lockLost && (!f.lost || !f.silent)
}

// The words of the table's last columns.
func (p plan) record() string {
	return map[action]string{
		store: "answer stored", storeNone: "stored without answer", abandon: "given up", abandonLater: "given up unless committed",
		mark: "marked, lease ends", leave: "lease ends", keep: "kept",
	}[p.does]
}

func (p plan) client() string {
	if p.gets == refusal {
		return "`" + string(p.why) + "`"
	}
	return map[share]string{
		ownAnswer: "its answer", winners: "the other's answer", lossOf: "`lost`, `max-hold`, `superseded`", inners: "its answer",
	}[p.gets]
}

// ends calls f with all facts that an attempt can end with, before its transaction is ended.
func ends(f func(facts)) {
	bools := []bool{false, true}
	for n := range 1 << 13 {
		bit := func(i int) bool { return bools[n>>i&1] }
		for class := final; class <= failed; class++ {
			for over := fits; over <= brokenOff; over++ {
				facts := facts{
					success: bit(0), class: class, overflow: over, long: bit(1), silent: bit(2), marked: bit(3),
					lost: bit(4), lockLost: bit(5), inner: bit(6), innerRan: bit(7), handed: bit(11), stepOpen: bit(12),
					policy: policy{strict: bit(8), storeAll: bit(9), releaseInvalid: bit(10)},
				}
				for facts.unit = unitNone; facts.unit <= unitOpen; facts.unit++ {
					if possible(facts) {
						f(facts)
					}
				}
			}
		}
	}
}

// possible reports whether an attempt can end with these facts.
func possible(f facts) bool {
	inTransaction := f.overflow == fits || f.overflow == oversized || f.overflow == brokenOff
	switch {
	case f.handed && f.stepOpen:
		return false // HandOver refuses it
	case f.handed && (f.overflow == sentDecided || f.overflow == takenOver):
		return false // a response that has left ends all hand-overs, and does not settle a claim that was handed over
	case f.lockLost && !f.lost, f.innerRan && !f.inner:
		return false // the second says more of the first
	case f.inner && f.success && f.class != failed && !f.silent:
		return false // an answer of success is the handler's
	case f.success && f.class == invalid:
		return false
	case f.long && f.overflow != fits:
		return false // the rest of a long answer is not kept
	case f.overflow == withheld && !f.lockLost:
		return false // that is why it was withheld
	case f.overflow == oversized && f.unit == unitNone, f.unit == unitOpen && !inTransaction:
		return false // no part of an answer leaves before the commit
	}
	return true
}

// settled calls f with all facts for which settle has the last word, and with its plan.
func settled(tb testing.TB, f func(facts, plan)) {
	ends(func(a facts) {
		var next []unitState
		switch p := settle(a); {
		case a.unit == unitNone:
			next = []unitState{unitNone}
		case p.does == commitUnit && fitToCommit(a) && !a.long:
			next = []unitState{unitCommitted, unitOvertaken, unitRefused, unitAborted, unitEnded, unitUnclear}
		case p.does == rollBack && (!fitToCommit(a) || a.long):
			next = []unitState{unitRolledBack, unitEnded}
		default:
			tb.Fatalf("%+v: an open transaction ends by %+v; want it committed if the answer is fit for it, and else rolled back", a, p)
		}
		for _, a.unit = range next {
			f(a, settle(a))
		}
	})
}

// TestSettleDecidesAsTheTableOfTheDocumentSays has all combinations of facts.
func TestSettleDecidesAsTheTableOfTheDocumentSays(t *testing.T) {
	rows := table()
	used := make([]int, len(rows))
	settled(t, func(f facts, p plan) {
		for i, r := range rows {
			if r.fits(f) {
				if used[i]++; p != r.plan {
					t.Fatalf("%+v: the plan is %+v; the row %q says %+v", f, p, r.handler, r.plan)
				}
				return
			}
		}
	})
	text := "| the handler | transaction | the record | the client gets |\n|---|---|---|---|\n"
	for i, r := range rows {
		if used[i] == 0 {
			t.Errorf("no combination of facts comes to the row %q", r.handler)
		}
		text += fmt.Sprintf("| %s | %s | %s | %s |\n", r.handler, r.unit, r.plan.record(), r.plan.client())
	}
	const page, begin, end = "../../docs/idempotency.md", "<!-- go test ./core/idempotency -run Settle -update -->\n", "<!-- end -->"
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(content), begin)
	was, after, found := strings.Cut(rest, end)
	switch {
	case !found:
		t.Fatalf("%s has no table between %q and %q", page, begin, end)
	case *update:
		if err := os.WriteFile(page, []byte(before+begin+text+end+after), 0o644); err != nil { //nolint:gosec // a page that all may read
			t.Fatal(err)
		}
	case was != text:
		t.Errorf("the table of %s is not the table of this test; go test -run Settle -update writes it:\n%s", page, text)
	}
}

// TestWhatIsTrueOfEachPlan does not use the table.
func TestWhatIsTrueOfEachPlan(t *testing.T) {
	frees := func(p plan) bool { return p.does == abandon || p.does == abandonLater }
	for claim, broken := range map[string]func(facts, plan) bool{
		"a transaction ends once": func(_ facts, p plan) bool { return p.does == commitUnit || p.does == rollBack },
		"a marked effect leaves no key free": func(f facts, p plan) bool {
			return f.marked && frees(p)
		},
		"a step that may have had its effect leaves no key free": func(f facts, p plan) bool {
			return f.stepOpen && frees(p)
		},
		"a strict endpoint leaves no key free after an answer that is final or failed": func(f facts, p plan) bool {
			return f.strict && f.unit == unitNone && (f.class == final || f.class == failed) && !f.inner && frees(p)
		},
		"a key is free only if the handler failed, or nothing remains of its effect": func(f facts, p plan) bool {
			return frees(p) && f.class == final && f.unit == unitNone && !f.inner
		},
		"no answer is stored if a lost lock or claim may be why there is none": func(f facts, p plan) bool {
			return f.lost && f.silent && f.overflow == fits && f.unit != unitCommitted && (p.does == store || p.does == storeNone)
		},
		"no outcome that is unknown is stored": func(f facts, p plan) bool {
			return (f.unit == unitEnded || f.unit == unitUnclear || f.innerRan && f.overflow == fits) &&
				f.unit != unitCommitted && f.overflow != brokenOff && (p.does == store || p.does == storeNone)
		},
		"the record of a request that is handed over has room for the final answer": func(f facts, p plan) bool {
			return f.handed && p.does == storeNone
		},
		"no refusal of a moment is stored": func(f facts, p plan) bool {
			return f.inner && f.overflow == fits && (p.does == store || p.does == storeNone)
		},
		"no part of an answer is stored": func(f facts, p plan) bool {
			return p.does == store && (f.overflow != fits || f.long)
		},
		"no answer of success leaves whose transaction was rolled back": func(f facts, p plan) bool {
			return f.unit != unitNone && f.unit != unitCommitted && f.success && f.class == final && p.gets == ownAnswer
		},
		"no answer of success is stored whose transaction was rolled back": func(f facts, p plan) bool {
			return f.unit != unitNone && f.success && f.class == final && (p.does == store || p.does == storeNone)
		},
		"the client gets no answer that the engine has held back": func(f facts, p plan) bool {
			held := f.overflow == withheld || f.overflow == takenOver || f.overflow == brokenOff || f.overflow == oversized
			return held && p.gets == ownAnswer
		},
		"a client that has its answer gets no other": func(f facts, p plan) bool {
			return (f.overflow == sentDecided || f.overflow == sentUndecided && !f.inner) && p.gets != ownAnswer
		},
		"a client learns that the outcome is unknown, if the record says so": func(_ facts, p plan) bool {
			return p.does == mark && p.why != reason.OutcomeUnknown
		},
		"a refusal has a reason": func(_ facts, p plan) bool { return (p.gets == refusal) != (p.why != "") },
	} {
		t.Run(claim, func(t *testing.T) {
			settled(t, func(f facts, p plan) {
				if broken(f, p) {
					t.Fatalf("%+v: the plan is %+v", f, p)
				}
			})
		})
	}
}
