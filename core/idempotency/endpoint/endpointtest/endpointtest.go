// Package endpointtest is the test suite of idempotent endpoints of adapters: what a client is
// answered when it sends a request again, however the first one ended. An adapter of your own is
// held by it as the adapters of this module are. Package adaptertest describes a framework to it,
// and has the rows of locks.
package endpointtest

import (
	"testing"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/internal/idemcases"
	"github.com/interlock-go/interlock/internal/idemcases/inmemory"
)

// Run runs the rows of idempotent endpoints over frameworks, each on its own records in memory. A
// framework that is not [adaptertest.Framework.Idempotent] has none. A row that
// [adaptertest.Framework.CannotIdempotent] declares is skipped, with the reason that stands there.
// The rows change slog.Default until the test ends, so a test that calls Run must not be parallel
// to others.
func Run(t *testing.T, over ...adaptertest.Framework) {
	t.Helper()
	idemcases.Run(t, over, inmemory.Open)
}
