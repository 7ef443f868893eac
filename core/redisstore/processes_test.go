package redisstore_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
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
)

// childEnv makes the test binary a process that hammers one key of the server
// with that address, between "go" and the end of its standard input.
const childEnv = "INTERLOCK_TEST_CHILD"

const childGoroutines = 64

// report is what a child prints at its end.
type report struct {
	Sections   int
	Overlaps   int
	Starved    int // goroutines that never got the lock
	Tokens     int // tokens that were not greater than the one before
	LongestMs  int64
	Unexpected string
}

// child is the main function of such a process. Whether holds overlap is seen
// outside Redis: the holder locks a file, without waiting, and notes its token
// there.
func child(addr string) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, ReadTimeout: 10 * time.Second})
	store, err := redisstore.New(rdb, redisstore.Timeout(10*time.Second))
	if err != nil {
		fail(err)
	}
	l, err := core.New(store)
	if err != nil {
		fail(err)
	}
	file, err := os.OpenFile(os.Getenv(childEnv+"_FILE"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		fail(err)
	}
	release, err := l.Lock(context.Background(), fmt.Sprint("warm", os.Getpid()))
	if err != nil {
		fail(err)
	}
	_ = release.Release(context.Background())
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		fail(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	var r report
	var mu sync.Mutex
	var longest atomic.Int64
	var wg sync.WaitGroup
	for range childGoroutines {
		wg.Go(func() {
			n := 0
			for ctx.Err() == nil {
				asked := time.Now()
				lease, err := l.Lock(ctx, "hot")
				if err != nil {
					if ctx.Err() == nil {
						mu.Lock()
						r.Unexpected = err.Error()
						mu.Unlock()
					}
					break
				}
				waited := time.Since(asked).Milliseconds()
				for {
					old := longest.Load()
					if waited <= old || longest.CompareAndSwap(old, waited) {
						break
					}
				}
				overlap, grew := section(file, lease.Token())
				n++
				mu.Lock()
				r.Sections++
				if overlap {
					r.Overlaps++
				}
				if !grew {
					r.Tokens++
				}
				mu.Unlock()
				_ = lease.Release(context.Background())
			}
			if n == 0 {
				mu.Lock()
				r.Starved++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	r.LongestMs = longest.Load()
	_ = json.NewEncoder(os.Stdout).Encode(r)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// section is the critical section: it proves that it is alone, and that its
// token is the greatest.
func section(file *os.File, token int64) (overlap, grew bool) {
	fd := int(file.Fd()) //nolint:gosec // a file descriptor fits
	// The children have descriptors of their own, so flock excludes between
	// them; inside a child a second holder would find the first one's lock to be
	// its own, and that is what the note is for.
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return true, true
	}
	defer syscall.Flock(fd, syscall.LOCK_UN) //nolint:errcheck // the process would end
	var buf [20]byte
	_, _ = file.ReadAt(buf[:], 0)
	var last int64
	_, _ = fmt.Sscanf(string(buf[:]), "%d", &last)
	_, _ = file.WriteAt([]byte(fmt.Sprintf("%-20d", -1)), 0)
	runtime.Gosched() // a chance for whoever should not be here
	_, _ = file.WriteAt([]byte(fmt.Sprintf("%-20d", token)), 0)
	return last == -1, token > last
}

func TestFourProcessesShareAHotKeyFairlyAndAlone(t *testing.T) {
	const processes = 4
	span := 10 * time.Second
	if testing.Short() {
		span = 5 * time.Second
	}
	srv := redistest.Start(t)
	file := t.TempDir() + "/section"
	type proc struct {
		in  io.WriteCloser
		out *bufio.Reader
		cmd *exec.Cmd
	}
	var procs []proc
	for range processes {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$") //nolint:gosec // this very binary
		cmd.Env = append(os.Environ(), childEnv+"="+srv.Addr(), childEnv+"_FILE="+file)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := proc{in, bufio.NewReader(out), cmd}
		if line, err := p.out.ReadString('\n'); err != nil || strings.TrimSpace(line) != "ready" {
			t.Fatalf("a child says %q, %v", line, err)
		}
		procs = append(procs, p)
	}
	srv.ResetStats(t)
	for _, p := range procs {
		if _, err := io.WriteString(p.in, "go\n"); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(span) // the time for which they run
	calls := srv.Calls(t)
	var reports []report
	total := 0
	for _, p := range procs {
		_ = p.in.Close() // all of them first, or the last would go on alone
	}
	for _, p := range procs {
		var r report
		if err := json.NewDecoder(p.out).Decode(&r); err != nil {
			t.Fatal(err)
		}
		if err := p.cmd.Wait(); err != nil {
			t.Error(err)
		}
		reports = append(reports, r)
		total += r.Sections
	}
	for i, r := range reports {
		t.Logf("process %d: %+v", i, r)
		if r.Overlaps > 0 || r.Tokens > 0 || r.Starved > 0 || r.Unexpected != "" {
			t.Errorf("process %d: %+v", i, r)
		}
		// A machine that has other work can let one of them sleep for a second or two.
		if fair := total / processes; r.Sections < fair/4 || r.Sections > 3*fair {
			t.Errorf("process %d got %d of %d sections", i, r.Sections, total)
		}
	}
	t.Logf("%d sections in %v, %.3f scripts a section", total, span, float64(calls["evalsha"])/float64(total))
}

func TestAThousandWaitersOfOneProcessCostRedisNextToNothing(t *testing.T) {
	srv := redistest.Shared(t)
	l := newLocker(t, srv.Client(t), core.Unlisted())
	const n = 1000
	first := lock(t, l, "k")
	var order []int
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			lease, err := l.Lock(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			order = append(order, i)
			release(t, lease)
		})
		// The next one comes when this one is in the queue.
		for queued := false; !queued; {
			for _, h := range l.Held() {
				queued = queued || h.Key == "k" && h.Waiters == i+1
			}
			runtime.Gosched()
		}
	}
	srv.ResetStats(t)
	release(t, first)
	wg.Wait()
	for i, who := range order {
		if i != who {
			t.Fatalf("place %d went to waiter %d", i, who)
		}
	}
	scripts := srv.Calls(t)["evalsha"]
	t.Logf("%d scripts for %d sections", scripts, n)
	if len(order) != n || float64(scripts) > 0.2*n {
		t.Errorf("%d of %d got it, with %d scripts; want all, with at most %v", len(order), n, scripts, 0.2*n)
	}
}

func TestAnythingAtRandomLeaksNothing(t *testing.T) {
	ops := 100_000
	if testing.Short() {
		ops = 20_000
	}
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	const processes, workers = 3, 64
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	before := runtime.NumGoroutine()
	var done atomic.Int64
	var wg sync.WaitGroup
	inside := make([]occupant, len(keys))
	var lockers []*core.Locker
	var stores []*redisstore.Store
	for p := range processes {
		store, err := redisstore.New(rdb, redisstore.Timeout(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		l, err := core.New(store, core.Watchdog(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		lockers, stores = append(lockers, l), append(stores, store)
		for w := range workers {
			wg.Go(func() {
				r := dice(uint64(p*workers + w + 1))
				for done.Add(1) <= int64(ops) {
					randomly(t, l, keys, inside, &r)
				}
			})
		}
	}
	wg.Wait()
	for i := range inside {
		if inside[i].lease != nil {
			t.Errorf("somebody is inside %s at the end", keys[i])
		}
	}
	wantGone(t, rdb)
	for i, l := range lockers {
		if h := l.Held(); len(h) > 0 {
			t.Errorf("process %d still holds or waits for %v", i, h)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := stores[i].Close(); err != nil {
			t.Error(err)
		}
	}
	redistest.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		channels, err := rdb.PubSubChannels(ctx, "interlock:*").Result()
		if err != nil || len(channels) > 0 {
			return errors.Join(fmt.Errorf("still subscribed: %v", channels), err)
		}
		if n := runtime.NumGoroutine(); n > before+2 { // the client's own connection checks
			return fmt.Errorf("%d goroutines, %d before", n, before)
		}
		return nil
	})
}

// dice is a small random generator, one for each goroutine.
type dice uint64

func (d *dice) roll(n int) int {
	*d ^= *d << 13
	*d ^= *d >> 7
	*d ^= *d << 17
	return int(uint64(*d) % uint64(n)) //nolint:gosec // small
}

// occupant is who is inside a key.
type occupant struct {
	mu    sync.Mutex
	lease *core.Lease
}

// enter reports whether nobody is there that trusts its lease beside this one. One
// that was not scheduled for a lease finds another there, and must know by then.
func (o *occupant) enter(lease *core.Lease) (alone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if lease.Err() != nil {
		return true
	}
	alone = o.lease == nil || o.lease.Err() != nil
	o.lease = lease
	return alone
}

func (o *occupant) leave(lease *core.Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lease == lease {
		o.lease = nil
	}
}

// randomly does one random thing to one or two keys.
func randomly(t *testing.T, l *core.Locker, keys []string, inside []occupant, r *dice) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	i := r.roll(len(keys))
	var opts []core.Option
	switch r.roll(5) {
	case 0:
		opts = append(opts, core.Wait(time.Duration(r.roll(2000))*time.Microsecond))
	case 1:
		opts = append(opts, core.TTL(2*time.Second))
	case 2:
		time.AfterFunc(time.Duration(r.roll(2000))*time.Microsecond, cancel)
	case 3:
		opts = append(opts, core.MaxWaiters(1+r.roll(8)))
	}
	var lease *core.Lease
	var err error
	held := []int{i}
	switch r.roll(6) {
	case 0:
		lease, err = l.TryLock(ctx, keys[i])
	case 1:
		if j := r.roll(len(keys)); j != i {
			held = append(held, j)
		}
		both := []string{keys[i]}
		if len(held) == 2 {
			both = append(both, keys[held[1]])
		}
		lease, err = l.LockAll(ctx, both, opts...)
	default:
		lease, err = l.Lock(ctx, keys[i], opts...)
	}
	if err != nil {
		// A lock of several may be lost while the others are waited for.
		if !errors.Is(err, core.ErrHeld) && !errors.Is(err, context.Canceled) && !errors.Is(err, core.ErrUnavailable) &&
			!errors.Is(err, core.ErrLost) {
			t.Errorf("unexpected: %v", err)
		}
		return
	}
	for _, k := range held {
		if !inside[k].enter(lease) {
			t.Errorf("two inside %s", keys[k])
		}
	}
	if r.roll(4) == 0 {
		if inner, err := l.Lock(lease.Context(), keys[i]); err == nil {
			_ = inner.Release(ctx)
		} else if !errors.Is(err, context.Canceled) && !errors.Is(lease.Err(), core.ErrLost) {
			t.Errorf("re-entry: %v", err)
		}
	}
	if r.roll(8) == 0 {
		cancel() // the release comes on a dead context
	}
	for _, k := range held {
		inside[k].leave(lease)
	}
	// One that could not be sent in time the locker does later.
	if err := lease.Release(ctx); err != nil && !errors.Is(err, core.ErrLost) && !errors.Is(err, driver.ErrNotReady) {
		t.Errorf("release: %v", err)
	}
}
