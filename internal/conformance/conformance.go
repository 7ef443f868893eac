// Package conformance is one table of what a rule means in every framework: the same key,
// the same waiting, the same refusals, the same spans. The root's test runs the table on a
// store in memory over all frameworks, so that a row is quick and can make any fault. Each
// store runs it on its own server over net/http and gRPC, since memory could hide what the
// scripts of a store do.
package conformance

import (
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/frameworks"
)

// Server is a server of locks as one row sees it: no other row has the same locks.
type Server interface {
	// Store returns a store, as a process of its own has it. It is closed when the test
	// ends.
	Store(tb testing.TB) core.Store
	// Held reports whether the server has the lock of a key.
	Held(tb testing.TB, key string) bool
	// Lose ends the lock of a key, and reports whether there was one.
	Lose(tb testing.TB, key string) bool
	// CutOff makes the server unreachable for the rest of the test.
	CutOff(tb testing.TB)
}

// Open returns the server of a row. own says that the row cuts the server off.
type Open func(t *testing.T, own bool) Server

// Run runs the table over frameworks.
func Run(t *testing.T, over []frameworks.Framework, open Open) {
	quiet(t)
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			if !b.logs { // rows that read the log run before the parallel ones begin
				t.Parallel()
			}
			for _, f := range over {
				t.Run(f.Label, func(t *testing.T) {
					if !b.logs {
						t.Parallel()
					}
					b.holds(&world{t, f, open(t, b.own)})
				})
			}
		})
	}
}
