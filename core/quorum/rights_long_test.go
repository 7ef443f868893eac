//go:build long

package quorum_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/quorum"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestTheDocumentedRightsAreEnoughOnEachNode(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	var nodes []redis.UniversalClient
	for i, srv := range g.servers {
		if err := redistest.SetUser(t.Context(), g.admins[i], "interlock", redistest.Rights(t, "core/quorum", "shared locks")...); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, srv.Client(t, func(o *redis.Options) { o.Username, o.Password = "interlock", "password" }))
	}
	s, err := quorum.New(nodes, quorum.NodeTimeout(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", TTL: maxTTL})
	if err != nil || !rep.Granted {
		t.Fatalf("a free lock on three nodes: %+v, %v; want it granted", rep, err)
	}
	s.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "a:1", TTL: maxTTL}}, func(_ int, lost bool, err error) {
		if lost || err != nil {
			t.Errorf("the renewal: lost %t, %v; want it renewed", lost, err)
		}
	})
	if _, err = s.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "a:1", Token: rep.Token, TTL: maxTTL, Deadline: time.Now().Add(maxTTL)}); err != nil {
		t.Errorf("the release: %v; want it carried out", err)
	}
	for _, srv := range g.servers {
		if denied := srv.Denials(t); len(denied) != 0 {
			t.Errorf("refused by a server:\n%s", strings.Join(denied, "\n"))
		}
	}
}
