package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// Store keeps locks and idempotency records in Redis. It implements [driver.Store] with
// [driver.Turns] and [driver.Registry], [driver.Lister], and [record.Store], and is safe for concurrent use. [New] makes one; the zero value
// does not work. Close it after the lockers and engines that use it.
//
// It renews leases on different servers in parallel, and leases on one server in pipelines. A list goes through
// all keys of the database by SCAN, at most 20,000 a second, with the client that was given to [New].
type Store struct {
	locks
	wire *rediswire.Store
}

// locks are the methods of a store of locks, which package rediswire has.
type locks interface {
	driver.Store
	driver.Turns
	driver.Registry
	driver.Lister
}

// Option configures a [Store]. Options do not change after [New].
type Option func(*settings)

type settings struct {
	rediswire.Config
	err error
}

// Prefix sets the beginning of the names of all keys and channels. Lockers exclude each
// other only under the same prefix, and in the same database (DB of the client's
// options). If p is empty or contains a brace, [New] returns [driver.ErrConfig].
// Default: "interlock".
func Prefix(p string) Option {
	return func(s *settings) { s.Prefix = p }
}

// Logger sets the logger for warnings. Default, and if l is nil: [slog.Default].
func Logger(l *slog.Logger) Option {
	return func(s *settings) {
		if l != nil {
			s.Log = logs.To(l)
		}
	}
}

// Timeout limits each try of a request, from writing it to reading its reply. With
// [Replicas], the time for the replicas is added. Renewals have their own limit, a
// sixth of the lease. For d below 10 ms or above 31 days, [New] returns [driver.ErrConfig]. Default: 1 s.
func Timeout(d time.Duration) Option {
	return func(s *settings) { s.Timeout = d }
}

// Connections sets how many connections to each server carry requests for locks and records
// at most. Further requests wait, and share the next one. Renewals, subscriptions and rare commands
// have at most eight connections more. For n below 1, [New] returns [driver.ErrConfig]. Default: 4.
func Connections(n int) Option {
	return func(s *settings) {
		if n < 1 {
			s.err = fmt.Errorf("%w: Connections(%d): at least 1", driver.ErrConfig, n)
			return
		}
		s.Connections = n
	}
}

// Replicas makes each acquisition wait until at least n replicas have the lock, for at
// most the duration within. If fewer acknowledge it, the store releases the lock and
// returns [driver.ErrNotReplicated]. For n below 1, or within below 1 ms or above 31 days, [New] returns
// [driver.ErrConfig]. Default: the store does not ask the replicas, because that costs
// the round trip to them. Source: the Redis command WAIT.
//
// The option shortens the window for a failover to lose a lock. It prevents the loss only if no
// replica without the lock can be promoted: ask for all replicas, or give a better priority to the
// replicas that you ask for, and set min-replicas-to-write.
func Replicas(n int, within time.Duration) Option {
	return func(s *settings) {
		if n < 1 || within < time.Millisecond {
			s.err = fmt.Errorf("%w: Replicas(%d, %v): at least 1 replica and 1ms", driver.ErrConfig, n, within)
			return
		}
		s.Replicas, s.Within = n, within
	}
}

// ReplicatedRenewals makes each renewal wait for the replicas of [Replicas] too. A
// renewal that too few replicas acknowledge has failed; the locker tries again until
// the lease ends. Without Replicas, [New] returns [driver.ErrConfig]. Default: renewals
// do not wait; a renewal that a failover loses is noticed at the next renewal.
func ReplicatedRenewals() Option {
	return func(s *settings) { s.ReplicatedRenewals = true }
}

// Sharded says that the client leads to a proxy that distributes keys over several servers,
// so that no two locks may be in one call of a script. Default: the store finds that out. It
// asks each new connection where 16 random keys lead, and compares what renewals and
// releases answer. A proxy that gives one server a small share of the keys can stay unnoticed
// for some requests, and these can then grant a lock twice; with the option none can. A
// client for a Cluster needs no option.
func Sharded() Option {
	return func(s *settings) { s.Sharded = true }
}

// New makes a [Store] from a client for a single server, for Sentinel, or for a Cluster.
// It copies the options of the client to make its own connections, and sends nothing. New
// ignores an [Option] that is nil.
//
// It returns [driver.ErrConfig] for a bad option, a nil client, a Ring (which has no
// master to ask), and a client of an unknown type.
//
// New logs one warning for each client that reads from replicas, or has a ReadTimeout
// above 10 s or unlimited. The store does not use these settings, but they endanger
// handlers that use the client under a lock. For such handlers set ContextTimeoutEnabled
// to true: their commands then end at the context's deadline.
//
// A client for a single server may lead to a proxy that distributes keys over several
// servers, with what docs/managed.md says about proxies. Such a proxy runs a script on
// the server of its first key (Envoy, Twemproxy, Codis, dynomite), or refuses a script of
// several locks (with CROSSSLOT, or the text of Alibaba Cloud's proxy). The store looks at
// each connection before it sends scripts of several locks over it, and sends such a proxy
// none; see also [Sharded].
func New(rdb redis.UniversalClient, opts ...Option) (*Store, error) {
	set := settings{Config: rediswire.DefaultConfig()}
	for _, o := range opts {
		if o != nil {
			o(&set)
		}
	}
	if set.err != nil {
		return nil, set.err
	}
	set.Scripts = []*rediswire.Script{claimScript, extendScript, markScript, commitScript, abandonScript}
	wire, err := rediswire.Open(rdb, set.Config)
	if err != nil {
		return nil, err
	}
	return &Store{wire, wire}, nil
}

// Close closes the store's connections. Requests under way return errors. The client
// that was given to [New] stays open. A second call returns nil.
func (s *Store) Close() error { return s.wire.Close() }

// Check asks all masters for the settings that the promises of a lock depend on. It returns a
// sorted list of sentences, one for each unsafe setting; the list is empty if all is well. Use it
// at start-up and for alerts. It needs the right to INFO and, for appendfsync alone, to CONFIG
// GET, and reports it if a right is missing. The error comes from a server that did not answer.
// Check is safe for concurrent use.
func (s *Store) Check(ctx context.Context) ([]string, error) { return s.wire.Check(ctx) }
