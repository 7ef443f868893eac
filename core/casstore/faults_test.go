package casstore_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
)

// A network loses requests and answers, delays and reorders them, and breaks watches. No
// two owners trust a lock at once, tokens grow, and no lock stays that no owner has.
func TestFaultsOfTheNetworkGiveNoLockTwice(t *testing.T) {
	slog.SetLogLoggerLevel(slog.LevelError)
	grants := 0
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
			for _, wrong := range w.run() {
				t.Errorf("seed %d: %s", seed, wrong)
			}
			grants += w.grants
		})
		if t.Failed() {
			break
		}
	}
	t.Logf("%d seeds, %d grants", seeds, grants)
}
