//go:build integration && long

package fleet_test

import (
	"testing"

	"github.com/interlock-go/interlock/internal/redistest"
)

func TestAFleetBehindSentinel(t *testing.T) {
	t.Parallel()
	rdb := redistest.Sentinel(t, 1).Client(t)
	t.Run("tests", func(t *testing.T) {
		for name, test := range topologies {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				_, prefix := redistest.Common(t)
				test(worldOf(t, rdb, prefix))
			})
		}
	})
}
