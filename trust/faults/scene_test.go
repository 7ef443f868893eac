//go:build long && unix

package faults

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// soon is how long something may take that takes no time on an idle machine.
const soon = 20 * time.Second

// nowhere is where warnings go, which the faults bring about on purpose.
var (
	nowhere = slog.New(slog.DiscardHandler)
	quiet   = redisstore.Logger(nowhere)
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	// Nearly all of the time is spent waiting for leases to end: more tests at a time than
	// cores. The flags of the command line come after it.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	redistest.Main(
		m,
		// A pool of go-redis that was refused looks once a second whether its
		// server is back, and notices that it was closed no sooner.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
		// toxiproxy's own, where a connection broke with bytes on their way.
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).write"),
	)
}

// scene is the equipment of a test: processes that lock, and a look at their remains.
type scene struct {
	testing.TB
	mu    sync.Mutex
	close []func()
}

// stage begins a test that runs in parallel with others. The test fails at its end if a
// goroutine of it is left: goleak cannot tell the goroutines of tests apart that run at the same
// time, but a goroutine inherits the label of its starter.
func stage(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	return stageAlone(t)
}

// stageAlone is stage for a test that does not run in parallel.
func stageAlone(t testing.TB) *scene {
	t.Helper()
	s := &scene{TB: t}
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name())))
	t.Cleanup(func() { wantNoGoroutines(t) }) // the first is the last to run
	t.Cleanup(s.end)
	return s
}

// end closes the resources of processes, as their ends would.
func (s *scene) end() {
	s.mu.Lock()
	all := s.close
	s.close = nil
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, f := range all {
		wg.Go(f)
	}
	wg.Wait()
}

func (s *scene) atEnd(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close = append(s.close, f)
}

// locker makes the store and the locker of a process.
func (s *scene) locker(rdb redis.UniversalClient, opts ...core.LockerOption) *core.Locker {
	s.Helper()
	return s.lockerWith(rdb, nil, opts...)
}

func (s *scene) lockerWith(rdb redis.UniversalClient, how []redisstore.Option, opts ...core.LockerOption) *core.Locker {
	s.Helper()
	store, err := redisstore.New(rdb, append([]redisstore.Option{quiet}, how...)...)
	if err != nil {
		s.Fatal(err)
	}
	return s.lockerOn(store, store.Close, opts...)
}

func (s *scene) lockerOn(store core.Store, done func() error, opts ...core.LockerOption) *core.Locker {
	s.Helper()
	l, err := core.New(store, opts...)
	if err != nil {
		s.Fatal(err)
	}
	s.atEnd(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			s.Errorf("closing the locker: %v", err)
		}
		if err := done(); err != nil && !errors.Is(err, redis.ErrClosed) {
			s.Errorf("closing the store: %v", err)
		}
	})
	return l
}

// clean ends a test on its servers: every lock goes while the processes live, and
// with their ends the last subscription. Only the last tokens may stay; they end
// by themselves.
func (s *scene) clean(servers ...*redistest.Server) {
	s.Helper()
	for _, srv := range servers {
		redistest.Eventually(s, 2*soon, func(ctx context.Context) error { return noLocks(ctx, srv) })
	}
	s.end()
	for _, srv := range servers {
		redistest.Eventually(s, soon, func(ctx context.Context) error {
			return errors.Join(noLocks(ctx, srv), noListeners(ctx, srv))
		})
	}
}

// ask runs f with a temporary client.
func ask(srv *redistest.Server, f func(*redis.Client) error) error {
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), MaxRetries: -1, DisableIdentity: true})
	return errors.Join(f(rdb), rdb.Close())
}

func noLocks(ctx context.Context, srv *redistest.Server) error {
	return ask(srv, func(rdb *redis.Client) error {
		keys := rdb.Scan(ctx, 0, "interlock:*", 1000).Iterator()
		for keys.Next(ctx) {
			entry := strings.HasPrefix(keys.Val(), "interlock:locker:{") // of a locker, which may have died
			if !entry && !strings.HasSuffix(keys.Val(), "}:fence") {
				return fmt.Errorf("%s: orphaned key %q with %v for %v", srv.Addr(), keys.Val(),
					rdb.HGetAll(ctx, keys.Val()).Val(), rdb.PTTL(ctx, keys.Val()).Val())
			}
			if ttl := rdb.PTTL(ctx, keys.Val()).Val(); ttl < 0 && ttl != -2 {
				return fmt.Errorf("%s: %q does not expire", srv.Addr(), keys.Val())
			}
		}
		return keys.Err()
	})
}

func noListeners(ctx context.Context, srv *redistest.Server) error {
	return ask(srv, func(rdb *redis.Client) error {
		plain, err := rdb.PubSubChannels(ctx, "*").Result()
		sharded, err2 := rdb.PubSubShardChannels(ctx, "*").Result()
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if all := append(plain, sharded...); len(all) > 0 {
			for i := range all {
				if !strings.HasPrefix(all[i], "interlock:") {
					all[i] = "" // Sentinel's
				}
			}
			if left := strings.Join(all, ""); left != "" {
				return fmt.Errorf("%s: still subscribed to %q", srv.Addr(), all)
			}
		}
		return nil
	})
}

// wantNoGoroutines fails the test if a goroutine with its label is left, other than
// the present one.
func wantNoGoroutines(t testing.TB) {
	label := fmt.Sprintf("%q:%q", "test", t.Name())
	var left string
	over := time.Now().Add(soon)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := 5 * time.Millisecond; time.Now().Before(over); pause *= 2 {
		<-timer.C
		if left = labelled(label); left == "" {
			return
		}
		timer.Reset(min(pause, time.Second))
	}
	t.Errorf("goroutines are left:\n%s", left)
}

// labelled returns the stacks of goroutines with a label.
func labelled(label string) string {
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 1); err != nil {
		return err.Error()
	}
	var left []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		switch {
		case !strings.Contains(stack, "# labels: {"+label+"}"):
		case strings.Contains(stack, "faults.labelled"): // this one
		case strings.Contains(stack, "toxiproxy/v2/toxics.(*ToxicStub).Run"), // see TestMain
			strings.Contains(stack, "toxiproxy/v2.(*ToxicLink)"),
			strings.Contains(stack, "os/signal.loop"): // of go test -fuzz
		default:
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}
