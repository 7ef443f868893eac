//go:build integration

package rediswire

import (
	"flag"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
)

var placesCalls = flag.Int("places", fewPlaces, "how many `calls` TestPlacesKeepTheirPromises makes")

func TestPlacesKeepTheirPromises(t *testing.T) {
	t.Parallel()
	rdb, seed, began := redistest.Start(t).Client(t, patiently), uint64(time.Now().UnixNano()), time.Now()
	if err := explore(t.Context(), rdb, theLibrary(), *placesCalls, seed); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	t.Logf("%d calls in %v", *placesCalls, time.Since(began))
}
