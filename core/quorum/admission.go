package quorum

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// admission decides which nodes may vote.
//
// A node that was restarted without its data does not know the locks for which
// it has voted, and could vote for a second holder. It is therefore left out until
// every lease that may have had its vote has ended (Redlock, "Performance,
// crash recovery and fsync": delayed restarts). A new start shows in the run id.
//
// The run id is asked for on every new connection, before anything else goes over
// it. That is enough: a restart ends all connections, so each answer of a new run of the
// server comes over a connection that has introduced it, and a vote
// is judged when its answer has come. If no connection to a node exists, the next
// connection shows its restart.
type admission struct {
	names   []string
	log     *slog.Logger
	maxTTL  time.Duration
	young   bool
	durable bool

	mu   sync.Mutex
	list []start
}

type start struct {
	runID string    // empty: not met yet
	from  time.Time // since when it may vote
}

func newAdmission(names []string, set *settings) *admission {
	return &admission{
		names: names, log: set.log, maxTTL: set.maxTTL, young: set.young, durable: set.durable,
		list: make([]start, len(names)),
	}
}

// met takes the identity that the server behind a new connection has given. It is
// counted on this machine's monotonic clock from here, which is after the restart.
//
// An introduction by the old run that is processed after one by the new (the
// connection was cut in between) looks like another restart. That leaves the node
// out for longer than necessary, never for less.
func (m *admission) met(i int, id rediswire.Identity, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := &m.list[i]
	if node.runID == id.RunID {
		return
	}
	first := node.runID == ""
	node.runID = id.RunID
	rest := time.Duration(0)
	switch {
	case m.durable:
	case !first:
		// It could say how long it has been up, but by a wall clock: a clock that is
		// set right after the start would make it look old.
		rest = m.maxTTL + clock.Drift(m.maxTTL)
	case !m.young:
		// All there is to go by. A second more, since it counts whole ones.
		rest = m.maxTTL + clock.Drift(m.maxTTL) + time.Second - id.Uptime
	}
	if rest > 0 {
		node.from = now.Add(rest)
		m.log.Warn("interlock: a node of the quorum has been started a short while ago and may have forgotten locks; "+
			"it has no vote until they have ended", "node", m.names[i], "for", rest, "restarted", !first)
	}
	if j := m.twin(i); j >= 0 {
		m.log.Error("interlock: two nodes of the quorum are one server; the second has no vote",
			"node", m.names[j], "same", m.names[i])
	}
}

// twin finds another node that is the same server. Called with m.mu held.
func (m *admission) twin(i int) int {
	for j, other := range m.list {
		if j != i && other.runID == m.list[i].runID {
			return j
		}
	}
	return -1
}

// leftOut is nil if a node may vote now, as far as it is known.
func (m *admission) leftOut(i int, now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := &m.list[i]
	if node.runID == "" {
		return nil // it is met on the way to it
	}
	// Of two addresses of one server the first has the vote.
	if j := m.twin(i); j >= 0 && j < i {
		return fmt.Errorf("%w: it is the same server as %s; each node is a server of its own",
			driver.ErrConfig, m.names[j])
	}
	if now.Before(node.from) {
		return fmt.Errorf("%w: it was started a short while ago and has no vote for another %v",
			driver.ErrNotReady, node.from.Sub(now).Round(time.Millisecond))
	}
	return nil
}
