//go:build integration

package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// Redis has lost nothing, and no alert is to fire.
func TestAHolderLearnsThatAnOperatorHasReleasedItsLock(t *testing.T) {
	t.Parallel()
	w := common(t)
	f := w.fleet()
	learns := map[string]func(*core.Lease) error{
		"by a check":   func(l *core.Lease) error { return l.Check(t.Context()) },
		"by a release": func(l *core.Lease) error { return l.Release(t.Context()) },
	}
	for kind, opts := range map[string][]core.Option{"exclusive": nil, "shared": {core.Shared()}, "permit": {core.Permits(2)}} {
		for how, ask := range learns {
			for since, other := range map[string][]core.Option{"free": nil, "held by another": {}, "of another permit": {core.Permits(2)}} {
				if kind != "permit" && since == "of another permit" {
					continue
				}
				t.Run(kind+" "+how+" "+since, func(t *testing.T) {
					t.Parallel()
					key, lost := kind+how+since, make(chan core.Loss, 1)
					lease := w.lock(w.process(), key, append(opts, core.OnLost(func(l core.Loss) { lost <- l }))...)
					if _, err := f.Release(t.Context(), key, lease.Token()); err != nil {
						t.Fatal(err)
					}
					if other != nil {
						w.lock(w.process(), key, other...)
					}
					wantErr(t, ask(lease), core.ErrLost)
					if got := <-lost; got.Reason != observe.LossRevoked {
						t.Errorf("lost as %q", got.Reason)
					}
				})
			}
		}
	}
}

// The leases are long: only the message of the operator can end them in time.
func TestAnAttentiveHolderLearnsAtOnceThatAnOperatorHasReleasedItsLock(t *testing.T) {
	t.Parallel()
	w := common(t)
	f := w.fleet()
	for kind, opts := range map[string][]core.Option{
		"exclusive": {core.Watchdog(time.Hour)}, "fixed": {core.TTL(time.Hour)},
		"shared": {core.Shared(), core.Watchdog(time.Hour)}, "permit": {core.Permits(2), core.Watchdog(time.Hour)},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			l, lost := w.process(), make(chan core.Loss, 1)
			first := w.lock(l, "before"+kind, append(opts, core.Attentive())...) // begins the subscription
			lease := w.lock(l, kind, append(opts, core.Attentive(), core.OnLost(func(l core.Loss) { lost <- l }))...)
			h, err := f.Release(t.Context(), kind, lease.Token())
			if err != nil || !h.Attentive {
				t.Fatalf("released: attentive %v, %v", h.Attentive, err)
			}
			select {
			case <-lease.Context().Done():
			case <-time.After(w.Patience()):
				t.Fatal("the holder works on")
			}
			if got := <-lost; got.Reason != observe.LossRevoked {
				t.Errorf("lost as %q", got.Reason)
			}
			wantErr(t, first.Err(), nil)
		})
	}
}

// An earlier release by an operator says nothing about a later grant.
func TestALockThatIsDeletedAfterAReleaseIsReportedAsDeleted(t *testing.T) {
	t.Parallel()
	w := common(t)
	l, lost := w.process(), make(chan core.Loss, 1)
	want := func(why observe.LossReason) {
		t.Helper()
		if got := <-lost; got.Reason != why {
			t.Errorf("lost as %q, want %q", got.Reason, why)
		}
	}
	onLost := core.OnLost(func(l core.Loss) { lost <- l })
	first := w.lock(l, "k", onLost)
	if _, err := w.fleet().Release(t.Context(), "k", first.Token()); err != nil {
		t.Fatal(err)
	}
	wantErr(t, first.Release(t.Context()), core.ErrLost)
	want(observe.LossRevoked)
	second := w.lock(l, "k", onLost)
	if err := w.rdb.Del(t.Context(), w.name("k")).Err(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, second.Check(t.Context()), core.ErrLost)
	want(observe.LossDeleted)
}

// between runs a function after the mark of an operator was set and before what comes next.
type between struct {
	redis.Hook
	do func()
}

func (b between) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b between) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (b between) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Name() == "hset" }) {
			b.do()
		}
		return err
	}
}

func TestAHolderThatReleasesBeforeTheOperatorLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	w := common(t)
	lease := w.lock(w.process(), "k")
	rdb := redis.NewClient(w.rdb.(*redis.Client).Options())
	t.Cleanup(func() { wantErr(t, rdb.Close(), nil) })
	rdb.AddHook(between{do: func() { wantErr(t, lease.Release(context.Background()), nil) }})
	_, err := w.fleetOf(rdb).Release(t.Context(), "k", lease.Token())
	wantErr(t, err, fleet.ErrNoGrant)
	if names, err := w.rdb.Keys(t.Context(), w.name("k")+":revoked*").Result(); err != nil || len(names) != 0 {
		t.Errorf("left %q, %v", names, err)
	}
}

// The mark is there for as long as the holder may ask, and no longer.
func TestTheMarkOfAReleaseEnds(t *testing.T) {
	t.Parallel()
	w := common(t)
	lease := w.lock(w.process(), "k", core.TTL(time.Hour))
	if _, err := w.fleet().Release(t.Context(), "k", lease.Token()); err != nil {
		t.Fatal(err)
	}
	names, err := w.rdb.Keys(t.Context(), w.name("k")+":revoked*").Result()
	if err != nil || len(names) != 1 {
		t.Fatalf("%q, %v", names, err)
	}
	if left := w.rdb.PTTL(t.Context(), names[0]).Val(); left < 59*time.Minute || left > 61*time.Minute {
		t.Errorf("left for %v", left)
	}
}

// Two logs had half of it each: the tool's log named who had released, the service's log
// the lost lock.
func TestTheLogOfAHolderSaysWhoReleasedItsLock(t *testing.T) {
	t.Parallel()
	w := common(t)
	logged := &lockedBuffer{}
	store, err := redisstore.New(w.rdb, redisstore.Prefix(w.prefix), redisstore.Logger(slog.New(slog.NewTextHandler(logged, nil))))
	wantErr(t, err, nil)
	t.Cleanup(func() { _ = store.Close() })
	locker, err := core.New(store, core.OnLost(func(core.Loss) {}))
	wantErr(t, err, nil)
	t.Cleanup(func() { _ = locker.Close(context.WithoutCancel(t.Context())) })
	lease := w.lock(locker, "k")
	if _, err := w.fleet().Release(t.Context(), "k", lease.Token()); err != nil {
		t.Fatal(err)
	}
	wantErr(t, lease.Check(t.Context()), core.ErrLost)
	host, _ := os.Hostname()
	redistest.Eventually(t, w.Patience(), func(context.Context) error {
		text := logged.String()
		for _, want := range []string{"an operator has released", core.Hashed("k").Hash(), "@" + host, fmt.Sprint("process ", os.Getpid())} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("%q is not in the log %q", want, text)
			}
		}
		return nil
	})
}

// lockedBuffer is a log that can be read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
