// Package conformance is one table of the meaning of a rule in every framework: the same
// key, the same waiting, the same refusals. The root's test runs the table on a store in
// memory over all frameworks, so that a row is quick and can make any fault. Where calls of
// net/http and gRPC meet at the key alone, each store runs [RunAcross] on its own server.
package conformance

import (
	"testing"

	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/frameworks"
)

// Run runs the table over frameworks, each row on its own store in memory. A row that means
// nothing in a framework is no test of that framework: a row that passes has run.
func Run(t *testing.T, over []frameworks.Framework) {
	quiet(t)
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			if !b.logs { // rows that read the log run before the parallel ones begin
				t.Parallel()
			}
			for _, f := range over {
				if !b.over.has(f) {
					continue
				}
				t.Run(f.Label, func(t *testing.T) {
					if !b.logs {
						t.Parallel()
					}
					b.holds(&world{t, f, memstore.New()})
				})
			}
		})
	}
}
