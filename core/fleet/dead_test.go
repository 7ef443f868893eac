//go:build integration

package fleet_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/redistest"
)

// The name of a holder lies on any master, as the clock that was asked did. With that master dead
// no lock could be listed, inspected or released, also where its own master works.
func TestLocksOnLivingMastersAreReadWhileAnotherIsDead(t *testing.T) {
	t.Parallel()
	set := redistest.Cluster(t, 3, 0, redistest.Args("--cluster-require-full-coverage", "no"))
	// One refused dial is enough. After as many as its pool is large, go-redis would go on to dial
	// in the background.
	rdb := set.Client(t, func(o *redis.ClusterOptions) { o.DialerRetries, o.PoolSize = 1, 1000 })
	w := worldOf(t, rdb, "interlock")
	f, holder := w.fleet(), w.process()
	w.lock(holder, "first")
	first := w.eventually(f, "first", func(l fleet.Lock) bool { return l.Held == 1 && l.Holders[0].Locker.Listed })
	named := w.prefix + ":locker:{" + first.Holders[0].Locker.ID + "}"
	dead := set.Shard(t, named)
	key := keyOn(t, func(key string) bool { return set.Shard(t, w.name(key)) != dead })
	free := keyOn(t, func(k string) bool { return set.Shard(t, w.name(k)) != dead && k != key })
	lease := w.lock(holder, key)
	set.Shards[dead][0].Kill()

	l, err := f.Inspect(t.Context(), key)
	if err != nil || l.Held != 1 || l.Holders[0].Token != lease.Token() || l.Holders[0].Locker.ID != first.Holders[0].Locker.ID {
		t.Fatalf("%+v, %v; want the holder with token %d", l, err, lease.Token())
	}
	found := false
	for l, err := range f.Locks(t.Context(), "") {
		found = found || l.Key == key
		if err != nil && !errors.Is(err, fleet.ErrIncomplete) {
			t.Errorf("%v; want ErrIncomplete", err)
		}
	}
	if !found {
		t.Errorf("the list has no %s", key)
	}
	report, err := f.Check(t.Context(), "")
	if err != nil || report.Safe() || len(report.Servers) != 3 || report.Servers[0].Version == "" && report.Servers[1].Version == "" {
		t.Errorf("%+v, %v; want an unsafe report of three servers", report, err)
	}
	wantErr(t, f.Wait(t.Context(), free), nil)
	if h, err := f.Release(t.Context(), key, lease.Token()); err != nil || h.Token != lease.Token() {
		t.Errorf("%+v, %v; want the released holder", h, err)
	}
	if l, err := f.Inspect(t.Context(), key); err != nil || l.Held != 0 {
		t.Errorf("%+v, %v; want a free lock", l, err)
	}
}

// keyOn returns a key that is right.
func keyOn(t *testing.T, right func(key string) bool) string {
	t.Helper()
	for i := range 1000 {
		if key := fmt.Sprint("k", i); right(key) {
			return key
		}
	}
	t.Fatal("no key of a thousand is on the master")
	return ""
}
