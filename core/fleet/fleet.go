package fleet

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
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

// Fleet reads and repairs the locks of a Redis. [New] makes one. It is safe for
// concurrent use. Close it at the end.
type Fleet struct {
	rdb  redis.UniversalClient
	wire *rediswire.Store
	log  *slog.Logger
	rate int // keys a second that SCAN looks at, on each master
}

// Option configures a [Fleet]. Options do not change after [New].
type Option func(*settings)

type settings struct {
	prefix string
	log    *slog.Logger
	rate   int
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
	set := settings{prefix: c.Prefix, log: slog.Default(), rate: 20_000}
	for _, o := range opts {
		if o != nil {
			o(&set)
		}
	}
	if set.rate < scanCount {
		return nil, fmt.Errorf("%w: Rate(%d): must be at least %d", driver.ErrConfig, set.rate, scanCount)
	}
	c.Prefix, c.Log, c.Timeout = set.prefix, logs.To(set.log), 3*time.Second
	wire, err := rediswire.Open(rdb, c)
	if err != nil {
		return nil, err
	}
	return &Fleet{rdb: rdb, wire: wire, log: set.log, rate: set.rate}, nil
}

// Close closes the connections of the Fleet's own. The client that was given to [New]
// stays open.
func (f *Fleet) Close() error { return f.wire.Close() }
