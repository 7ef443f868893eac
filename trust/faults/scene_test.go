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
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
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
	if mode := os.Getenv(childEnv); mode != "" {
		child(mode)
		return
	}
	// Nearly all of the time is spent waiting for leases to end: more tests at a
	// time than cores. What the command line says comes after it.
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

// scene is what a test needs: processes that lock, and a look at what they leave.
type scene struct {
	testing.TB
	mu    sync.Mutex
	close []func()
}

// stage begins a test, which runs beside others. The test fails at its end if a
// goroutine of it is left: goleak cannot tell those of tests that run at the same
// time, but goroutines inherit the label of the one that started them.
func stage(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	return stageAlone(t)
}

// stageAlone is stage for what does not run beside others.
func stageAlone(t testing.TB) *scene {
	t.Helper()
	s := &scene{TB: t}
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name())))
	t.Cleanup(func() { wantNoGoroutines(t) }) // the first is the last to run
	t.Cleanup(s.end)
	return s
}

// end closes what processes have, as their ends would.
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

// locker makes what a process has: a store and a locker.
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
// with their ends the last subscription. What may stay are the last tokens, which
// end by themselves.
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

// ask runs f with a client that leaves nothing behind.
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

// The short forms of what tests do with locks.

// patiently takes a lock although the store may not answer for a while, and counts
// how often that was so: on a machine that others use, a second can be too short.
func patiently(l *core.Locker, key string, failed *atomic.Int64, opts ...core.Option) (*core.Lease, error) {
	for over := time.Now().Add(10 * soon); ; failed.Add(1) {
		lease, err := l.Lock(context.Background(), key, append([]core.Option{core.Wait(2 * soon)}, opts...)...)
		if !errors.Is(err, core.ErrUnavailable) || time.Now().After(over) {
			return lease, err
		}
	}
}

// must takes a lock.
func (s *scene) must(l *core.Locker, key string, opts ...core.Option) *core.Lease {
	s.Helper()
	lease, err := patiently(l, key, new(atomic.Int64), opts...)
	if err != nil {
		s.Fatalf("Lock(%q): %v", key, err)
	}
	return lease
}

// release gives a lock back. A release that had no answer in its time is no error: the
// locker goes on with it, and clean waits for that.
func release(lease *core.Lease) error {
	begin := time.Now()
	err := lease.Release(context.Background())
	if time.Since(begin) >= 900*time.Millisecond && errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrLost) {
		return nil
	}
	return err
}

// wantLost wants the release of a lock that another has, or nobody, to say that it is
// lost. A release that had no answer in its time cannot say it.
func (s *scene) wantLost(lease *core.Lease) {
	s.Helper()
	begin := time.Now()
	err := lease.Release(context.Background())
	if time.Since(begin) >= 900*time.Millisecond && errors.Is(err, core.ErrUnavailable) {
		s.Logf("Release(%q): %v", lease.Key(), err)
		return
	}
	s.wantErr(err, core.ErrLost)
}

// pass takes a lock and gives it back.
func pass(l *core.Locker, key string) error {
	lease, err := patiently(l, key, new(atomic.Int64))
	if err != nil {
		return err
	}
	return release(lease)
}

// try takes a lock if it comes within a time, zero for at once, and gives it back.
func try(l *core.Locker, key string, within time.Duration) error {
	lease, err := l.Lock(context.Background(), key, core.Wait(within))
	if err != nil {
		return err
	}
	return release(lease)
}

func (s *scene) release(leases ...*core.Lease) {
	s.Helper()
	for _, lease := range leases {
		if err := release(lease); err != nil {
			s.Errorf("Release(%q): %v", lease.Key(), err)
		}
	}
}

// refused wants a lock never to be granted, and the refusal to be of this error with
// these words. What a busy machine says first, that an answer did not come in time,
// does not count.
func (s *scene) refused(l *core.Locker, key string, want error, texts ...string) {
	s.Helper()
	redistest.Eventually(s, soon, func(context.Context) error {
		err := try(l, key, 0)
		switch {
		case err == nil:
			s.Errorf("%q was granted", key)
			return nil
		case !errors.Is(err, want):
			return fmt.Errorf("error is %w, want %w", err, want)
		case errors.Is(want, driver.ErrNotReady) && !errors.Is(err, core.ErrUnavailable):
			return fmt.Errorf("error is %w, want ErrUnavailable too", err)
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				return fmt.Errorf("the error does not say %q: %w", text, err)
			}
		}
		return nil
	})
}

func (s *scene) wantErr(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("error is %v, want %v", err, want)
	}
}

// wantText wants an error to say something.
func (s *scene) wantText(err error, texts ...string) {
	s.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			s.Errorf("the error does not say %q: %v", text, err)
		}
	}
}

// lost wants a lease's context to end by a cause, ErrLost unless another is given,
// and Err and Release to say the same.
func (s *scene) lost(lease *core.Lease, cause ...error) {
	s.Helper()
	want := append(cause, core.ErrLost)[0]
	select {
	case <-lease.Context().Done():
		s.wantErr(context.Cause(lease.Context()), want)
		s.wantErr(lease.Err(), want)
	case <-time.After(2 * soon):
		s.Fatalf("the context of %q has not ended", lease.Key())
	}
}

// renewed waits until leases were renewed, beyond what they have.
func (s *scene) renewed(leases ...*core.Lease) {
	s.Helper()
	had := make([]time.Time, len(leases))
	for i, lease := range leases {
		had[i] = lease.Deadline()
	}
	redistest.Eventually(s, soon, func(context.Context) error {
		for i, lease := range leases {
			if err := lease.Err(); err != nil {
				return err
			}
			if !lease.Deadline().After(had[i]) {
				return fmt.Errorf("%q was not renewed", lease.Key())
			}
		}
		return nil
	})
}

// later runs f beside the test and returns where its error comes.
func later(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// want waits for an outcome.
func (s *scene) want(done <-chan error, want error) {
	s.Helper()
	select {
	case err := <-done:
		if want == nil && err != nil {
			s.Errorf("it failed: %v", err)
		} else if want != nil {
			s.wantErr(err, want)
		}
	case <-time.After(2 * soon):
		s.Fatal("it did not come to an end")
	}
}

// waits waits until somebody listens for the release of a key.
func (s *scene) waits(rdb *redis.Client, key string) {
	s.Helper()
	channel := "interlock:{" + key + "}:free"
	redistest.Eventually(s, soon, func(ctx context.Context) error {
		n, err := rdb.PubSubNumSub(ctx, channel).Result()
		if err == nil && n[channel] == 0 {
			err = errors.New("nobody listens")
		}
		return err
	})
}

// succession has a second process wait for a lock that a first one holds, and
// wants the first to know that it is over by the time that the second has it.
func (s *scene) succession(first *core.Lease, second *core.Locker) *core.Lease {
	s.Helper()
	next := s.must(second, first.Key())
	if err := first.Err(); err == nil {
		s.Errorf("two trust that they hold %q, by the tokens %d and %d", first.Key(), first.Token(), next.Token())
	} else {
		s.wantErr(err, core.ErrLost)
	}
	if next.Token() <= first.Token() {
		s.Errorf("%q: token %d after %d", first.Key(), next.Token(), first.Token())
	}
	return next
}

// referee sees the grants of one key, of all processes.
type referee struct {
	mu     sync.Mutex
	inside *core.Lease
	token  int64
	grants int
}

// enter wants nobody else to trust a lease of the key by now, and its token to be
// the greatest so far.
func (r *referee) enter(t testing.TB, lease *core.Lease) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if lease.Err() != nil {
		return // lost on its way here, and perhaps another's already
	}
	if r.inside != nil && r.inside.Err() == nil {
		t.Errorf("two trust that they hold %q, by the tokens %d and %d", lease.Key(), r.inside.Token(), lease.Token())
	}
	if lease.Token() <= r.token {
		t.Errorf("%q: token %d after %d", lease.Key(), lease.Token(), r.token)
	}
	r.inside, r.token = lease, lease.Token()
	r.grants++
}

func (r *referee) leave(lease *core.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inside == lease {
		r.inside = nil
	}
}

// resource is what a lock protects, with a memory for the last token: the claim of
// a token before the read, and the write under it.
type resource struct {
	mu    sync.Mutex
	token int64
	value string
}

// errStale is the answer to a token that is smaller than one seen before.
var errStale = errors.New("the resource has seen a greater token")

func (r *resource) write(token int64, value string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if token < r.token {
		return fmt.Errorf("%w: %d after %d", errStale, token, r.token)
	}
	r.token, r.value = token, value
	return nil
}

// ordered wants the tokens of two that may both believe to hold the lock to be in
// the order of their grants: the write of the first, after the second has written,
// is refused.
func (s *scene) ordered(first, second *core.Lease) {
	s.Helper()
	var r resource
	if err := r.write(first.Token(), "first"); err != nil {
		s.Error(err)
	}
	if err := r.write(second.Token(), "second"); err != nil {
		s.Errorf("the later holder is refused: %v", err)
	}
	s.wantErr(r.write(first.Token(), "late"), errStale)
	if r.value != "second" {
		s.Errorf("the resource holds what the late write says: %q", r.value)
	}
}
