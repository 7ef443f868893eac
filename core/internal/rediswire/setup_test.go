//go:build integration

package rediswire

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// common opens a store on the server that the tests share, with a prefix of its own.
func common(t *testing.T, change ...func(*redis.Options)) *Store {
	t.Helper()
	srv, name := redistest.Common(t)
	s := open(t, srv.Client(t, change...), func(c *Config) { c.Prefix = name })
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// patiently is an option of a client that outlasts a machine that stands still, and sends
// nothing twice.
func patiently(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 }

// go-redis closes a connection whose set-up returns an error, and uses one whose
// set-up does not: late answers would then be taken for the next commands'.
func TestASetUpWithoutItsAnswersIsAnError(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	if err := loading(scripts, nil)(t.Context(), srv.Client(t, patiently).Conn()); err != nil {
		t.Fatalf("on a server that answers: %v", err)
	}
	rdb := srv.Client(t, func(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond })
	cn := rdb.Conn()
	defer cn.Close()
	_ = cn.Ping(t.Context()) // with or without an answer, the set-up of go-redis has ended
	srv.Pause(t)
	defer srv.Resume(t)
	if err := loading(scripts, nil)(t.Context(), cn); err == nil {
		t.Error("a set-up whose answers did not come was taken for good")
	}
}
