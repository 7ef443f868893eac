//go:build long && unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
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

func TestLOADING(t *testing.T) {
	s := stage(t)
	// It takes 200 x 8 ms to load, and looks after clients meanwhile. Many short sleeps
	// would take far longer on a busy machine.
	srv := redistest.Start(t, redistest.Args("--key-load-delay", "8000", "--rdbcompression", "no",
		"--loading-process-events-interval-bytes", "1024"))
	rdb := srv.Client(t)
	a, b := s.locker(rdb, core.Watchdog(20*time.Second)), s.locker(rdb)
	s.release(s.must(b, "warm"))
	if err := rdb.Eval(t.Context(), "for i = 1, 200 do redis.call('SET', 'filler' .. i, string.rep('x', 2000)) end return 1", nil).Err(); err != nil {
		t.Fatal(err)
	}
	held := s.must(a, "k")
	if err := rdb.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	var free atomic.Bool
	met := later(func() error {
		for over := time.Now().Add(2 * soon); time.Now().Before(over); {
			err := try(b, "k", 0)
			switch {
			case errors.Is(err, driver.ErrNotReady) && strings.Contains(err.Error(), "LOADING"):
				if !errors.Is(err, core.ErrUnavailable) {
					return fmt.Errorf("LOADING is %w, want ErrUnavailable too", err)
				}
				// Who waits gets through it, and behind the holder.
				err := pass(b, "k")
				if err == nil && !free.Load() {
					err = errors.New("granted while another holds it")
				}
				return err
			case err == nil:
				return errors.New("granted while another holds it")
			}
		}
		return errors.New("no LOADING was seen")
	})
	srv.Restart(t) // returns when it has loaded
	s.renewed(held)
	free.Store(true)
	s.release(held)
	s.want(met, nil)
	s.clean(srv)
}

func TestCLUSTERDOWN(t *testing.T) {
	s := stage(t)
	set := redistest.Cluster(t, 3, 0, redistest.Args("--cluster-node-timeout", "2000"))
	rdb := set.Client(t)
	a, b := s.locker(rdb, core.Watchdog(30*time.Second)), s.locker(rdb)
	gone := set.Master(t, "interlock:{k}")
	held, elsewhere := "", ""
	for i := 0; held == "" || elsewhere == ""; i++ { // keys of the other masters
		key := fmt.Sprint("key", i)
		if set.Master(t, "interlock:{"+key+"}") != gone {
			held, elsewhere = elsewhere, key
		}
	}
	lease := s.must(a, held)
	s.release(s.must(b, elsewhere), s.must(b, "k"))
	gone.Kill()
	redistest.Eventually(t, soon, func(ctx context.Context) error { // they have noticed
		info, err := set.Master(t, "interlock:{"+elsewhere+"}").Client(t).ClusterInfo(ctx).Result()
		if err == nil && strings.Contains(info, "cluster_state:ok") {
			err = errors.New("the Cluster calls itself healthy")
		}
		return err
	})
	s.refused(b, elsewhere, driver.ErrNotReady, "CLUSTERDOWN")
	s.refused(b, "k", core.ErrUnavailable)
	got := later(func() error { return pass(b, elsewhere) })
	gone.Restart(t)
	s.want(got, nil)
	s.refused(b, held, core.ErrHeld)
	redistest.Eventually(t, soon, func(context.Context) error { return pass(b, "k") })
	s.release(lease)
	s.clean(set.Nodes()...)
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

func TestRedisPaused(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	const lease = 2 * time.Second
	a, b := s.locker(srv.Client(t), core.Watchdog(lease)), s.locker(srv.Client(t))
	held := s.must(a, "k")
	s.release(s.must(b, "warm"))
	srv.Pause(t)
	begin := time.Now()
	_, err := b.Lock(t.Context(), "k2", core.Wait(100*time.Millisecond))
	s.wantErr(err, core.ErrUnavailable)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = b.Lock(ctx, "k3")
	s.wantErr(err, context.DeadlineExceeded)
	if took := time.Since(begin); took > soon {
		t.Errorf("callers were held up for %v", took)
	}
	s.lost(held)
	srv.Resume(t) // it executes now what it was sent, for callers that have left
	s.release(s.succession(held, b))
	s.wantErr(held.Release(t.Context()), core.ErrLost)
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
