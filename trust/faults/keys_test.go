//go:build long && unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// hostile are keys, and what keys can be made of, that try to be another's or to
// leave their slot.
var hostile = []string{
	"}", "{", "{}", "}{", "{a}", "a}b", "a{b", `\`, `\\`, `a\)b`, `a\(b`, `\{`, `\}`, "a}:fence", "a}:free", "a:fence",
	":", "interlock:{a}", "a", "A", "a ", " a", "\x00", "\r\n", "\n", "*", "?", "[a]", "%7D", "ä", "a\u0308", "\xff\xfe",
}

// slotted locks two keys on a Cluster, where a request that names two slots is
// refused, and looks at what that makes of them.
func slotted(t *testing.T, rdb *redis.ClusterClient, l *core.Locker, a, b string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*soon)
	defer cancel()
	before := namesIn(ctx, t, rdb)
	wait := core.Wait(5 * time.Second) // on a busy machine; who collides waits for itself
	first, err := patiently(l, a, new(atomic.Int64), wait)
	if err != nil {
		if a == "" || len(a) > 512 {
			if !errors.Is(err, core.ErrKey) {
				t.Errorf("%q: %v, want ErrKey", a, err)
			}
			return
		}
		t.Fatalf("%q: %v", a, err)
	}
	of := map[string]string{}
	slot := int64(-1)
	for name := range namesIn(ctx, t, rdb) {
		if _, old := before[name]; old {
			continue
		}
		of[name] = a
		n, err := rdb.ClusterKeySlot(ctx, name).Result()
		if err != nil {
			t.Fatal(err)
		}
		if slot >= 0 && n != slot {
			t.Errorf("%q: its names are in the slots %d and %d: %q", a, slot, n, of)
		}
		slot = n
	}
	if len(of) == 0 {
		t.Errorf("%q shares the names of a key before it", a)
	}
	if a != b && b != "" && len(b) <= 512 {
		second, err := patiently(l, b, new(atomic.Int64), wait)
		if err != nil {
			t.Fatalf("%q collides with %q: %v", b, a, err)
		}
		if second.Token() == 0 {
			t.Errorf("%q has no token", b)
		}
		if err := release(second); err != nil {
			t.Errorf("%q: %v", b, err)
		}
		// Its release was not the other's.
		if err := first.Check(ctx); err != nil {
			t.Errorf("the release of %q took %q along: %v", b, a, err)
		}
	}
	if err := release(first); err != nil {
		t.Errorf("%q: %v", a, err)
	}
	if err := rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return node.FlushAll(ctx).Err() }); err != nil {
		t.Fatal(err)
	}
}

func namesIn(ctx context.Context, t *testing.T, rdb *redis.ClusterClient) map[string]struct{} {
	t.Helper()
	var mu sync.Mutex
	names := map[string]struct{}{}
	if err := rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		list, err := node.Keys(ctx, "*").Result()
		mu.Lock()
		defer mu.Unlock()
		for _, name := range list {
			if strings.HasPrefix(name, "interlock:locker:{") {
				continue // says which process a locker is
			}
			names[name] = struct{}{}
			if !strings.HasPrefix(name, "interlock:{") {
				err = errors.Join(err, fmt.Errorf("%q has lost its prefix", name))
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	return names
}

func TestHostileKeys(t *testing.T) {
	s := stage(t)
	set := redistest.Cluster(t, 3, 0)
	rdb := set.Client(t)
	l := s.locker(rdb, core.TTL(time.Minute))
	for i, a := range hostile {
		slotted(t, rdb, l, a, hostile[(i+1)%len(hostile)])
	}
	long := strings.Repeat("}{", 256) // the longest that is accepted
	for _, a := range []string{"", long, long + "}"} {
		slotted(t, rdb, l, a, "a")
	}
	n := 300
	if testing.Short() {
		n = 100
	}
	random := func() string {
		var b strings.Builder
		for range 1 + rand.N(4) {
			b.WriteString(hostile[rand.N(len(hostile))])
		}
		return b.String()
	}
	for range n {
		slotted(t, rdb, l, random(), random())
	}
	// All of them at a time: as many locks as keys.
	leases, err := l.LockAll(t.Context(), hostile)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(namesIn(t.Context(), t, rdb)); got != 2*len(hostile) {
		t.Errorf("%d keys have %d names, want two each", len(hostile), got)
	}
	s.release(leases)
	s.clean(set.Nodes()...)
}

// FuzzHostileKeys is for a longer search: go test -fuzz FuzzHostileKeys -parallel 2 ./faults.
func FuzzHostileKeys(f *testing.F) {
	for i, a := range hostile {
		f.Add(a, hostile[(i+7)%len(hostile)])
	}
	s := stageAlone(f)
	rdb := redistest.Cluster(f, 1, 0).Client(f)
	l := s.locker(rdb, core.TTL(time.Minute))
	f.Fuzz(func(t *testing.T, a, b string) { slotted(t, rdb, l, a, b) })
}
