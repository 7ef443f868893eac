package idemcases

import (
	"slices"
	"testing"

	"github.com/interlock-go/interlock/internal/frameworks"
)

// row is a case.
type row struct {
	name  string
	http  bool // it is about HTTP
	own   bool // it needs a server of its own, since it kills it
	slow  bool // it waits for time to pass: the frameworks do so at the same time
	where where
	run   func(f *fixture)
}

// where says where the effects of a case can be.
type where int

const (
	anywhere where = iota
	outside        // of the database of the records
	inside         // of the transaction that stores the answer
)

// table is all cases.
func table() []row {
	return slices.Concat(endpointCases, disturbedCases, lockedCases, stackedCases, waitingCases, sealingCases, panicCases,
		responseCases, headerCases, bodyCases, selectCases)
}

// Run runs the cases over all frameworks. The effects of handlers are outside of the
// records. own asks open for a server on which no other case runs at the same time.
func Run(t *testing.T, open func(t *testing.T, own bool) Records) {
	each(t, inside, func(t *testing.T, own bool) (Records, *ledger) { return open(t, own), nil })
}

// RunInTransactions runs the cases as [Run] does, but each handler begins with an effect
// in the transaction of its request. At the end of a case the effects have to be those
// of the answers that clients got.
func RunInTransactions(t *testing.T, open func(t *testing.T, own bool) Transactions) {
	each(t, outside, func(t *testing.T, own bool) (Records, *ledger) {
		tx := open(t, own)
		return tx, &ledger{Transactions: tx, told: make(map[told]bool)}
	})
}

// each runs all cases but those of which the effects are in a place that is not there.
func each(t *testing.T, not where, open func(t *testing.T, own bool) (Records, *ledger)) {
	for _, c := range table() {
		if c.where == not {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			for _, a := range frameworks.All {
				if !a.Idempotent || c.http && !a.HTTP {
					continue
				}
				t.Run(a.Label, func(t *testing.T) {
					if c.slow {
						t.Parallel()
					}
					records, ledger := open(t, c.own || c.slow)
					f := newFixture(t, a, records)
					f.ledger = ledger
					c.run(f)
					f.wantEntered()
				})
			}
		})
	}
}
