package redisstore_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(childEnv); addr != "" {
		child(addr) // one of the processes of a test, see processes_test.go
		return
	}
	if env := os.Getenv(jobEnv); env != "" {
		job(jobOf(env)) // see jobs_test.go
		return
	}
	// Tests that run beside each other wait more than they work. The flag of the caller
	// counts, which is read later.
	_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	redistest.Main(m)
}

// newLocker makes what a process has: a client, a store and a locker. A release whose
// answer takes a second, as on a busy machine, is no error of its.
func newLocker(tb testing.TB, rdb redis.UniversalClient, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	return newLockerWithin(tb, rdb, 10*time.Second, opts...)
}

// newLockerWithin is the same for a store that waits that long for an answer.
func newLockerWithin(tb testing.TB, rdb redis.UniversalClient, timeout time.Duration, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	store, err := redisstore.New(rdb, redisstore.Timeout(timeout))
	if err != nil {
		tb.Fatal(err)
	}
	locker, err := core.New(store, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			tb.Errorf("closing the locker: %v", err)
		}
		if err := store.Close(); err != nil {
			tb.Errorf("closing the store: %v", err)
		}
	})
	return locker
}

// lockLater locks and releases a key in the background, and tells how that ended.
func lockLater(t *testing.T, l *core.Locker, key string) <-chan error {
	got := make(chan error, 1)
	go func() {
		lease, err := l.Lock(t.Context(), key)
		if err == nil {
			err = lease.Release(t.Context())
		}
		got <- err
	}()
	return got
}

func TestLockExcludesAndReleases(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	a, b := newLocker(t, rdb), newLocker(t, rdb)
	ctx := t.Context()

	lease, err := a.Lock(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryLock(t, b, "k"); !errors.Is(err, core.ErrHeld) {
		t.Fatalf("TryLock of a held lock: %v, want ErrHeld", err)
	}
	got := make(chan error, 1)
	go func() {
		second, err := b.Lock(ctx, "k")
		if err == nil {
			if second.Token() <= lease.Token() {
				err = errors.New("token did not grow")
			}
			err = errors.Join(err, second.Release(ctx))
		}
		got <- err
	}()
	redistest.Eventually(t, 5*time.Second, func(ctx context.Context) error {
		if ok, err := rdb.HExists(ctx, "interlock:{k}", "q").Result(); err != nil || !ok {
			return errors.Join(errors.New("nobody waits"), err)
		}
		return nil
	})
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if n := rdb.Exists(ctx, "interlock:{k}").Val(); n != 0 {
		t.Fatal("the lock's key is still there")
	}
}

func TestManyProcessesShareOneKey(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	const processes, goroutines, each = 4, 16, 200
	var mu sync.Mutex
	var inside, total int
	var last int64
	var wg sync.WaitGroup
	start := time.Now()
	for range processes {
		l := newLocker(t, rdb)
		for range goroutines {
			wg.Go(func() {
				for range each {
					lease, err := l.Lock(t.Context(), "k")
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					inside++
					if inside != 1 {
						t.Error("two inside")
					}
					if lease.Token() <= last {
						t.Errorf("token %d after %d", lease.Token(), last)
					}
					last = lease.Token()
					total++
					inside--
					mu.Unlock()
					if err := lease.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d sections in %v", total, time.Since(start))
	if total != processes*goroutines*each {
		t.Fatalf("%d sections, want %d", total, processes*goroutines*each)
	}
}
