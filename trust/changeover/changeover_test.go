//go:build long && unix

package changeover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/alongside"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// Each release together with each release. The control is among them: a process of the old
// release and a process of the new one are inside at once, for certain.
func TestWhichReleasesExcludeEachOther(t *testing.T) {
	for library := range libraries {
		t.Run(library, func(t *testing.T) {
			s := serve(t, library)
			releases := []release{old, both, ours}
			var first, second []*process
			for _, r := range releases {
				first, second = append(first, s.start(r)), append(second, s.start(r))
			}
			for _, a := range first {
				for _, b := range second {
					key := fmt.Sprintf("%d%d", slices.Index(first, a), slices.Index(second, b))
					a.tell("enter " + key)
					a.says("inside 1")
					if a.Release == old && b.Release == ours || a.Release == ours && b.Release == old {
						b.tell("enter " + key)
						b.says("inside 2") // two holders
						b.tell("leave")
						b.says("left")
						a.tell("leave")
						a.says("left")
						continue
					}
					b.tell("try " + key)
					b.says("refused")
					b.tell("enter " + key)
					a.tell("leave")
					a.says("left")
					b.says("inside 1")
					b.tell("leave")
					b.says("left")
				}
			}
			if n, err := s.rdb.Get(t.Context(), "overlaps").Int(); err != nil || n != 2 {
				t.Errorf("%d overlaps, %v; want 2, where old meets ours", n, err)
			}
			if n, err := s.rdb.Get(t.Context(), "balance:02").Int(); err != nil || n != 1 {
				t.Errorf("two writes, one of them lost, make %d, %v", n, err)
			}
		})
	}
}

// Three processes change their release one by one, first from old to both, then from both to
// ours, while all of them work on the same accounts.
func TestARollingChangeHasOneHolder(t *testing.T) {
	for library := range libraries {
		t.Run(library, func(t *testing.T) {
			s := serve(t, library)
			up := []*process{s.start(old), s.start(old), s.start(old)}
			for _, p := range up {
				p.tell("load")
			}
			s.progress(up)
			for _, next := range []release{both, ours} {
				for i, last := range up {
					up[i] = s.start(next)
					up[i].tell("load")
					s.progress(append(slices.Clone(up), last)) // the two releases, side by side
					last.tell("stop")
					last.says("stopped")
				}
				s.progress(up)
			}
			for _, p := range up {
				p.tell("stop")
				p.says("stopped")
			}
			s.judge()
		})
	}
}

// progress waits until each of the processes has worked some more.
func (s *service) progress(up []*process) {
	s.Helper()
	const more = 10
	done := func(ctx context.Context, p *process) int64 {
		n, _ := s.rdb.HGet(ctx, "done", p.Name).Int64() // 0: nothing yet
		return n
	}
	begun := map[*process]int64{}
	for _, p := range up {
		begun[p] = done(s.Context(), p)
	}
	redistest.Eventually(s, s.pace.Patience(), func(ctx context.Context) error {
		for _, p := range up {
			if n := done(ctx, p); n < begun[p]+more {
				return fmt.Errorf("%s has worked %d times, %d of them since", p.Name, n, n-begun[p])
			}
		}
		return nil
	})
}

// judge wants no overlap, and each write in the balances.
func (s *service) judge() {
	s.Helper()
	var sections, written int64
	done := s.rdb.HGetAll(s.Context(), "done").Val()
	for _, n := range done {
		var k int64
		_, _ = fmt.Sscan(n, &k)
		sections += k
	}
	for k := range accounts {
		n, err := s.rdb.Get(s.Context(), fmt.Sprint("balance:", k)).Int64()
		if err != nil {
			s.Error(err)
		}
		written += n
	}
	overlaps, _ := s.rdb.Get(s.Context(), "overlaps").Int() // no key: 0
	s.Logf("%d sections, by process %v, %d overlaps", sections, done, overlaps)
	if overlaps != 0 || written != sections || sections == 0 || len(done) != 9 {
		s.Errorf("%d overlaps, %d writes in the balances of %d sections by %d processes", overlaps, written, sections, len(done))
	}
}

// The libraries' reports reach the holder: the key is gone, or has another's value.
func TestTheLossOfTheOtherLockReachesTheHolder(t *testing.T) {
	for library, lock := range libraries {
		t.Run(library, func(t *testing.T) {
			s := serve(t, library)
			store, err := redisstore.New(s.rdb)
			if err != nil {
				t.Fatal(err)
			}
			locker, err := core.New(store, core.Watchdog(s.pace.Holds()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := errors.Join(locker.Close(context.Background()), store.Close()); err != nil {
					t.Error(err)
				}
			})
			for name, lose := range map[string]func(ctx context.Context, key string) error{
				"deleted": func(ctx context.Context, key string) error { return s.rdb.Del(ctx, key).Err() },
				"taken":   func(ctx context.Context, key string) error { return s.rdb.Set(ctx, key, "another", 0).Err() },
			} {
				err := locker.Do(t.Context(), name, func(ctx context.Context) error {
					return alongside.Do(ctx, lock(s.rdb, name, s.pace.Lapses()), func(ctx context.Context) error {
						if err := lose(t.Context(), name); err != nil {
							return err
						}
						<-ctx.Done()
						return nil
					})
				})
				if !errors.Is(err, core.ErrLost) {
					t.Errorf("%s: it returned %v; want ErrLost", name, err)
				}
			}
		})
	}
}

// The three functions of each library keep the contract of alongside.
func TestTheFunctionsOfTheOtherLock(t *testing.T) {
	for library, other := range libraries {
		t.Run(library, func(t *testing.T) {
			s := serve(t, library)
			ctx, ended := t.Context(), func() context.Context {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				return ctx
			}()
			lock := other(s.rdb, "k", s.pace.Holds())
			wantErr := func(what string, err error, want, lost bool) {
				t.Helper()
				if (err != nil) != want || errors.Is(err, core.ErrLost) != lost {
					t.Errorf("%s: %v; want an error: %v, a loss: %v", what, err, want, lost)
				}
			}
			wantErr("acquire", lock.Acquire(ctx), false, false)
			if err := s.rdb.PExpire(ctx, "k", 10*s.pace.Holds()).Err(); err != nil {
				t.Fatal(err)
			}
			wantErr("renew", lock.Renew(ctx), false, false)
			if left := s.rdb.PTTL(ctx, "k").Val(); left <= 0 || left > s.pace.Holds() {
				t.Errorf("after a renewal the key lasts for %v; want %v", left, s.pace.Holds())
			}
			wantErr("renew with a context that has ended", lock.Renew(ended), true, false)
			wantErr("release with a context that has ended", lock.Release(ended), true, false)
			wantErr("release", lock.Release(ctx), false, false)
			if n := s.rdb.Exists(ctx, "k").Val(); n != 0 {
				t.Error("the key is left")
			}
			wantErr("renew what was released", lock.Renew(ctx), true, true)
			wantErr("release twice", lock.Release(ctx), true, true)
			if err := s.rdb.Set(ctx, "k", "another", time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
			wantErr("renew the lock of another", lock.Renew(ctx), true, true)
			wantErr("release the lock of another", lock.Release(ctx), true, true)
			if v := s.rdb.Get(ctx, "k").Val(); v != "another" {
				t.Errorf("the lock of another is %q now", v)
			}
		})
	}
}
