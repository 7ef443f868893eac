package quorum

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// Option configures a [Store]. Options do not change after [New].
type Option func(*settings)

type settings struct {
	node    rediswire.Config
	log     *logs.Log
	timeout time.Duration
	maxTTL  time.Duration
	durable bool
	err     error
}

// set sets the time of an option, or notes the first bad option.
func (s *settings) set(to *time.Duration, option string, d time.Duration) {
	if wrong := clock.Limits(d, 10*time.Millisecond, clock.LongestLease); wrong == "" {
		*to = d
	} else if s.err == nil {
		s.err = fmt.Errorf("%w: %s(%v): %s", driver.ErrConfig, option, d, wrong)
	}
}

// Prefix sets the beginning of the names of all keys and channels (see
// redisstore.Prefix). Default: "interlock".
func Prefix(p string) Option {
	return func(s *settings) { s.node.Prefix = p }
}

// Logger sets the logger for warnings. Default, and if l is nil: [slog.Default].
func Logger(l *slog.Logger) Option {
	return func(s *settings) {
		if l != nil {
			s.log = logs.To(l)
		}
	}
}

// NodeTimeout sets how long the store waits for the vote of a node. For d below
// 10 ms or above 31 days, [New] returns [driver.ErrConfig]. Default: a hundredth of the lease, or
// four times the recent answer time of a majority, but at least 50 ms and at most 500 ms. It
// bounds each step of a connection, too. With every setting the store waits for less than a tenth
// of the lease: the time must be small against the validity, so that a node that is down costs
// little time (Redlock, "How to do it", step 2).
func NodeTimeout(d time.Duration) Option {
	return func(s *settings) {
		s.set(&s.timeout, "NodeTimeout", d)
	}
}

// MaxTTL sets the longest lease that any process takes from these nodes. For d below
// 10 ms or above 31 days, [New] returns [driver.ErrConfig]. Default: 30 s. A node that was restarted has
// no vote for this time, because it may have forgotten a lock of that length.
// Therefore [Store.Acquire] refuses a longer lease. Give all processes the same
// value: the log and [Store.Check] say where they differ.
func MaxTTL(d time.Duration) Option {
	return func(s *settings) {
		s.set(&s.maxTTL, "MaxTTL", d)
	}
}

// Durable declares that the nodes forget nothing in a restart: they run with
// appendonly yes and appendfsync always, on disks that keep acknowledged writes. A
// restarted node then votes at once, unless it has lost all data. The store does not
// verify more of the declaration. Give all processes the option, or none. Default: not
// assumed.
func Durable() Option {
	return func(s *settings) { s.durable = true }
}
