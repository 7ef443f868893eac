package adaptertest

import (
	"log/slog"
	"testing"

	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/testkit"
)

// Run runs the rows of rules of locks over frameworks, each on its own store in memory. A row that
// is about something that a framework does not have ([Framework.HTTP], [Framework.Parts]) is no
// test of that framework. A row that [Framework.Cannot] declares is skipped, with the reason that
// stands there, and not waited for. The rows change slog.Default until the test ends, so a test
// that calls Run must not be parallel to others.
func Run(t *testing.T, over ...Framework) {
	t.Helper()
	old := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // many rows are mistakes on purpose
	t.Cleanup(func() { slog.SetDefault(old) })
	var names []string
	for _, b := range behaviours {
		names = append(names, b.name)
	}
	for _, f := range over {
		testkit.Declared(t, f.Label, f.Cannot, names)
	}
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
					testkit.Row(t, b.name, "Framework.Cannot", f.Cannot)
					if !b.logs {
						t.Parallel()
					}
					b.holds(&world{t, f, memstore.New()})
				})
			}
		})
	}
}
