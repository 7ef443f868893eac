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
	grants, begun := 0, 0
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
			for _, wrong := range w.run() {
				t.Errorf("seed %d: %s", seed, wrong)
			}
			grants, begun = grants+w.grants, begun+w.begun
		})
		if t.Failed() {
			break
		}
	}
	t.Logf("%d seeds, %d grants, %d by an offer", seeds, grants, begun)
}
