package rediswire

import (
	"flag"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

var placesCalls = flag.Int("places", 20_000, "how many calls TestPlacesKeepTheirPromises makes")

func TestPlacesKeepTheirPromises(t *testing.T) {
	rdb := checked(t)
	seed := uint64(time.Now().UnixNano())
	began := time.Now()
	if err := explore(t.Context(), rdb, theLibrary(), *placesCalls, seed); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	t.Logf("%d calls in %v", *placesCalls, time.Since(began))
}

// checked is a server of its own, since other tests flush the one that is shared.
func checked(t *testing.T) *redis.Client {
	return redistest.Start(t).Client(t, func(o *redis.Options) { o.ReadTimeout = time.Minute })
}
