package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	runonce "github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// jobEnv makes the test binary a process that leads, or runs ticks, on the server with
// the address behind its kind, until its standard input ends.
const jobEnv = "INTERLOCK_TEST_JOB"

const (
	// jobLease is the lease of a leader.
	jobLease = time.Second
	// tickLease is short enough for a tick to be taken over before it is over.
	tickLease, tickPeriod = 100 * time.Millisecond, 500 * time.Millisecond
)

// job is the main function of such a process.
func job(kind, addr string) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	store, err := redisstore.New(rdb)
	if err != nil {
		fail(err)
	}
	// What is counted is counted once. Of a count whose answer is late nobody would know whether it was made.
	counts := redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, DialTimeout: time.Minute, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	switch kind {
	case "lead":
		err = leads(ctx, counts, store)
	case "ticks":
		err = ticks(ctx, counts, store)
	}
	if err != nil {
		fail(err)
	}
}

// The scripts of a leader: it is inside from one to the other. They know a leader by
// its token, and return 1 if there is another one.
var (
	leaderEnters = redis.NewScript(`
		local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
		if tonumber(ARGV[1]) < fence then return 1 end
		redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'inside', ARGV[1], 'leader', ARGV[2])
		return 0`)
	leaderLeaves = redis.NewScript(`
		if redis.call('HGET', KEYS[1], 'inside') ~= ARGV[1] then return 1 end
		redis.call('HDEL', KEYS[1], 'inside')
		redis.call('HINCRBY', KEYS[1], 'steps', 1)
		return 0`)
)

// leads leads, whenever it can.
func leads(ctx context.Context, rdb *redis.Client, store *redisstore.Store) error {
	l, err := core.New(store, core.Watchdog(jobLease))
	if err != nil {
		return err
	}
	err = core.Lead(ctx, l, "leader", func(ctx context.Context) error {
		lease, detached := core.LeaseFromContext(ctx), context.WithoutCancel(ctx)
		for ctx.Err() == nil {
			for _, script := range []*redis.Script{leaderEnters, leaderLeaves} {
				other, err := script.Run(detached, rdb, []string{"led"}, lease.Token(), os.Getpid()).Int()
				if err != nil {
					return err
				}
				// One that was not scheduled for a lease finds another leader, and
				// must know by then that it is none.
				if other == 1 && lease.Err() == nil {
					rdb.HIncrBy(detached, "led", "two", 1)
				}
				time.Sleep(time.Millisecond)
			}
		}
		return nil
	})
	if ctx.Err() != nil {
		err = nil
	}
	closing, cancel := bounded(10 * time.Second)
	defer cancel()
	return errors.Join(err, l.Close(closing))
}

// ticks runs what is due. The work of a tick is counted under its key downstream.
func ticks(ctx context.Context, rdb *redis.Client, store *redisstore.Store) error {
	e, err := idempotency.New(store, idempotency.Global(), idempotency.Lease(tickLease))
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		for name, mark := range map[string]bool{"marked": true, "plain": false} {
			err := runonce.Per(ctx, e, name, tickPeriod, func(ctx context.Context) error {
				if mark {
					if err := idempotency.MarkEffect(ctx); err != nil {
						return err
					}
				}
				mayBeKilled := func() { time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond) }
				mayBeKilled()
				defer mayBeKilled()
				tick := idempotency.DownstreamKey(ctx)
				pipe := rdb.TxPipeline()
				pipe.HIncrBy(ctx, "runs:"+name, tick, 1)
				if idempotency.Generation(ctx) == 1 {
					pipe.HIncrBy(ctx, "first:"+name, tick, 1)
				}
				// A count that is broken off may have been made. With its error the tick
				// would count as not carried out, and would run again as a first run.
				_, err := pipe.Exec(context.WithoutCancel(ctx))
				return err
			})
			expected := errors.Is(err, idempotency.ErrInFlight) || errors.Is(err, idempotency.ErrOutcomeUnknown) ||
				// The process was not scheduled for a lease, which is as long as a request may take.
				errors.Is(err, core.ErrLost) || errors.Is(err, core.ErrUnavailable)
			if err != nil && !expected && ctx.Err() == nil {
				return err
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	closing, cancel := bounded(10 * time.Second)
	defer cancel()
	return e.Close(closing)
}

// worker is such a process as its test sees it.
type worker struct {
	cmd *exec.Cmd
	in  io.Closer
}

// startJob starts a process.
func startJob(t *testing.T, kind string, srv *redistest.Server) *worker {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), jobEnv+"="+kind+" "+srv.Addr(), "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := &worker{cmd, in}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may be gone
	return w
}

// kill ends the process as a crash does.
func (w *worker) kill(t *testing.T) {
	t.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = w.cmd.Wait()
}

// end ends the process in good order.
func (w *worker) end(t *testing.T) {
	t.Helper()
	_ = w.in.Close()
	if err := w.cmd.Wait(); err != nil {
		t.Errorf("a process ended with %v", err)
	}
}

func TestALeaderThatIsKilledIsFollowedWithinItsLease(t *testing.T) {
	t.Parallel()
	kills := 6
	if testing.Short() {
		kills = 2
	}
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	workers := map[int]*worker{}
	start := func() {
		w := startJob(t, "lead", srv)
		workers[w.cmd.Process.Pid] = w
	}
	for range 3 {
		start()
	}
	// next waits for steps of a leader whose token is greater than the last one's.
	last, steps := 0, 0
	next := func() (pid int) {
		t.Helper()
		redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
			led, err := rdb.HGetAll(ctx, "led").Result()
			if err != nil {
				return err
			}
			fence, _ := strconv.Atoi(led["fence"])
			done, _ := strconv.Atoi(led["steps"])
			if fence <= last || done < steps+5 {
				return fmt.Errorf("no next leader: %v", led)
			}
			last, steps = fence, done
			pid, err = strconv.Atoi(led["leader"])
			return err
		})
		return pid
	}
	pid := next()
	for i := range kills {
		w := workers[pid]
		if w == nil {
			t.Fatalf("the leader is process %d, which is none of those that run", pid)
		}
		w.kill(t)
		killed := time.Now()
		delete(workers, pid)
		start()
		pid = next()
		took := time.Since(killed)
		t.Logf("kill %d: another one led after %v", i+1, took)
		if took > jobLease+10*time.Second {
			t.Errorf("another process led %v after the leader was killed; the lease is %v", took, jobLease)
		}
	}
	for _, w := range workers {
		w.end(t)
	}
	if two := rdb.HGet(t.Context(), "led", "two").Val(); two != "" {
		t.Errorf("two led at once, %s times", two)
	}
}

func TestATickNeverRunsTwiceThoughProcessesAreKilled(t *testing.T) {
	t.Parallel()
	span := 8 * time.Second
	if testing.Short() {
		span = 3 * time.Second
	}
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	var workers []*worker
	for range 3 {
		workers = append(workers, startJob(t, "ticks", srv))
	}
	redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		if rdb.HLen(ctx, "runs:plain").Val() == 0 || rdb.HLen(ctx, "runs:marked").Val() == 0 {
			return errors.New("nothing has run")
		}
		return nil
	})
	enough := func() bool {
		return rdb.HLen(t.Context(), "first:marked").Val() >= 5 && rdb.HLen(t.Context(), "first:plain").Val() >= 5
	}
	kills := 0
	// On a busy machine a process lives hardly longer than it takes to start.
	for begin := time.Now(); time.Since(begin) < span || !enough() && time.Since(begin) < time.Minute; kills++ {
		time.Sleep(time.Duration(100+rand.IntN(200)) * time.Millisecond) // for which they run
		i := rand.IntN(len(workers))
		workers[i].kill(t)
		workers[i] = startJob(t, "ticks", srv)
	}
	for _, w := range workers {
		w.end(t)
	}
	for _, hash := range []string{"runs:marked", "first:marked", "first:plain"} {
		counts := rdb.HGetAll(t.Context(), hash).Val()
		if len(counts) < 5 {
			t.Errorf("%s: only %d ticks", hash, len(counts))
		}
		for tick, n := range counts {
			if n != "1" {
				t.Errorf("%s: tick %s ran %s times", hash, tick, n)
			}
		}
	}
	again := 0 // as the document of MarkEffect says
	for _, n := range rdb.HGetAll(t.Context(), "runs:plain").Val() {
		if n != "1" {
			again++
		}
	}
	t.Logf("%d kills; %d ticks ran that mark their effect, %d that do not, and %d of those a second time",
		kills, rdb.HLen(t.Context(), "runs:marked").Val(), rdb.HLen(t.Context(), "runs:plain").Val(), again)
}

// jobOf reads the kind and the address of a job.
func jobOf(env string) (kind, addr string) {
	kind, addr, _ = strings.Cut(env, " ")
	return kind, addr
}
