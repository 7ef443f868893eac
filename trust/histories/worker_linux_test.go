//go:build long

package histories

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/quorum"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/trust/internal/history"
)

// lease is how long a lock is held without being renewed, and the longest that a
// process stays stopped is more than twice as much.
const lease = time.Second

// capacity is how many operations a process can record: more than it does in an
// hour, and none is left alone for so long.
const capacity = 1 << 23

// orders are the orders to a process at its start, as JSON.
type orders struct {
	Run        int      // its number, unique in a test
	Seed       uint64   // of its choices
	Log        string   // the file that it records in
	Subjects   []string // the locks to use, by name
	Goroutines int      // for each subject
	Keys       int      // for each subject
	Servers    servers  // that keep the locks
	Registers  string   // the address of the server that keeps the registers
}

// servers says where the locks are kept.
type servers struct {
	Kind  string   // of topology
	Addrs []string // of one server, of the sentinels, of the nodes
	// Master is a file that holds the address of the present master where a
	// failover is made by hand, as a name server would.
	Master string
}

// worker is a process that takes locks.
type worker struct {
	orders
	log       *history.Log
	network   network // to the locks
	replies   network // from the registers: never cut, but replies may be lost
	registers *redis.Client
	clients   []redis.UniversalClient // of the locks
	claim     string                  // SHA-1 of the registers' scripts
	write     string
	late      string
	values    atomic.Uint64
	holds     atomic.Uint64
	clings    atomic.Bool // to its locks: it is to be killed
}

// work is the life of a process: until its input ends, which is when its parent
// wants it to, or is dead.
func work(o orders, input io.Reader) (err error) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the locks warn of the faults that the test makes
	w := &worker{orders: o}
	if w.log, err = history.Create(o.Log, capacity); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := w.openRegisters(ctx); err != nil {
		return err
	}
	client, store, err := w.open()
	if err != nil {
		return err
	}
	locker, err := core.New(store, core.Watchdog(lease))
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i, name := range o.Subjects {
		s, err := w.subject(name, store, locker, client)
		if err != nil {
			return err
		}
		for g := range o.Goroutines {
			wg.Go(func() {
				// Each goroutine of each process has its own.
				seed := uint64(o.Run)<<32 | uint64(i)<<16 | uint64(g)
				w.loop(ctx, s, uint32(i), rand.New(rand.NewPCG(o.Seed, seed)))
			})
		}
	}
	for lines := bufio.NewScanner(input); lines.Scan(); {
		w.obey(lines.Text())
	}
	stop()
	wg.Wait()
	bound, cancel := context.WithTimeout(context.Background(), 5*lease)
	defer cancel()
	// The effects of a fault may not be over in time.
	_ = locker.Close(bound)
	return errors.Join(w.registers.Close(), store.Close())
}

// cling is the order to hold on to every lock for long from now on.
const cling = "cling"

// obey executes an order of the parent.
func (w *worker) obey(order string) {
	if order == cling {
		w.clings.Store(true)
	}
	var ms, n int64
	if _, err := fmt.Sscanf(order, "cut %d", &ms); err == nil {
		w.network.cut(time.Duration(ms) * time.Millisecond)
	}
	if _, err := fmt.Sscanf(order, "lose %d", &n); err == nil {
		w.network.lose.Store(n)
		w.replies.lose.Store(n)
	}
}

// closer is a core.Store with connections to close.
type closer interface {
	core.Store
	io.Closer
}

// open connects to the servers of the locks. The client is of a single server,
// for the locks that are made by hand.
func (w *worker) open() (*redis.Client, closer, error) {
	direct := func(addr string) string { return addr }
	dial := w.network.dial(direct)
	const prefix = "histories"
	switch s := w.Servers; s.Kind {
	case single:
		c := redis.NewClient(&redis.Options{Addr: s.Addrs[0], Dialer: dial, MaxRetries: -1, ContextTimeoutEnabled: true})
		w.clients = append(w.clients, c)
		store, err := redisstore.New(c, redisstore.Prefix(prefix))
		return c, store, err
	case acknowledged, replicated:
		follow := w.network.dial(func(string) string {
			addr, _ := os.ReadFile(s.Master) // an empty address cannot be dialled, which is said
			return string(addr)
		})
		c := redis.NewClient(&redis.Options{Addr: "master", Dialer: follow})
		w.clients = append(w.clients, c)
		opts := []redisstore.Option{redisstore.Prefix(prefix)}
		if s.Kind == acknowledged {
			opts = append(opts, redisstore.Replicas(1, lease/4), redisstore.ReplicatedRenewals())
		}
		store, err := redisstore.New(c, opts...)
		return nil, store, err
	case sentinel:
		c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "interlock", SentinelAddrs: s.Addrs, Dialer: dial})
		w.clients = append(w.clients, c)
		store, err := redisstore.New(c, redisstore.Prefix(prefix))
		return nil, store, err
	case cluster:
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: s.Addrs, Dialer: dial})
		w.clients = append(w.clients, c)
		store, err := redisstore.New(c, redisstore.Prefix(prefix))
		return nil, store, err
	case quorumOfFive:
		for _, addr := range s.Addrs {
			w.clients = append(w.clients, redis.NewClient(&redis.Options{Addr: addr, Dialer: dial}))
		}
		store, err := quorum.New(w.clients, quorum.Prefix(prefix), quorum.MaxTTL(lease))
		return nil, store, err
	}
	return nil, nil, fmt.Errorf("no such topology: %q", w.Servers.Kind)
}

// grant is a lease as its holder sees it. core.Lease is one.
type grant interface {
	Token() int64
	Deadline() time.Time
	Context() context.Context
	Err() error
	Release(ctx context.Context) error
}

// subject is a kind of lock, with its holders' way to write.
type subject struct {
	name  string
	lock  func(ctx context.Context, key string, how how) (grant, error)
	write writing
	// lease is how long it lasts, and overrun how often a hold may last longer.
	lease   time.Duration
	overrun float64
	// careless holders go on when the lease has ended.
	careless bool
	// places is set where several can hold the lock.
	places bool
}

// how says how a lock is asked for.
type how struct {
	try   bool
	fixed bool // a lease of half the length that is not renewed
	way   history.Way
	wait  time.Duration // for how long; zero: two leases
}

// patience is for how long a caller waits.
func (h how) patience() time.Duration { return cmp.Or(h.wait, 2*lease) }

// loop takes locks and writes under them until ctx ends.
func (w *worker) loop(ctx context.Context, s *subject, index uint32, rng *rand.Rand) {
	for ctx.Err() == nil {
		// A few keys are hot, most are not.
		keys := w.keys(s.name)
		key := rng.IntN(keys)
		if rng.IntN(2) == 0 {
			key = rng.IntN(hot(s.name, keys))
		}
		w.section(ctx, s, history.Record{Subject: index, Key: uint32(key), Hold: w.id(&w.holds)}, rng)
	}
}

// id draws a number that no other process draws.
func (w *worker) id(n *atomic.Uint64) uint64 { return uint64(w.Run)<<40 | n.Add(1) }

// section is one acquire, and the section after it if it was granted.
func (w *worker) section(ctx context.Context, s *subject, about history.Record, rng *rand.Rand) {
	name := keyName(s.name, about.Key)
	how := how{try: rng.IntN(6) == 0, fixed: rng.IntN(20) == 0}
	if s.places {
		how.way = wayOf(about.Key, rng)
	}
	about.Way = how.way
	waiting, leave := ctx, context.CancelFunc(func() {})
	// A holder that leaves in the middle leaves doubt, so only at half of the keys.
	if s.doubtful(about.Key) && rng.IntN(30) == 0 {
		waiting, leave = context.WithTimeout(ctx, time.Duration(rng.IntN(int(lease/20))))
	}
	defer leave()

	ask := about
	ask.Kind = history.Acquire
	if how.try {
		ask.Kind = history.TryAcquire
	}
	acquire := w.log.Begin(ask)
	g, err := s.lock(waiting, name, how)
	switch {
	case errors.Is(err, core.ErrHeld):
		acquire.End(history.Refused)
		pause(ctx, time.Duration(rng.IntN(5))*time.Millisecond)
		return
	case err != nil:
		acquire.End(history.Unknown)
		pause(ctx, time.Duration(rng.IntN(100))*time.Millisecond) // do not fill the history with an outage
		return
	}
	acquire.Token = g.Token()
	acquire.Trust(deadline(g), false)
	acquire.End(history.Done)
	about.Token = acquire.Token

	var value, other uint64
	ok := how.way == history.Alone // the others only read, and not these registers
	if ok {
		value, other, ok = w.read(ctx, s, name, about)
	}
	noticed := w.dwell(g, acquire, s, rng)
	if ok {
		// Whether the lease is still good is not looked at: between the look and
		// the write any time may pass, and a bad program does not look.
		w.writeBoth(ctx, s, name, about, value, other)
	}
	w.giveBack(g, acquire, about, noticed)
}

// keyName is the name of a lock.
func keyName(subject string, key uint32) string {
	return fmt.Sprintf("%s/%d", strings.ReplaceAll(subject, " ", "-"), key)
}

// dwell spends some time under the lock, now and then more than its lease. It
// returns when it noticed that the lease had ended.
func (w *worker) dwell(g grant, acquire *history.Record, s *subject, rng *rand.Rand) (noticed int64) {
	if rng.Float64() >= s.overrun && !w.clings.Load() {
		if rng.IntN(4) == 0 {
			pause(g.Context(), time.Duration(rng.IntN(2000))*time.Microsecond)
		}
		return math.MaxInt64
	}
	ctx := g.Context()
	if s.careless {
		ctx = context.WithoutCancel(ctx)
	}
	end := time.Now().Add(part(rng, s.lease/2, 2*s.lease))
	if w.clings.Load() {
		end = end.Add(5 * lease)
	}
	for time.Now().Before(end) && ctx.Err() == nil {
		pause(ctx, s.lease/20)
		acquire.Trust(deadline(g), false) // it may have been renewed
	}
	if ctx.Err() != nil {
		return history.Now()
	}
	return math.MaxInt64
}

// giveBack releases, and records until when the hold was trusted.
func (w *worker) giveBack(g grant, acquire *history.Record, about history.Record, noticed int64) {
	about.Kind = history.Release
	release := w.log.Begin(about)
	// If it is good now, it was good when the call was recorded. Else it ended at
	// its deadline, or when that was noticed if it was lost before.
	until := release.Call
	if g.Err() != nil {
		until = min(until, deadline(g), noticed)
	}
	acquire.Trust(until, true)
	switch err := g.Release(context.Background()); {
	case err == nil:
		release.End(history.Done)
	case errors.Is(err, core.ErrLost):
		release.End(history.Lost)
	default:
		release.End(history.Unknown)
	}
}

// deadline is the end of a lease by the clock of the history, rather earlier than
// later.
func deadline(g grant) int64 {
	now := history.Now() // first: the time until the next line shortens it
	return now + int64(time.Until(g.Deadline()))
}

// pause waits, but not beyond the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
