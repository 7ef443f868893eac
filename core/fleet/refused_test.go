//go:build integration

package fleet_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/internal/redistest"
)

// A server with the right settings refuses every lock: its memory is full, or no replica is
// connected.
func TestAServerThatRefusesLocksIsUnsafe(t *testing.T) {
	t.Parallel()
	for setting, c := range map[string]struct{ value, says string }{
		"maxmemory":             {"1", "OOM"},
		"min-replicas-to-write": {"1", "NOREPLICAS"},
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t, redistest.Args("--appendonly", "yes"))
			w := worldOf(t, srv.Client(t), "interlock")
			f := w.fleet()
			if r := w.check(f, ""); !r.Safe() {
				t.Fatalf("%+v; want a safe server", r)
			}
			wantErr(t, srv.Client(t).ConfigSet(t.Context(), setting, c.value).Err(), nil)
			r := w.check(f, "")
			refused := func(text string) bool {
				return strings.Contains(text, "a lock was refused") && strings.Contains(text, c.says)
			}
			if r.Safe() || !slices.ContainsFunc(r.Unsafe, refused) {
				t.Errorf("unsafe %q; want that a lock was refused with %s", r.Unsafe, c.says)
			}
		})
	}
}

// Replicas is an option of the services. A look at the servers cannot know it.
func TestAServerWithAReplicaCanBeSafe(t *testing.T) {
	t.Parallel()
	set := redistest.Replicated(t, 1, redistest.Args("--appendonly", "yes", "--min-replicas-to-write", "1"))
	set.AwaitSync(t)
	rdb := set.Master.Client(t)
	w := worldOf(t, rdb, "interlock")
	redistest.Eventually(t, w.Patience(), func(ctx context.Context) error { // the master counts its replicas once a second
		return rdb.Set(ctx, "counted", 1, 0).Err()
	})
	r := w.check(w.fleet(), "")
	if !r.Safe() || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "Replicas is not set") {
		t.Errorf("%+v; want a safe server, and a note about its replica", r)
	}
}
