package idemcases

import (
	"slices"
	"sync"
	"testing"

	"github.com/interlock-go/interlock/internal/frameworks"
)

// row is a case.
type row struct {
	name  string
	http  bool // it is about HTTP
	own   bool // it needs a server of its own, since it kills it
	slow  bool // it waits for time to pass, so it runs beside others
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

// Server says which server a case gets.
type Server int

// The servers of cases.
const (
	Shared Server = iota // one after the other use it
	Beside               // others use it at the same time
	Own                  // the case kills it
)

// Run runs the cases over all frameworks. The effects of handlers are outside of the
// records, which open opens. With -short the cases that kill their server run over one
// framework of each protocol.
func Run(t *testing.T, open func(*testing.T, Server) Records) {
	each(t, inside, func(t *testing.T, s Server) (Records, *ledger) { return open(t, s), nil })
}

// RunInTransactions runs the cases as [Run] does, but each handler begins with an effect
// in the transaction of its request. At the end of a case the effects have to be those
// of the answers that clients got.
func RunInTransactions(t *testing.T, open func(*testing.T, Server) Transactions) {
	each(t, outside, func(t *testing.T, s Server) (Records, *ledger) {
		tx := open(t, s)
		return tx, &ledger{Transactions: tx, told: make(map[told]bool)}
	})
}

// atOnce is how many cases run at the same time that wait for time to pass. They do not
// use [testing.T.Parallel], which runs as many as there are processors.
const atOnce = 8

// each runs all cases but those of which the effects are in a place that is not there.
func each(t *testing.T, not where, open func(*testing.T, Server) (Records, *ledger)) {
	var later []func()
	for _, c := range table() {
		if c.where == not {
			continue
		}
		protocols := make(map[bool]bool)
		for _, a := range frameworks.All {
			if !a.Idempotent || c.http && !a.HTTP || c.own && testing.Short() && protocols[a.HTTP] {
				continue
			}
			protocols[a.HTTP] = true
			run := func(s Server) {
				t.Run(c.name+"/"+a.Label, func(t *testing.T) {
					records, ledger := open(t, s)
					f := newFixture(t, a, records)
					f.ledger = ledger
					c.run(f)
					f.wantEntered()
				})
			}
			switch {
			case c.own:
				later = append([]func(){func() { run(Own) }}, later...) // they take the longest
			case c.slow:
				later = append(later, func() { run(Beside) })
			default:
				run(Shared)
			}
		}
	}
	var waits sync.WaitGroup
	defer waits.Wait()
	free := make(chan struct{}, atOnce)
	for _, run := range later {
		waits.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			run()
		})
	}
}
