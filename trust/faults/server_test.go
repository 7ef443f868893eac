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
	"github.com/interlock-go/interlock/trust/internal/faultnet"
)

func TestRedisKilledWithoutAOF(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	a, b := s.locker(srv.Client(t), core.Watchdog(3*time.Second)), s.locker(srv.Client(t))
	held := s.must(a, "k")
	srv.Kill()
	s.refused(b, "k", core.ErrUnavailable)
	srv.Restart(t) // it has forgotten everything
	var next *core.Lease
	redistest.Eventually(t, soon, func(ctx context.Context) (err error) {
		next, err = b.Lock(context.WithoutCancel(ctx), "k", core.Wait(time.Second))
		return err
	})
	// Nothing can keep the first from trusting its lease until it asks again.
	s.ordered(held, next)
	s.lost(held)
	s.wantErr(held.Release(t.Context()), core.ErrLost)
	s.release(next)
	s.clean(srv)
}

func TestRedisKilledWithAOF(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t, redistest.Args("--appendonly", "yes", "--appendfsync", "always"))
	a, b := s.locker(srv.Client(t), core.Watchdog(27*time.Second)), s.locker(srv.Client(t))
	held := s.must(a, "k")
	srv.Kill()
	s.refused(b, "k", core.ErrUnavailable)
	srv.Restart(t)
	s.refused(b, "k", core.ErrHeld)
	s.renewed(held)
	got := later(func() error { return pass(b, "k") })
	s.waits(srv.Client(t), "k")
	s.release(held)
	s.want(got, nil)
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

func TestNOSCRIPTInAPipeline(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	l := s.locker(rdb, core.Watchdog(9*time.Second))
	const n = 50
	var leases []*core.Lease
	for i := range n {
		leases = append(leases, s.must(l, fmt.Sprint("held", i)))
	}
	noScript := func() (n int64) {
		info := rdb.Info(t.Context(), "errorstats").Val()
		_, rest, _ := strings.Cut(info, "errorstat_NOSCRIPT:count=")
		_, _ = fmt.Sscan(rest, &n)
		return n
	}
	missed := func(what string, f func()) {
		t.Helper()
		// Again if a connection was made meanwhile: that loads the scripts.
		for range 10 {
			before := noScript()
			if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			f()
			if noScript() > before {
				return
			}
		}
		t.Errorf("no script was missing in a pipeline of %s: the test proves nothing", what)
	}
	s.renewed(leases...) // in one pipeline, over a connection that is there now
	missed("renewals", func() { s.renewed(leases...) })
	missed("acquires", func() {
		var all []<-chan error
		for i := range n {
			all = append(all, later(func() error { return pass(l, fmt.Sprint("k", i)) }))
		}
		for _, done := range all {
			s.want(done, nil)
		}
	})
	s.release(leases...)
	s.clean(srv)
}

// forgotten makes a server forget a lock that is held: the second gets it at once,
// the first hears of it, and its late write is refused.
func forgotten(t *testing.T, forget func(context.Context, *redis.Client) error) {
	t.Helper()
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	losses := make(chan core.Loss, 1)
	a := s.locker(rdb, core.Watchdog(3*time.Second), core.OnLost(func(x core.Loss) { losses <- x }))
	b := s.locker(rdb)
	held := s.must(a, "k")
	if err := forget(t.Context(), rdb); err != nil {
		t.Fatal(err)
	}
	next := s.must(b, "k")
	s.ordered(held, next)
	s.lost(held)
	s.wantErr(held.Release(t.Context()), core.ErrLost)
	if x := <-losses; x.Key != "k" || x.Token != held.Token() {
		t.Errorf("OnLost got %+v", x)
	}
	s.release(next)
	s.clean(srv)
}

func TestDEL(t *testing.T) {
	forgotten(t, func(ctx context.Context, rdb *redis.Client) error { return rdb.Del(ctx, "interlock:{k}").Err() })
}

func TestFLUSHALL(t *testing.T) {
	forgotten(t, func(ctx context.Context, rdb *redis.Client) error { return rdb.FlushAll(ctx).Err() })
}

func TestEviction(t *testing.T) {
	forgotten(t, func(ctx context.Context, rdb *redis.Client) error {
		used, _, _ := strings.Cut(strings.SplitAfter(rdb.Info(ctx, "memory").Val(), "used_memory:")[1], "\r")
		var bytes int64
		if _, err := fmt.Sscan(used, &bytes); err != nil {
			return err
		}
		set := func(name, value string) error { return rdb.ConfigSet(ctx, name, value).Err() }
		if err := errors.Join(set("maxmemory-policy", "allkeys-random"), set("maxmemory", fmt.Sprint(bytes+100_000))); err != nil {
			return err
		}
		for i := 0; rdb.Exists(ctx, "interlock:{k}").Val() > 0; i++ {
			if err := rdb.Set(ctx, fmt.Sprint("filler", i), strings.Repeat("x", 10_000), 0).Err(); err != nil {
				return err
			}
		}
		if err := rdb.FlushAll(ctx).Err(); err != nil { // room again
			return err
		}
		return set("maxmemory", "0")
	})
}

func TestOutOfMemory(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t, redistest.Args("--maxmemory-policy", "noeviction"))
	rdb := srv.Client(t)
	a, b := s.locker(rdb, core.Watchdog(9*time.Second)), s.locker(rdb)
	held := s.must(a, "k")
	full := func(limit string) {
		if err := rdb.ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	full("1")
	s.refused(b, "other", core.ErrUnavailable, "OOM")
	s.refused(b, "k", core.ErrHeld)
	s.renewed(held)
	s.release(held)
	redistest.Eventually(t, soon, func(ctx context.Context) error {
		if rdb.Exists(ctx, "interlock:{k}").Val() != 0 {
			return errors.New("a lock cannot be released when memory is full")
		}
		return nil
	})
	full("0")
	if err := pass(b, "other"); err != nil {
		t.Error(err)
	}
	s.clean(srv)
}

func TestWRONGTYPE(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	l := s.locker(rdb, core.Watchdog(time.Second))
	put := func() {
		if err := rdb.Set(t.Context(), "interlock:{k}", "mine", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	put()
	s.refused(l, "k", core.ErrKeyOccupied, "WRONGTYPE", "not a lock")
	if err := rdb.Del(t.Context(), "interlock:{k}").Err(); err != nil {
		t.Fatal(err)
	}
	held := s.must(l, "k")
	put() // over the lock
	s.lost(held)
	if err := held.Release(t.Context()); err == nil {
		t.Error("the release of what is no lock succeeded")
	}
	if got := rdb.Get(t.Context(), "interlock:{k}").Val(); got != "mine" {
		t.Errorf("somebody else's value is now %q", got)
	}
	if err := rdb.Del(t.Context(), "interlock:{k}").Err(); err != nil {
		t.Fatal(err)
	}
	s.clean(srv)
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

func TestACLDenied(t *testing.T) {
	// What is missing, what has to do with it, and how the error names it.
	for _, c := range []struct {
		missing, command, rule string
		in                     faultnet.Kind
	}{
		{"-evalsha", "EVALSHA", "+evalsha", faultnet.Acquire},
		{"-exists", "EXISTS", "+exists", faultnet.Acquire},
		{"-time", "TIME", "+time", faultnet.Acquire},
		{"-set", "SET", "+set", faultnet.Acquire},
		{"-hset", "HSET", "+hset", faultnet.Acquire},
		{"-pexpire", "PEXPIRE", "+pexpire", faultnet.Acquire},
		{"-hgetall", "HGETALL", "+hgetall", faultnet.Other}, // of a lock that is held
		{"-pttl", "PTTL", "+pttl", faultnet.Other},
		{"-hmget", "HMGET", "+hmget", faultnet.Release},
		{"-del", "DEL", "+del", faultnet.Release},
		{"resetkeys", "key", "~<prefix>:*", faultnet.Acquire},
	} {
		t.Run(c.missing, func(t *testing.T) {
			s := stage(t)
			srv := redistest.Start(t)
			admin := srv.Client(t)
			set := func(rules ...any) {
				t.Helper()
				if err := admin.Do(t.Context(), append([]any{"ACL", "SETUSER", "app"}, rules...)...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			all := []any{"on", ">p", "~interlock:*", "&interlock:*", "+@all"}
			set(all...)
			l := s.locker(srv.Client(t, func(o *redis.Options) { o.Username, o.Password = "app", "p" }), core.TTL(10*time.Second))
			s.release(s.must(l, "warm"))
			says := []string{c.command, "the rule is " + c.rule}
			switch c.in {
			case faultnet.Release:
				held := s.must(l, "k")
				set(c.missing)
				err := held.Release(t.Context())
				s.wantErr(err, core.ErrUnavailable)
				s.wantText(err, says...)
				var reply redis.Error
				if !errors.As(err, &reply) {
					t.Errorf("the server's own words are not in %v", err)
				}
			case faultnet.Other:
				held := s.must(s.locker(admin), "k")
				set(c.missing)
				s.refused(l, "k", core.ErrUnavailable, says...)
				s.release(held)
			default:
				set(c.missing)
				s.refused(l, "k", core.ErrUnavailable, says...)
			}
			set(all...)
			s.clean(srv)
		})
	}
	t.Run("-subscribe", func(t *testing.T) {
		// Nobody is refused: who may not listen, looks.
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
	})
}
