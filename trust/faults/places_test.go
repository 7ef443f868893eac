//go:build long && unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/faultnet"
)

// places are what two processes have of two keys: each shares "s", and each has one of
// two permits of "p".
type places struct {
	*scene
	sharers, permits []*core.Lease
}

func (s *scene) places(a, b *core.Locker) *places {
	s.Helper()
	p := &places{scene: s}
	for _, l := range []*core.Locker{a, b} {
		p.sharers = append(p.sharers, s.must(l, "s", core.Shared()))
		p.permits = append(p.permits, s.must(l, "p", core.Permits(2)))
	}
	return p
}

func (p *places) all() []*core.Lease { return append(p.sharers[:2:2], p.permits...) }

// kept wants all places to be renewed, and another process to get none of what they
// keep out, but to share.
func (p *places) kept(other *core.Locker) {
	p.Helper()
	p.renewed(p.all()...)
	p.barred(other, core.ErrHeld, "s")
	p.barred(other, core.ErrFull, "p", core.Permits(2))
	p.barred(other, core.ErrHeld, "p")
	p.release(p.must(other, "s", core.Shared()))
}

// left wants callers of another process to wait for the places, and to get them when
// they are released: the lock of "s", and a permit of "p" from the first release on.
func (p *places) left(other *core.Locker, rdb *redis.Client) {
	p.Helper()
	writer := later(func() error { return pass(other, "s") })
	third := later(func() error { return passes(other, "p", core.Permits(2)) })
	p.waits(rdb, "s")
	p.waits(rdb, "p")
	p.release(p.permits[0])
	p.want(third, nil)
	p.release(p.permits[1])
	p.release(p.sharers...)
	p.want(writer, nil)
}

// passes is pass with options.
func passes(l *core.Locker, key string, opts ...core.Option) error {
	lease, err := patiently(l, key, new(atomic.Int64), opts...)
	if err != nil {
		return err
	}
	return release(lease)
}

// barred wants a try to be refused with an error. What a busy machine or a moving slot
// says first does not count.
func (s *scene) barred(l *core.Locker, want error, key string, opts ...core.Option) {
	s.Helper()
	s.barredByEither(l, []error{want}, key, opts...)
}

// barredByEither is barred where several errors are right.
func (s *scene) barredByEither(l *core.Locker, want []error, key string, opts ...core.Option) {
	s.Helper()
	redistest.Eventually(s, soon, func(context.Context) error {
		lease, err := l.TryLock(context.Background(), key, opts...)
		switch {
		case err == nil:
			s.Errorf("%q was granted", key)
			return lease.Release(context.Background())
		case !slices.ContainsFunc(want, func(want error) bool { return errors.Is(err, want) }):
			return fmt.Errorf("error is %w, want %q", err, want)
		}
		return nil
	})
}

func TestPlacesOnARedisKilledWithAOF(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t, redistest.Args("--appendonly", "yes", "--appendfsync", "always"))
	a, b, c := s.locker(srv.Client(t), core.Watchdog(27*time.Second)), s.locker(srv.Client(t), core.Watchdog(27*time.Second)),
		s.locker(srv.Client(t))
	p := s.places(a, b)
	srv.Kill()
	srv.Restart(t)
	p.kept(c)
	p.left(c, srv.Client(t))
	s.clean(srv)
}

func TestPlacesOnARedisKilledWithoutAOF(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	a, b, c := s.locker(srv.Client(t), core.Watchdog(3*time.Second)), s.locker(srv.Client(t), core.Watchdog(3*time.Second)),
		s.locker(srv.Client(t))
	p := s.places(a, b)
	srv.Kill()
	srv.Restart(t) // it has forgotten everything
	writer := s.must(c, "s")
	for _, reader := range p.sharers {
		s.ordered(reader, writer)
	}
	again := []*core.Lease{s.must(c, "p", core.Permits(2)), s.must(c, "p", core.Permits(2))}
	for _, lease := range p.all() {
		s.lost(lease)
		s.wantErr(lease.Release(t.Context()), core.ErrLost)
	}
	// What those who lost theirs give back is not one more.
	s.barred(a, core.ErrFull, "p", core.Permits(2))
	s.release(append(again, writer)...)
	s.clean(srv)
}

func TestPlacesInAFailover(t *testing.T) {
	s := stage(t)
	r := newReplicas(t, s, 1)
	safe := s.places(r.acknowledged(t, 1, 5*time.Second), r.acknowledged(t, 1, 5*time.Second))
	plain, c := s.locker(r.client(t), core.Watchdog(3*time.Second)), s.locker(r.client(t))
	r.link.Cut() // what is written from now on does not reach the replica
	for _, kind := range []core.Option{core.Shared(), core.Permits(1)} {
		_, err := r.acknowledged(t, 1, 100*time.Millisecond).Lock(t.Context(), "late", kind)
		s.wantErr(err, core.ErrNotReplicated)
	}
	reader, permit := s.must(plain, "reader", core.Shared()), s.must(plain, "permit", core.Permits(1))
	r.promote(t)
	// What was acknowledged is still there, what was not is given once more.
	safe.kept(c)
	writer, next := s.must(c, "reader"), s.must(c, "permit", core.Permits(1))
	s.ordered(reader, writer)
	for _, lease := range []*core.Lease{reader, permit} {
		s.lost(lease)
		s.wantErr(lease.Release(t.Context()), core.ErrLost)
	}
	s.barred(plain, core.ErrFull, "permit", core.Permits(1))
	safe.left(c, r.last.Client(t))
	s.release(writer, next)
	s.clean(r.last)
}

func TestPlacesOutliveASlotMigration(t *testing.T) {
	s := stage(t)
	set := redistest.Cluster(t, 3, 0)
	const lease = 15 * time.Second
	lock := func(key string) string { return "interlock:{" + key + "}" }
	keys := []string{"s", "p"} // of different slots
	at := make(map[string]int) // the master that has it
	for _, key := range keys {
		at[key] = set.Shard(t, lock(key))
	}
	states := []struct {
		name    string
		halfway func(m *redistest.Migration, key string)
	}{
		{"the lock has moved", func(m *redistest.Migration, key string) { m.Move(t, lock(key)) }},
		{"only the new owner knows", func(m *redistest.Migration, _ string) { m.MoveAll(t); m.Accept(t) }},
		{"nothing has moved", func(*redistest.Migration, string) {}},
		{"the fence has moved", func(m *redistest.Migration, key string) { m.Move(t, lock(key)+":fence") }},
		{"all keys have moved", func(m *redistest.Migration, _ string) { m.MoveAll(t) }},
	}
	if testing.Short() {
		states = states[:2]
	}
	for _, c := range states {
		a, b, third := s.locker(set.Client(t), core.Watchdog(lease)), s.locker(set.Client(t), core.Watchdog(lease)),
			s.locker(set.Client(t))
		p := s.places(a, b)
		var moving []*redistest.Migration
		for _, key := range keys {
			from, to := set.Shards[at[key]][0], set.Shards[(at[key]+1)%3][0]
			at[key] = (at[key] + 1) % 3
			set.Settle(t)
			m := set.Migrate(t, redistest.Slot(key), from, to)
			c.halfway(m, key)
			moving = append(moving, m)
		}
		for _, refused := range []struct {
			key  string
			kind []core.Option
		}{{"s", nil}, {"p", nil}, {"p", []core.Option{core.Permits(2)}}} {
			s.barredByEither(third, []error{core.ErrHeld, driver.ErrNotReady}, refused.key, refused.kind...)
		}
		p.renewed(p.all()...)
		p.renewed(p.all()...) // by a request that was sent meanwhile
		writer := later(func() error { return pass(third, "s") })
		another := later(func() error { return passes(third, "p", core.Permits(2)) })
		for _, m := range moving {
			m.Finish(t)
		}
		p.renewed(p.all()...)
		p.release(p.all()...)
		p.want(writer, nil)
		p.want(another, nil)
	}
	s.clean(set.Nodes()...)
}

func TestPlacesOutOfMemory(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t, redistest.Args("--maxmemory-policy", "noeviction"))
	rdb := srv.Client(t)
	a, b, c := s.locker(rdb, core.Watchdog(9*time.Second)), s.locker(rdb, core.Watchdog(9*time.Second)), s.locker(rdb)
	p := s.places(a, b)
	full := func(limit string) {
		if err := rdb.ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	full("1")
	p.renewed(p.all()...)
	p.renewed(p.all()...) // by a request that was sent meanwhile
	s.barred(c, core.ErrHeld, "s")
	s.barred(c, core.ErrFull, "p", core.Permits(2))
	for _, kind := range []core.Option{core.Shared(), core.Permits(2)} {
		redistest.Eventually(t, soon, func(ctx context.Context) error {
			_, err := c.TryLock(ctx, "other", kind)
			if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "OOM") {
				return fmt.Errorf("error is %w, want ErrUnavailable for OOM", err)
			}
			return nil
		})
	}
	s.release(p.all()...)
	redistest.Eventually(t, soon, func(ctx context.Context) error {
		if n, err := rdb.Exists(ctx, "interlock:{s}", "interlock:{p}").Result(); n != 0 || err != nil {
			return fmt.Errorf("places cannot be released when memory is full: %d, %w", n, err)
		}
		return nil
	})
	full("0")
	s.release(s.must(c, "s"), s.must(c, "p", core.Permits(2)))
	s.clean(srv)
}

func TestExecutedButReplyLostForPlaces(t *testing.T) {
	for kindName, kind := range map[string]core.Option{"shared": core.Shared(), "permit": core.Permits(2)} {
		for fateName, fate := range map[string]faultnet.Fate{"broken": faultnet.Break, "silent": faultnet.Swallow} {
			for _, request := range []faultnet.Kind{faultnet.Acquire, faultnet.Renew, faultnet.Release} {
				t.Run(kindName+" "+string(request)+" "+fateName, func(t *testing.T) {
					s := stage(t)
					srv := redistest.Start(t)
					rdb := srv.Client(t)
					var wire faultnet.Wire
					l := s.lockerWith(srv.Client(t, wire.Through), []redisstore.Option{redisstore.Timeout(200 * time.Millisecond)},
						core.Watchdog(6*time.Second))
					s.release(s.must(l, "warm", kind))
					lose, met := first(request, fate)
					wire.Replies(onReply(lose))
					lease := s.must(l, "k", kind)
					if n := rdb.HLen(t.Context(), "interlock:{k}").Val(); n != 2 {
						t.Errorf("the lock has %d fields, want its owner, and that owners have places", n)
					}
					other := s.locker(rdb)
					s.barred(other, core.ErrHeld, "k")
					s.renewed(lease)
					s.release(lease)
					if !met() {
						t.Error("no reply was lost: the test proves nothing")
					}
					if err := pass(other, "k"); err != nil {
						t.Error(err)
					}
					s.clean(srv)
				})
			}
		}
	}
}

// The holder of a place is cut off from Redis, silently and in both directions. Each
// time its context must have ended when another caller gets what it kept out: the lock
// that it shared, or its permit.
func TestPartitionOfTheHolderOfAPlace(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	const (
		rounds, atOnce = 20, 10 // rounds of each
		lease          = 1500 * time.Millisecond
	)
	live, next := s.locker(srv.Client(t)), s.locker(srv.Client(t))
	round := func(proxy *faultnet.Proxy, holder *core.Locker, key string, held, wanted core.Option) error {
		one, err := patiently(live, key+"-beside", new(atomic.Int64), held) // another place, and another key
		if err != nil {
			return err
		}
		mine, err := patiently(holder, key, new(atomic.Int64), held)
		if err != nil {
			return err
		}
		proxy.Cut()
		defer proxy.Mend()
		theirs, err := patiently(next, key, new(atomic.Int64), wanted)
		if err != nil {
			return err
		}
		if mine.Err() == nil {
			t.Errorf("%s: another is granted while the one that is cut off trusts its lease", key)
		}
		s.lost(mine)
		if theirs.Token() <= mine.Token() {
			t.Errorf("%s: token %d after %d", key, theirs.Token(), mine.Token())
		}
		s.wantErr(mine.Release(context.Background()), core.ErrLost)
		return errors.Join(one.Err(), release(one), release(theirs))
	}
	var wg sync.WaitGroup
	for w := range atOnce {
		proxy := faultnet.NewProxy(t, srv.Addr())
		holder := s.locker(srv.Client(t, proxy.Through), core.Watchdog(lease))
		wg.Go(func() {
			for i := range 2 * rounds / atOnce {
				key, held, wanted := fmt.Sprintf("s%d-%d", w, i), core.Shared(), core.Wait(2*soon)
				if i%2 == 1 {
					key, held, wanted = fmt.Sprintf("p%d-%d", w, i), core.Permits(1), core.Permits(1)
				}
				if err := round(proxy, holder, key, held, wanted); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	s.clean(srv)
}

// kindEnv says how a child holds its lock.
const kindEnv = childEnv + "_KIND"

func kindOf(name string) []core.Option {
	switch name {
	case "shared":
		return []core.Option{core.Shared()}
	case "permit":
		return []core.Option{core.Permits(1)}
	}
	return nil
}

func TestClientWithAPlaceStoppedPastItsLease(t *testing.T) {
	for _, kind := range []string{"shared", "permit"} {
		t.Run(kind, func(t *testing.T) {
			s := stage(t)
			srv := redistest.Start(t)
			l := s.locker(srv.Client(t))
			p := s.spawn("hold", srv.Addr(), kindEnv+"="+kind)
			held := p.hear()
			p.signal(syscall.SIGSTOP)
			next := s.must(l, "k", kindOf(map[string]string{"shared": "", "permit": "permit"}[kind])...)
			granted := time.Now()
			if next.Token() <= held.Token {
				t.Errorf("token %d after %d", next.Token(), held.Token)
			}
			p.signal(syscall.SIGCONT)
			p.tell()
			woken := p.hear()
			if woken.Lost == "" || woken.Trusted.After(granted) {
				t.Errorf("it trusts its lease after another was granted: %+v", woken)
			}
			s.barred(l, core.ErrHeld, "k", core.Permits(1)) // what it gives back is not one more
			p.finish()
			if err := next.Check(t.Context()); err != nil {
				t.Errorf("the place of the next one, after the stopped one has ended: %v", err)
			}
			s.release(next)
			s.clean(srv)
		})
	}
}

func TestClientWithAPlaceKilled(t *testing.T) {
	for _, kind := range []string{"shared", "permit"} {
		t.Run(kind, func(t *testing.T) {
			s := stage(t)
			srv := redistest.Start(t)
			l := s.locker(srv.Client(t))
			p := s.spawn("hold", srv.Addr(), kindEnv+"="+kind)
			held := p.hear()
			s.barred(l, core.ErrHeld, "k")
			p.signal(syscall.SIGKILL)
			killed := time.Now()
			next := s.must(l, "k")
			if took := time.Since(killed); took > childLease+time.Second+soon/3 {
				t.Errorf("the place of the dead was free after %v, its lease is %v", took, childLease)
			}
			if next.Token() <= held.Token {
				t.Errorf("token %d after %d", next.Token(), held.Token)
			}
			s.release(next)
			s.clean(srv)
		})
	}
}
