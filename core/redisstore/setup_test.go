package redisstore

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

// go-redis closes a connection whose set-up returns an error, and uses one whose
// set-up does not: late answers would then be those of the next commands.
func TestASetUpWithoutItsAnswersIsAnError(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client(t, func(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond })
	cn := rdb.Conn()
	defer cn.Close()
	if err := loadScripts(t.Context(), cn); err != nil {
		t.Fatalf("on a server that answers: %v", err)
	}
	srv.Pause(t)
	defer srv.Resume(t)
	if err := loadScripts(t.Context(), cn); err == nil {
		t.Error("a set-up whose answers did not come was taken for good")
	}
}
