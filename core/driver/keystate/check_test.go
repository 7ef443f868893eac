//go:build integration

package keystate

import (
	"flag"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/internal/rediswire"
	"github.com/interlock-go/interlock/internal/redistest"
)

var scriptCalls = flag.Int("calls", fewCalls, "how many `calls` TestTheScriptsOnRedisKeepTheRules makes")

func TestMain(m *testing.M) { redistest.Main(m) }

// patiently is an option of a client that outlasts a machine that stands still, and sends
// nothing twice.
func patiently(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 }

func TestTheScriptsOnRedisKeepTheRules(t *testing.T) {
	t.Parallel()
	rdb, seed, began := redistest.Start(t).Client(t, patiently), uint64(time.Now().UnixNano()), time.Now()
	if err := explore(t.Context(), rdb, rediswire.Sources(), *scriptCalls, seed); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	asks.WantAll(t, "Key", "Deadline", "Late") // of which the rules know nothing
	t.Logf("%d calls in %v", *scriptCalls, time.Since(began))
}
