//go:build long && unix

package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestREADONLY(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	a, b := s.locker(rdb, core.Watchdog(2*time.Second)), s.locker(rdb)
	held := s.must(a, "k")
	// It becomes the replica of a master that is not there, and keeps its data.
	replicaOf(t, rdb, "127.0.0.1", "1")
	s.refused(b, "other", driver.ErrNotReady, "READONLY")
	got := later(func() error { return pass(b, "other") }) // waits for a server that is ready
	s.lost(held)
	replicaOf(t, rdb, "NO", "ONE")
	s.want(got, nil)
	s.release(s.succession(held, b))
	s.wantErr(held.Release(t.Context()), core.ErrLost)
	s.clean(srv)
}

func replicaOf(t *testing.T, rdb *redis.Client, host, port string) {
	t.Helper()
	if err := rdb.Do(t.Context(), "REPLICAOF", host, port).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestAUTHLost(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	admin := srv.Client(t)
	const user = "app"
	set := func(args ...any) {
		t.Helper()
		if err := admin.Do(t.Context(), append([]any{"ACL", "SETUSER", user}, args...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("on", ">old", "~*", "&*", "+@all")
	as := func(o *redis.Options) { o.Username, o.Password = user, "old" }
	a, b := s.locker(srv.Client(t, as), core.Watchdog(9*time.Second)), s.locker(srv.Client(t, as), core.Watchdog(2*time.Second))
	short, long := s.must(b, "short"), s.must(a, "long")
	lose := func() {
		set("resetpass", ">new")
		if err := admin.ClientKillByFilter(t.Context(), "USER", user).Err(); err != nil {
			t.Fatal(err)
		}
	}
	lose()
	for _, l := range []*core.Locker{a, b} {
		s.refused(l, "k", core.ErrUnavailable, "WRONGPASS", "AUTH", "ACL SETUSER")
	}
	s.lost(short)
	set(">old") // within the lease of the other
	s.renewed(long)
	s.release(long)
	s.wantErr(short.Release(t.Context()), core.ErrLost)
	if err := pass(b, "k"); err != nil {
		t.Error(err)
	}

	// No password given where one is needed.
	if err := admin.ConfigSet(t.Context(), "requirepass", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	s.refused(s.locker(srv.Client(t)), "k", core.ErrUnavailable, "AUTH", "requirepass")
	if err := admin.ConfigSet(t.Context(), "requirepass", "").Err(); err != nil {
		t.Fatal(err)
	}
	s.clean(srv)
}

// A waiter that may not listen is not refused: it looks.
func TestAWaiterThatMayNotSubscribeLooks(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	admin := srv.Client(t)
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "deaf", "on", ">p", "~interlock:*", "+@all", "-subscribe").Err(); err != nil {
		t.Fatal(err)
	}
	deaf := s.locker(srv.Client(t, func(o *redis.Options) { o.Username, o.Password = "deaf", "p" }))
	held := s.must(s.locker(admin), "k")
	got := later(func() error { return pass(deaf, "k") })
	redistest.Eventually(t, soon, func(ctx context.Context) error {
		if log := admin.Do(ctx, "ACL", "LOG").Val(); len(log.([]any)) == 0 {
			return errors.New("nothing was refused")
		}
		return nil
	})
	s.release(held)
	s.want(got, nil)
	s.clean(srv)
}
