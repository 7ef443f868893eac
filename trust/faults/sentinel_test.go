//go:build long && unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// The master is cut off from the sentinels and from its replicas, but goes on answering
// its clients. A lock that they take 5 s after the failover, long after go-redis has
// told the client that the store was made from, has one holder, and is granted although
// the former master refuses writes.
func TestLocksLongAfterAFailoverWhoseOldMasterStillAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		replicas int
		args     []string
	}{
		"the old master takes writes":   {replicas: 1},
		"the old master refuses writes": {replicas: 2, args: []string{"--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			set := redistest.Sentinel(t, c.replicas, redistest.Args(c.args...))
			// Clients have a separate user: the user of sentinels and replicas can be turned
			// away.
			for _, srv := range append(set.Replicas, set.Master) {
				err := ask(srv, func(rdb *redis.Client) error {
					return rdb.Do(t.Context(), "acl", "setuser", "app", "on", ">secret", "~*", "&*", "+@all").Err()
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			process := func() *core.Locker {
				return s.locker(set.Client(t, func(o *redis.FailoverOptions) { o.Username, o.Password = "app", "secret" }),
					core.Watchdog(9*time.Second))
			}
			// With connections to the former master, for renewals and messages too.
			before := process()
			warm := s.must(before, "warm")
			s.renewed(warm)
			s.release(warm)

			old := set.Master.Client(t, func(o *redis.Options) { o.Username, o.Password = "app", "secret" })
			for _, cmd := range [][]any{{"acl", "setuser", "default", "off"}, {"client", "kill", "user", "default"}} {
				if err := old.Do(t.Context(), cmd...).Err(); err != nil {
					t.Fatal(cmd, err)
				}
			}
			promoted := set.AwaitFailover(t, set.Master)
			failover := time.Now()
			// The new master refuses writes too, until the other replica has found it, and
			// while that is late.
			probe := func(ctx context.Context) error {
				return ask(promoted, func(rdb *redis.Client) error { return rdb.Del(ctx, "probe").Err() })
			}
			redistest.Eventually(t, time.Minute, probe)
			after := process()

			redistest.Eventually(t, time.Minute, func(context.Context) error {
				if time.Since(failover) < 5*time.Second {
					return errors.New("too early")
				}
				return nil
			})
			var held []*core.Lease
			for i := range 6 {
				key, first, second := fmt.Sprint("k", i), before, after
				if i%2 == 1 {
					first, second = after, before
				}
				var mine *core.Lease
				redistest.Eventually(t, time.Minute, func(ctx context.Context) (err error) {
					mine, err = first.Lock(context.WithoutCancel(ctx), key, core.Wait(5*time.Second))
					return errors.Join(err, probe(ctx)) // the new master may refuse writes yet
				})
				theirs, err := second.TryLock(t.Context(), key)
				if err == nil && mine.Err() == nil && theirs.Err() == nil {
					t.Errorf("%s has two holders that trust it", key)
				}
				if n := old.Exists(t.Context(), "interlock:{"+key+"}").Val(); n != 0 {
					t.Errorf("%s was taken on the former master", key)
				}
				held = append(held, mine)
			}
			// They are renewed where they were taken.
			s.renewed(held...)
			for _, lease := range held {
				if err := lease.Check(t.Context()); err != nil {
					t.Errorf("%s: %v", lease.Key(), err)
				}
			}
			s.release(held...)
			s.clean(promoted)
		})
	}
}
