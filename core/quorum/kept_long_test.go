//go:build long

package quorum_test

import (
	"log/slog"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/quorum"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/testkit"
)

// Processes that have ended leave their places in line on each node.
func TestLocksThatAreKeptForEndedProcessesAreHadByCallersThatAskOnce(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	var looks []driver.Lister
	for _, admin := range g.admins {
		look, err := redisstore.New(admin)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = look.Close() })
		looks = append(looks, look)
	}
	testkit.AskAfterEnded(t, func(t *testing.T, line *testkit.Line) core.Store {
		var nodes []redis.UniversalClient
		for _, srv := range g.servers {
			nodes = append(nodes, srv.Client(t, func(o *redis.Options) { o.Dialer = line.Dial }))
		}
		s, err := quorum.New(nodes, quorum.Logger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}, false, looks...)
}
