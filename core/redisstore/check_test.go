package redisstore_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

func check(t *testing.T, rdb redis.UniversalClient, opts ...redisstore.Option) []string {
	t.Helper()
	store, err := redisstore.New(rdb, append([]redisstore.Option{redisstore.Timeout(10 * time.Second)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	found, err := store.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestCheckSaysWhatIsUnsafe(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		says []string
	}{
		{"safe", []string{"--appendonly", "yes"}, nil},
		{"no persistence", nil, []string{"appendonly is off"}},
		{"evicting", []string{"--appendonly", "yes", "--maxmemory", "10mb", "--maxmemory-policy", "allkeys-lru"}, []string{"noeviction"}},
		{"no fsync", []string{"--appendonly", "yes", "--appendfsync", "no"}, []string{"appendfsync"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := check(t, redistest.Start(t, redistest.Args(c.args...)).Client(t))
			if len(found) != len(c.says) {
				t.Fatalf("found %q, want %q", found, c.says)
			}
			for i, s := range c.says {
				if !strings.Contains(found[i], s) {
					t.Errorf("%q does not say %q", found[i], s)
				}
			}
		})
	}
}

func TestCheckKnowsReplicas(t *testing.T) {
	set := redistest.Replicated(t, 2)
	rdb := set.Master.Client(t)
	has := func(found []string, s string) bool {
		return slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, s) })
	}
	found := check(t, rdb)
	if !has(found, "min-replicas-to-write") || !has(found, "Replicas is not set") {
		t.Errorf("found %q", found)
	}
	found = check(t, rdb, redisstore.Replicas(1, time.Second))
	if !has(found, "1 of 2") {
		t.Errorf("found %q", found)
	}
	found = check(t, rdb, redisstore.Replicas(3, time.Second))
	if !has(found, "no lock can be taken") {
		t.Errorf("found %q", found)
	}
}

func TestCheckWithoutItsRightsSaysSo(t *testing.T) {
	srv := redistest.Start(t)
	if err := srv.Client(t).Do(t.Context(), append(documented(t), "+info")...).Err(); err != nil {
		t.Fatal(err)
	}
	found := check(t, srv.Client(t, func(o *redis.Options) { o.Username, o.Password = "interlock", "password" }))
	if len(found) != 1 || !strings.Contains(found[0], "cannot be read") {
		t.Errorf("found %q", found)
	}
}

func TestCheckOfAServerThatIsGoneIsAnError(t *testing.T) {
	srv := redistest.Start(t)
	store, err := redisstore.New(srv.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	srv.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = store.Check(ctx)
	wantErr(t, err, core.ErrUnavailable)
}
