//go:build long && unix

package faults

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// oldScript reads a script of the release that knew no places.
func oldScript(t *testing.T, name string) *redis.Script {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", name+"-before-places.lua"))
	if err != nil {
		t.Fatal(err)
	}
	return redis.NewScript(string(source))
}

// A process of the release that knew no places, by its scripts, meets a process with
// places: neither gets in beside the other, and each is told when the other releases.
func TestRollingDeploy(t *testing.T) {
	acquire, release := oldScript(t, "acquire"), oldScript(t, "release")
	for name, kind := range map[string]core.Option{"shared": core.Shared(), "permit": core.Permits(2)} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			srv := redistest.Start(t)
			rdb := srv.Client(t)
			l, id := s.locker(rdb), strings.Repeat("0", 32)
			const lock, hour = "interlock:{k}", 3_600_000
			// old asks as a process of the old release does, which waits by its id.
			old := func() (token int64) {
				reply, err := acquire.Run(t.Context(), rdb, []string{lock, lock + ":fence"}, id+".1", hour, hour, "", id).Result()
				if err != nil {
					t.Fatal(err)
				}
				token, _ = reply.(int64)
				return token
			}
			heard := rdb.Subscribe(t.Context(), lock+":free")
			places := []*core.Lease{s.must(l, "k", kind), s.must(l, "k", kind)}
			if old() != 0 {
				t.Fatal("the old release is granted a lock in which others have places")
			}
			s.release(places[0])
			if old() != 0 {
				t.Fatal("the old release is granted a lock in which another has a place")
			}
			s.release(places[1])
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			if m, err := heard.ReceiveMessage(ctx); err != nil || !strings.Contains(m.Payload, id) {
				t.Errorf("the last release announces %v, %v; want the old process named", m, err)
			}
			s.wantErr(heard.Close(), nil)
			redistest.Eventually(t, soon, func(context.Context) error {
				if old() == 0 {
					return errors.New("the old release is not granted a free lock")
				}
				return nil
			})
			s.barred(l, "k", core.ErrHeld, kind)
			got := later(func() error { return pass(l, "k", kind) })
			s.waits(rdb, "k")
			redistest.Eventually(t, soon, func(ctx context.Context) error {
				if rdb.HGet(ctx, lock, "q").Val() == "" {
					return errors.New("the new release is not in the list")
				}
				return nil
			})
			if n := release.Run(t.Context(), rdb, []string{lock}, id+".1", "PUBLISH", "").Val(); n != int64(1) {
				t.Errorf("the old release answers %v", n)
			}
			s.want(got, nil)
			s.clean(srv)
		})
	}
}
