package idemcases

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/internal/testkit"
)

// row is a case.
type row struct {
	name  string
	http  bool // it is about HTTP
	own   bool // it needs its own server, since it kills it
	slow  bool // it waits for time to pass, so it runs in parallel
	logs  bool // it reads the log, so it runs alone
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
	return slices.Concat(endpointCases, disturbedCases, lockedCases, gatheredCases, stackedCases, panicCases,
		responseCases, headerCases, bodyCases, selectCases, foreignCases)
}

// Run runs the cases over frameworks. Each case runs in parallel with others, with its own
// records from open. The effects of handlers are outside of the records.
func Run(t *testing.T, over []adaptertest.Framework, open func(*testing.T) Records) {
	each(t, over, inside, func(c row) Server {
		if c.logs {
			return Shared
		}
		return Beside
	}, func(t *testing.T, _ Server) (Records, *ledger) { return open(t), nil })
}

// Server says which server a case gets.
type Server int

// The servers of cases.
const (
	Shared Server = iota // one after the other use it
	Beside               // others use it at the same time
	Own                  // the case kills it
)

// RunOn runs the cases on a server, over one framework of each protocol, and over the first
// only if they kill the server. The effects of handlers are outside of the records, which
// open opens.
func RunOn(t *testing.T, over []adaptertest.Framework, open func(*testing.T, Server) Records) {
	each(t, over, inside, onServer, func(t *testing.T, s Server) (Records, *ledger) { return open(t, s), nil })
}

// RunInTransactions runs the cases as [RunOn] does, but each handler begins with an effect
// in the transaction of its request. At the end of a case the effects have to agree with
// the answers to clients.
func RunInTransactions(t *testing.T, over []adaptertest.Framework, open func(*testing.T, Server) Transactions) {
	each(t, over, outside, onServer, func(t *testing.T, s Server) (Records, *ledger) {
		tx := open(t, s)
		return tx, &ledger{Transactions: tx, told: make(map[told]bool)}
	})
}

// onServer says which server a case gets where opening records takes time.
func onServer(c row) Server {
	switch {
	case c.own:
		return Own
	case c.slow:
		return Beside
	}
	return Shared
}

// each runs all cases over frameworks, but not the cases with effects in a place that is not
// there. A case that shares its server runs alone, and before the others.
func each(t *testing.T, over []adaptertest.Framework, not where, server func(row) Server, open func(*testing.T, Server) (Records, *ledger)) {
	old := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // many cases are mistakes on purpose
	t.Cleanup(func() { slog.SetDefault(old) })
	var names []string
	for _, c := range table() {
		names = append(names, c.name)
	}
	for _, a := range over {
		testkit.Declared(t, a.Label, a.CannotIdempotent, names)
	}
	for _, c := range table() {
		if c.where == not {
			continue
		}
		for i, a := range over {
			if i > 0 && server(c) == Own {
				continue // a server takes seconds to come back
			}
			if !a.Idempotent || c.http && !a.HTTP {
				continue
			}
			t.Run(c.name+"/"+a.Label, func(t *testing.T) {
				testkit.Row(t, c.name, "Framework.CannotIdempotent", a.CannotIdempotent)
				s := server(c)
				if s != Shared {
					t.Parallel()
				}
				records, ledger := open(t, s)
				f := newFixture(t, a, records)
				f.ledger, f.lasts = ledger, s != Own
				c.run(f)
				f.wantEntered()
			})
		}
	}
}
