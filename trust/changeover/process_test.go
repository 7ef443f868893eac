//go:build long && unix

package changeover

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/alongside"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/pace"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/child"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(ordersEnv); text != "" {
		if err := work(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// fasthttp, below fiber, has a goroutine for the rest of the process that tells the time.
	redistest.Main(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// libraries are the locks of the old release, by name.
var libraries = map[string]func(rdb *redis.Client, key string, lease time.Duration) alongside.Lock{
	"redsync": func(rdb *redis.Client, key string, lease time.Duration) alongside.Lock {
		return oldRedsync(redsync.New(goredis.NewPool(rdb)).NewMutex(key, redsync.WithExpiry(lease),
			redsync.WithTries(1<<30), redsync.WithRetryDelay(pause)), lease)
	},
	"redislock": func(rdb *redis.Client, key string, lease time.Duration) alongside.Lock {
		retry := &redislock.Options{RetryStrategy: redislock.LinearBackoff(pause)}
		return oldRedislock(redislock.New(rdb), key, lease, retry)
	},
	"SET NX": oldSetNX,
}

// pause is the time between two tries of the libraries that have such a setting.
const pause = 5 * time.Millisecond

// ordersEnv holds the orders of a process: this program again.
const ordersEnv = "CHANGEOVER_ORDERS"

type orders struct {
	Addr, Library, Name string
	Release             release
	Lease, Patience     time.Duration
}

// worker is a process of the service, from the inside.
type worker struct {
	orders
	rdb    *redis.Client
	locker *core.Locker
}

// work is the main function of such a process. It answers each line that it reads.
func work(text string) error {
	w := &worker{}
	if err := json.Unmarshal([]byte(text), &w.orders); err != nil {
		return err
	}
	w.rdb = redis.NewClient(&redis.Options{Addr: w.Addr})
	store, err := redisstore.New(w.rdb)
	if err != nil {
		return err
	}
	if w.locker, err = core.New(store, core.Watchdog(w.Lease)); err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var command, key string
		_, _ = fmt.Sscan(in.Text(), &command, &key)
		switch command {
		case "try": // gives up
			err = w.step(in, key, refusal)
		case "enter": // waits
			err = w.step(in, key, w.Patience)
		case "load":
			err = w.load(in)
		}
		if err != nil {
			return err
		}
	}
	return in.Err()
}

// refusal is how long a process tries to get a lock that is held for certain.
const refusal = 300 * time.Millisecond

// under runs a function under the locks of the release.
func (w *worker) under(ctx context.Context, key string, fn func(context.Context) error) error {
	if w.Release == ours {
		return w.locker.Do(ctx, "account/"+key, fn)
	}
	other := libraries[w.Library](w.rdb, "account:"+key, w.Lease)
	if w.Release == both {
		return w.locker.Do(ctx, "account/"+key, func(ctx context.Context) error { return alongside.Do(ctx, other, fn) })
	}
	if err := other.Acquire(ctx); err != nil {
		return err
	}
	return errors.Join(fn(ctx), other.Release(ctx))
}

// step enters an account, and stays until the next line. It says how many are inside.
func (w *worker) step(in *bufio.Scanner, key string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	inside := false
	err := w.under(ctx, key, func(context.Context) error {
		inside = true
		return w.section(key, func(n int64) {
			fmt.Println("inside", n)
			in.Scan()
		})
	})
	switch {
	case !inside && ctx.Err() != nil:
		fmt.Println("refused")
		return nil
	case err != nil:
		return err
	}
	fmt.Println("left")
	return nil
}

// section is the work on an account. The server counts the holders inside and the writes: it
// finds each overlap, also where both processes believe that they are alone.
func (w *worker) section(key string, during func(inside int64)) error {
	ctx := context.Background()
	n, err := w.rdb.Incr(ctx, "inside:"+key).Result()
	if err != nil {
		return err
	}
	balance, err := w.rdb.Get(ctx, "balance:"+key).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	during(n)
	pipe := w.rdb.TxPipeline()
	pipe.Set(ctx, "balance:"+key, balance+1, 0)
	pipe.Decr(ctx, "inside:"+key)
	pipe.HIncrBy(ctx, "done", w.Name, 1)
	if n > 1 {
		pipe.Incr(ctx, "overlaps")
	}
	_, err = pipe.Exec(ctx)
	return err
}

// accounts are the accounts that the load is on, workers how many callers a process has.
const accounts, workers = 3, 3

// load works until the next line, as fast as the locks allow.
func (w *worker) load(in *bufio.Scanner) error {
	var stopped atomic.Bool
	var failed error
	var once sync.Once
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for k := i; !stopped.Load(); k++ {
				err := w.under(context.Background(), fmt.Sprint(k%accounts), func(context.Context) error {
					return w.section(fmt.Sprint(k%accounts), func(int64) {})
				})
				if err != nil {
					once.Do(func() { failed = err })
					return
				}
			}
		})
	}
	in.Scan()
	stopped.Store(true)
	all.Wait()
	if failed == nil {
		fmt.Println("stopped")
	}
	return failed
}

// process is a process of the service, from the outside.
type process struct {
	*testing.T
	orders
	in  io.WriteCloser
	out *bufio.Scanner
}

// service is a Redis, and the processes on it.
type service struct {
	*testing.T
	rdb     *redis.Client
	pace    pace.Pace
	server  *redistest.Server
	library string
	started int
}

func serve(t *testing.T, library string) *service {
	t.Helper()
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	p := pace.Of(t, func() error { return rdb.Ping(t.Context()).Err() })
	return &service{T: t, rdb: rdb, pace: p, server: server, library: library}
}

// start starts a process of a release.
func (s *service) start(r release) *process {
	s.Helper()
	s.started++
	o := orders{s.server.Addr(), s.library, fmt.Sprintf("%s/%d", r, s.started), r, s.pace.Holds(), s.pace.Patience()}
	text, err := json.Marshal(o)
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ordersEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	p := &process{T: s.T, orders: o}
	if p.in, err = cmd.StdinPipe(); err != nil {
		s.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	run, err := child.Start(cmd, syscall.SIGKILL)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(run.Kill)
	return p
}

// tell sends a line.
func (p *process) tell(line string) {
	p.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.Fatalf("%s: %v", p.Name, err)
	}
}

// says waits for a line and compares it.
func (p *process) says(want string) {
	p.Helper()
	if !p.out.Scan() {
		p.Fatalf("%s has ended: %v", p.Name, p.out.Err())
	}
	if got := p.out.Text(); got != want { // it waits for another line than the test sends
		p.Fatalf("%s says %q; want %q", p.Name, got, want)
	}
}
