package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/redisrecords"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// ErrNoGrant says that no holder of the lock has the token: the lock is free, or another
// grant's.
var ErrNoGrant = errors.New("interlock: no holder of the lock has this token")

// ErrOutcomeUnknown says that the server did not answer a release: it is not known whether the lock was
// released. Its page and ls show the holder when the server answers again.
var ErrOutcomeUnknown = errors.New("interlock: it is not known whether the lock was released")

// ErrNotKept says that the lock is not kept for waiting processes: it is free, or has a holder.
var ErrNotKept = errors.New("interlock: the lock is not kept for waiting processes")

// ErrVoted says that the lock is kept by a quorum of servers (package quorum), of which
// one cannot release it.
var ErrVoted = errors.New("interlock: the lock belongs to a quorum of servers, which has to release it as a whole")

// ErrNotServed says that a store does not have the asked information, such as a list of processes.
var ErrNotServed = errors.New("interlock: the store does not have this")

// ErrIncomplete says that some masters of a Cluster, or some locks of another store, were not read. All
// others were returned before. The error wraps the cause.
var ErrIncomplete = driver.ErrIncomplete

// Fleet shows and repairs the locks of a store. [New] makes a Fleet on Redis, and [On] on any
// store that is a [driver.Lister]. It is safe for concurrent use. Close it at the end.
//
// Processes have names where the store is a [driver.Registry], as Redis is. Elsewhere [Holder.Locker] and
// [Waiter.Locker] have the random id of the locker, which the debug page and the logs of its process show,
// and on etcd and ZooKeeper the host and the process of a holder.
type Fleet struct {
	store   driver.Store
	lister  driver.Lister
	records storeRecords
	check   func(ctx context.Context, user string) (Report, error)
	close   func() error
	log     *slog.Logger
}

// Option configures a [Fleet]. Options do not change after [New].
type Option func(*settings)

type settings struct {
	prefix string
	log    *slog.Logger
	rate   int
}

// minRate is the least rate of a list on Redis.
const minRate = 100

func settingsOf(opts []Option) settings {
	set := settings{prefix: rediswire.DefaultConfig().Prefix, log: slog.Default(), rate: 20_000}
	for _, o := range opts {
		if o != nil {
			o(&set)
		}
	}
	return set
}

// Prefix sets the beginning of the names of keys, as redisstore.Prefix does. Default:
// "interlock".
func Prefix(p string) Option { return func(s *settings) { s.prefix = p } }

// Logger sets the logger, which gets a line for each lock that [Fleet.Release] releases,
// and warnings. Default, and if l is nil: [slog.Default].
func Logger(l *slog.Logger) Option {
	return func(s *settings) {
		if l != nil {
			s.log = l
		}
	}
}

// Rate bounds how many keys [Fleet.Locks] and [Fleet.Lockers] look at in a second. All
// keys of the database count, also keys that are no locks. A Cluster's masters are
// scanned one after the other. n is at least 100. Default: 20,000.
func Rate(n int) Option { return func(s *settings) { s.rate = n } }

// New makes a [Fleet] on a client. It sends nothing. The error matches
// [driver.ErrConfig]: the option or the client cannot work.
func New(rdb redis.UniversalClient, opts ...Option) (*Fleet, error) {
	c := rediswire.DefaultConfig()
	set := settingsOf(opts)
	if set.rate < minRate {
		return nil, fmt.Errorf("%w: Rate(%d): must be at least %d", driver.ErrConfig, set.rate, minRate)
	}
	c.Prefix, c.Log, c.Timeout, c.Rate = set.prefix, logs.To(set.log), 3*time.Second, set.rate
	wire, err := rediswire.Open(rdb, c)
	if err != nil {
		return nil, err
	}
	servers := &servers{rdb, wire}
	return &Fleet{
		store: wire, lister: wire, records: storeRecords{redisrecords.Lister{Wire: wire}}, check: servers.check, close: wire.Close, log: set.log,
	}, nil
}

// On makes a [Fleet] on a store, such as the stores on PostgreSQL, etcd and ZooKeeper. The only option that
// counts is [Logger]. The error matches [driver.ErrConfig]: the store is no [driver.Lister].
func On(store driver.Store, opts ...Option) (*Fleet, error) {
	lister, ok := store.(driver.Lister)
	if !ok {
		return nil, fmt.Errorf("%w: %T does not show its locks (driver.Lister)", driver.ErrConfig, store)
	}
	lists, _ := store.(record.Lister)
	return &Fleet{
		store: store, lister: lister, records: storeRecords{lists}, check: checkOf(store), close: func() error { return nil },
		log: settingsOf(opts).log,
	}, nil
}

// Close closes the connections of the Fleet's own. The client or store that was given to [New] or [On]
// stays open.
func (f *Fleet) Close() error { return f.close() }
