package rediswire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/logs"
)

// Store keeps locks in Redis. It implements [driver.Store] and is safe for concurrent
// use. [Open] makes one.
type Store struct {
	rdb      redis.UniversalClient // of the application: operators read with it
	rate     int                   // keys a second that a list looks at, on each master
	names    names
	log      *logs.Log
	announce announcements
	ack      ack

	requests route   // of callers
	renewals route   // of watchdogs: no other request can take its connections
	dialer   *dialer // of all connections
	keyspace *keyspace

	acquires, releases, rounds sync.Pool   // of requests that have ended
	trips                      clock.Trips // of requests for locks

	subscriber *subscriber
	shut       atomic.Bool
	mute       atomic.Bool   // announcements are refused, which was said
	occupied   logs.Throttle // keys with a value that is no lock
}

// Config says how a [Store] is made. [DefaultConfig] has the defaults.
type Config struct {
	// Prefix begins the names of all keys and channels.
	Prefix string
	// Log gets warnings.
	Log *logs.Log
	// Timeout bounds a try of a request.
	Timeout time.Duration
	// Replicas is how many replicas must acknowledge a lock; zero is none. They
	// have the time Within.
	Replicas int
	Within   time.Duration
	// ReplicatedRenewals asks the replicas about renewals too.
	ReplicatedRenewals bool
	// Sharded says that the client leads to a proxy that distributes keys over several
	// servers: no requests share a call of a script.
	Sharded bool
	// Connections bounds the connections for requests to one server; zero is maxPipelines.
	Connections int
	// Rate bounds how many keys a list looks at in a second, on each master; zero is 20,000.
	Rate int
	// Scripts are loaded on each connection, besides the scripts of locks.
	Scripts []*Script

	greet    setUp         // of a Node; follows the user's own
	patience time.Duration // of its pipelines
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Prefix: "interlock", Timeout: time.Second}
}

// check returns an error for a value that cannot work.
func (c *Config) check() error {
	wrong := clock.Limits(c.Timeout, 10*time.Millisecond, clock.LongestLease)
	switch {
	case c.Prefix == "" || strings.ContainsAny(c.Prefix, "{}"):
		return fmt.Errorf("%w: Prefix(%q): must not be empty nor contain braces, which mark the hash tag",
			driver.ErrConfig, c.Prefix)
	case wrong != "":
		return fmt.Errorf("%w: Timeout(%v): %s", driver.ErrConfig, c.Timeout, wrong)
	case c.Within > clock.LongestLease:
		return fmt.Errorf("%w: Replicas(%d, %v): at most %v", driver.ErrConfig, c.Replicas, c.Within, clock.LongestLease)
	case c.ReplicatedRenewals && c.Replicas == 0:
		return fmt.Errorf("%w: ReplicatedRenewals without Replicas, which says how many", driver.ErrConfig)
	}
	return nil
}

// Open makes a [Store] with its own connections. They have the options of a client for
// a single server, for Sentinel, or for a Cluster. It sends nothing. It returns
// [driver.ErrConfig] for a bad value and any other client.
func Open(rdb redis.UniversalClient, set Config) (*Store, error) {
	if err := set.check(); err != nil {
		return nil, err
	}
	if set.Log == nil {
		set.Log = new(logs.Log)
	}
	s := &Store{rdb: rdb, rate: cmp.Or(set.Rate, defaultRate), names: namesOf(set.Prefix, 0), log: set.Log, ack: ack{set.Replicas, set.Within}}
	s.requests = route{
		store: s, ack: s.ack, most: cmp.Or(set.Connections, maxPipelines), patience: set.patience, following: make(chan struct{}, maxFollowing),
	}
	s.renewals = route{store: s, renews: true, most: maxRenewing, following: make(chan struct{}, renewalPool)}
	if set.ReplicatedRenewals {
		s.renewals.ack = s.ack
	}
	// A question to the replicas takes its time before its answer comes.
	timeout := set.Timeout + set.Within
	scripts := append([]*Script{acquireScript, renewScript, releaseScript, declineScript, lineScript, enterScript, stayScript, leaveScript}, set.Scripts...)
	switch c := rdb.(type) {
	case *redis.Client:
		if c == nil {
			return nil, errNil
		}
		o := *c.Options()
		s.names = namesOf(set.Prefix, o.DB)
		inspect(set.Log, c, o.ReadTimeout, false)
		o.OnConnect = then(o.OnConnect, s.introduce)
		if set.greet != nil {
			o.OnConnect = then(o.OnConnect, set.greet)
		}
		s.dialer = newDialer(set.Log, o.DialTimeout, timeout)
		if o.Addr == "FailoverClient" { // so go-redis calls the address of a client for Sentinel
			s.dialer.follow = follow{ask: sentinelMaster(o.Dialer), leave: leaveSentinelOf(o.Dialer)}
		}
		s.keyspace = newKeyspace(s, &set)
		last := loading(scripts, s.keyspace)
		s.requests.overSingle(redis.NewClient(private(&o, s.dialer, timeout, poolSize, last)))
		s.renewals.overSingle(redis.NewClient(private(&o, s.dialer, timeout, renewalPool, last)))
	case *redis.ClusterClient:
		if c == nil {
			return nil, errNil
		}
		o := *c.Options()
		inspect(set.Log, c, o.ReadTimeout, o.ReadOnly || o.RouteByLatency || o.RouteRandomly)
		o.OnConnect = then(o.OnConnect, s.introduce)
		s.dialer = newDialer(set.Log, o.DialTimeout, timeout)
		last := loading(scripts, nil)
		s.requests.overCluster(redis.NewClusterClient(privateCluster(&o, s.dialer, timeout, poolSize, last)))
		s.renewals.overCluster(redis.NewClusterClient(privateCluster(&o, s.dialer, timeout, renewalPool, last)))
		if o.ClusterSlots != nil { // NewFailoverClusterClient sets it, and asks the sentinels
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
	s.subscriber = newSubscriber(s)
	return s, nil
}

var errNil = fmt.Errorf("%w: the redis client is nil; redis.NewUniversalClient makes one", driver.ErrConfig)

// Close closes the store's connections. Requests under way return errors. A second
// call returns nil.
func (s *Store) Close() error {
	if s.shut.Swap(true) {
		return nil
	}
	s.dialer.close()
	s.subscriber.close()
	s.requests.stop()
	s.renewals.stop()
	return errors.Join(s.requests.close(), s.renewals.close())
}

// Delete deletes keys of one slot.
func (s *Store) Delete(ctx context.Context, keys ...string) error {
	if s.clustered() {
		return Wrap(s.requests.cluster.Del(ctx, keys...).Err())
	}
	return Wrap(s.requests.single.Del(ctx, keys...).Err())
}

// Subscribe calls hear for messages on a channel, and for a message that may have been missed since an instant. An
// empty message says that others may have been.
func (s *Store) Subscribe(channel string, since time.Time, hear func(message string)) (stop func()) {
	return s.subscriber.watch(channel, since, hear)
}
