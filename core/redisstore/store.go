package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
)

// fenceTime is how much longer than its lease the last token of a key is
// remembered. It covers clocks that disagree by that much after a failover.
const fenceTime = time.Minute

// Store keeps locks and idempotency records in Redis. It implements [driver.Store] and
// [idempotency.Store], and is safe for concurrent use. [New] makes one; the zero value
// does not work. Close it after the lockers and engines that use it.
type Store struct {
	names    names
	log      *slog.Logger
	announce announcements
	ack      ack

	requests route       // of what callers ask
	renewals route       // of what the watchdogs ask: its connections are taken by nothing else
	dialer   *dialer     // of all connections
	together atomic.Bool // several requests share a call of a script: no Cluster

	acquires, releases, rounds sync.Pool // of requests that are over

	hub      *hub
	shut     atomic.Bool
	mute     atomic.Bool   // releases cannot be announced, which was said
	occupied logs.Throttle // keys with a value that is no lock
}

// Option configures a [Store]. Options do not change after [New].
type Option func(*settings)

type settings struct {
	prefix  string
	log     *slog.Logger
	timeout time.Duration
	ack     ack
	err     error

	greet    func(context.Context, *redis.Conn) error // of a Node
	patience time.Duration                            // of its lanes
}

// Prefix sets the text with which the names of all keys and channels begin. Lockers
// exclude each other only under the same prefix. If p is empty or contains a brace,
// [New] returns [driver.ErrConfig]. Default: "interlock".
func Prefix(p string) Option {
	return func(s *settings) {
		if p == "" || strings.ContainsAny(p, "{}") {
			s.err = fmt.Errorf("%w: Prefix(%q): must not be empty nor contain braces, which mark the hash tag", driver.ErrConfig, p)
			return
		}
		s.prefix = p
	}
}

// Logger sets the logger for warnings. Default, and if l is nil: [slog.Default].
func Logger(l *slog.Logger) Option {
	return func(s *settings) {
		if l != nil {
			s.log = l
		}
	}
}

// Timeout limits each try of a request, from writing it to reading its reply. With
// [Replicas], the time for the replicas is added. Renewals have their own limit, a
// sixth of the lease. For d below 10 ms, [New] returns [driver.ErrConfig]. Default: 1 s.
func Timeout(d time.Duration) Option {
	return func(s *settings) {
		if d < 10*time.Millisecond {
			s.err = fmt.Errorf("%w: Timeout(%v): must be at least 10ms", driver.ErrConfig, d)
			return
		}
		s.timeout = d
	}
}

// New makes a [Store] from a client for a single server, for a server behind Sentinel,
// or for a Cluster. It copies the options of the client to make its own connections,
// and sends nothing. New ignores an [Option] that is nil.
//
// It returns [driver.ErrConfig] for a bad option, a nil client, a Ring (which has no
// master to ask), and a client of an unknown type.
//
// New logs one warning for each client that reads from replicas, or whose ReadTimeout
// is above 10 s or unlimited. The store does not use these settings, but they endanger
// handlers that use the client under a lock. For such handlers set
// ContextTimeoutEnabled to true: their commands then end at the context's deadline.
//
// A client for a single server must not lead to a proxy that distributes keys over
// several servers: a script of several locks would run on the server of the first
// lock. If a proxy refuses such a script (with CROSSSLOT, or the text of Alibaba
// Cloud's proxy), the store sends it no more scripts of several locks.
func New(rdb redis.UniversalClient, opts ...Option) (*Store, error) {
	set := settings{prefix: "interlock", log: slog.Default(), timeout: time.Second}
	for _, o := range opts {
		if o != nil {
			o(&set)
		}
	}
	switch {
	case set.err != nil:
		return nil, set.err
	case set.ack.renewals && set.ack.replicas == 0:
		return nil, fmt.Errorf("%w: ReplicatedRenewals without Replicas, which says how many", driver.ErrConfig)
	}
	s := &Store{names: names{set.prefix}, log: set.log, ack: set.ack}
	s.requests = route{
		store: s, ack: set.ack, most: maxPipelines, patience: set.patience, following: make(chan struct{}, maxFollowing),
	}
	s.renewals = route{store: s, renews: true, most: maxRenewing, following: make(chan struct{}, 1)}
	if set.ack.renewals {
		s.renewals.ack = set.ack
	}
	// A question to the replicas takes its time before its answer comes.
	set.timeout += set.ack.within
	switch c := rdb.(type) {
	case *redis.Client:
		if c == nil {
			return nil, errNil
		}
		inspect(set.log, c, optionsOf(c.Options()))
		o := set.greeted(s.introducing(c.Options()))
		s.dialer = newDialer(set.log, o.DialTimeout, set.timeout)
		if behindSentinel(o) {
			s.dialer.follow = follow{ask: sentinelMaster(o.Dialer), leave: leaveSentinelOf(o.Dialer)}
		}
		s.requests.overSingle(redis.NewClient(private(o, s.dialer, set.timeout, poolSize)))
		s.renewals.overSingle(redis.NewClient(private(o, s.dialer, set.timeout, maxRenewing)))
		s.together.Store(true)
	case *redis.ClusterClient:
		if c == nil {
			return nil, errNil
		}
		inspect(set.log, c, optionsOfCluster(c.Options()))
		o := *c.Options()
		o.OnConnect = s.introduced(o.OnConnect)
		s.dialer = newDialer(set.log, o.DialTimeout, set.timeout)
		s.requests.overCluster(redis.NewClusterClient(privateCluster(&o, s.dialer, set.timeout, poolSize)))
		s.renewals.overCluster(redis.NewClusterClient(privateCluster(&o, s.dialer, set.timeout, maxRenewing)))
		if o.ClusterSlots != nil { // also that of NewFailoverClusterClient, which asks the sentinels
			leave := func() { _, _ = o.ClusterSlots(inVain) }
			s.dialer.follow = follow{ask: mastersOf(s.requests.cluster, s.renewals.cluster), leave: leave, named: true}
		}
		s.announce.sharded.Store(true)
	case *redis.Ring:
		return nil, fmt.Errorf("%w: a Ring spreads keys over unrelated servers by itself and may move them at any time; "+
			"use a Client, a FailoverClient or a ClusterClient", driver.ErrConfig)
	case nil:
		return nil, errNil
	default:
		return nil, fmt.Errorf("%w: unknown client %T; use *redis.Client (also of NewFailoverClient) or *redis.ClusterClient",
			driver.ErrConfig, rdb)
	}
	s.hub = newHub(s)
	return s, nil
}

var errNil = fmt.Errorf("%w: the redis client is nil; redis.NewUniversalClient makes one", driver.ErrConfig)

// Close closes the store's connections. Requests under way return errors. The client
// that was given to [New] stays open. A second call returns nil.
func (s *Store) Close() error {
	if s.shut.Swap(true) {
		return nil
	}
	s.dialer.close()
	s.hub.close()
	s.requests.stop()
	s.renewals.stop()
	return errors.Join(s.requests.close(), s.renewals.close())
}

// Acquire implements [driver.Store].
func (s *Store) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	r, _ := s.acquires.Get().(*acquireRequest)
	if r == nil {
		r = newAcquireRequest()
	}
	lock, fence := s.names.with(ask.Key, fenceSuffix)
	r.ask, r.keys = ask, [2]string{lock, fence}
	r.ms = [2]int64{wholeMilliseconds(ask.TTL), wholeMilliseconds(ask.TTL + fenceTime)}
	r.begin(s, acquireScript, 2, r.values[:], lock)
	r.deadline, r.write, r.asks = ask.Deadline, true, true
	r.start()
	if !r.wait(ctx, ask.Deadline) {
		if ctx.Err() != nil {
			return driver.Reply{}, fmt.Errorf("%w: %w", driver.ErrPending, context.Cause(ctx))
		}
		return driver.Reply{}, driver.ErrPending
	}
	rep, err := r.reply()
	r.ask = driver.AcquireRequest{}
	s.acquires.Put(r)
	return rep, err
}

// Release implements [driver.Store].
func (s *Store) Release(_ context.Context, ask driver.ReleaseRequest) error {
	r, _ := s.releases.Get().(*releaseRequest)
	if r == nil {
		r = &releaseRequest{request: request{done: make(chan *request, 1)}}
	}
	r.ask = ask
	if ask.Remember {
		r.names[0], r.names[1] = s.names.with(ask.Key, fenceSuffix)
		r.ms = wholeMilliseconds(ask.TTL + fenceTime)
		r.values = [10]any{
			3: &r.names[0], 4: &r.names[1],
			5: &r.ask.Owner, 6: s.announce.command(), 7: &r.ask.Waiter, 8: &r.ask.Token, 9: &r.ms,
		}
		r.begin(s, releaseScript, 2, r.values[:], r.names[0])
	} else {
		r.names[0] = s.names.lock(ask.Key)
		r.values = [10]any{3: &r.names[0], 4: &r.ask.Owner, 5: s.announce.command(), 6: &r.ask.Waiter}
		r.begin(s, releaseScript, 1, r.values[:7], r.names[0])
	}
	r.deadline, r.stubborn = ask.Deadline, true
	r.start()
	r.wait(context.Background(), time.Time{}) // the request ends by its own bounds
	err := s.released(r)
	r.ask = driver.ReleaseRequest{}
	s.releases.Put(r)
	return err
}

// released reads the script's reply.
func (s *Store) released(r *releaseRequest) error {
	if r.err != nil {
		return wrap(r.err)
	}
	n, err := r.integer()
	switch {
	case err != nil:
		return wrap(err)
	case n <= 0 && !r.ambiguous:
		return notOwner(n)
	case n == 2 && !s.mute.Swap(true):
		s.log.Warn("interlock: Redis refused to announce a release: waiting processes find it late, by asking; " +
			"the user of the connection needs PUBLISH (on a Cluster SPUBLISH) on " + s.names.prefix + ":*")
	}
	// "Not the owner" after a try whose reply was lost: that try released it.
	return nil
}

// sayOccupied logs, at most once a second, that a lock's key holds a value that is no
// lock. The condition ends only when that value is removed.
func (s *Store) sayOccupied(key string) {
	if s.occupied.Count(time.Now()) > 0 {
		s.log.Error("interlock: a lock cannot be taken, since its key in Redis has a value of another type",
			"key_hash", core.KeyHash(key))
	}
}

// notOwner makes the error for the answer of renew.lua and release.lua to an owner
// that does not hold the lock.
func notOwner(n int64) error {
	if n < 0 {
		return driver.ErrTakenOver
	}
	return driver.ErrDeleted
}

// Watch implements [driver.Store].
func (s *Store) Watch(key string, since time.Time, wake func(driver.Signal)) (stop func()) {
	return s.hub.watch(channelOf(s.names.lock(key)), since, wake)
}

// milliseconds is how Redis wants a duration; a part of one counts as a whole,
// since no lease may be zero.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

var _ driver.Store = (*Store)(nil)
