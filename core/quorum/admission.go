package quorum

import (
	"log/slog"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

const (
	// lookShare is how often a process looks at the mark of a node that has a vote,
	// within [MaxTTL]: a process that is idle sees a restart soon after it, and the wait
	// has ended when the process needs the node. A node that waits is looked at as often,
	// because another process may have waited for longer.
	lookShare = 3
	minEvery  = 100 * time.Millisecond
)

// admission decides which nodes may vote.
//
// A node that has lost its data does not know the locks for which it has voted, and
// could vote for a second holder. It is therefore left out until every lease that may
// have had its vote has ended (Redlock, "Performance, crash recovery and fsync": delayed
// restarts). Only the processes know when that is: a server counts its uptime by a wall
// clock, which may be set right after the start. The node's [mark] keeps their findings.
//
// The run id and the mark are asked for, together, on every new connection, before
// anything else goes over it. A restart ends all connections, so each answer of a new run
// of the server comes over a connection that has introduced it. And a vote counts only
// where the node still had the mark that this process knows when it voted, and where that
// is the mark of the run that is known when the answer has come.
type admission struct {
	names      []string
	log        *logs.Log
	maxTTL     time.Duration
	durable    bool
	complaints []logs.Throttle // about marks that cannot be written

	mu   sync.Mutex
	list []member
}

// member is the state of a node in the admission.
type member struct {
	runID string    // empty: not met yet
	at    time.Time // when that was learned
	// unsure: two runs have introduced themselves at the same time, and it is not known
	// which is the later one.
	unsure bool
	text   string // of the mark
	mark   mark
	since  time.Time // since when this process has seen the node with this mark
	told   bool      // the log says that it has no vote
}

func newAdmission(names []string, set *settings) *admission {
	return &admission{
		names: names, log: set.log, maxTTL: set.maxTTL, durable: set.durable,
		complaints: make([]logs.Throttle, len(names)), list: make([]member, len(names)),
	}
}

// own reports whether the mark is of this run of the server. A durable node loses nothing
// between its runs.
func (m *admission) own(node *member) bool {
	return node.mark.name != "" && (m.durable || node.mark.run == node.runID)
}

// votes reports whether a node has kept its votes for long enough.
func (m *admission) votes(node *member) bool {
	return !node.unsure && node.mark.votes && m.own(node)
}

// met takes the identity that a server has given on a connection. It reports whether
// the mark has to be looked at.
func (m *admission) met(i int, id rediswire.Identity, now time.Time) (look bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := &m.list[i]
	before := *node
	if id.Asked.Before(node.at) {
		// It was on its way when the last one was taken, and may be older. That is the
		// answer of a run that has ended, or of a run that has begun.
		node.unsure = node.unsure || id.RunID != node.runID
		if node.unsure {
			node.at = now
		}
		return node.unsure
	}
	node.at, node.unsure = now, false
	if id.RunID == node.runID && id.Mark == node.text {
		return false // it is looked at in its time
	}
	node.runID, node.text, node.mark, node.since = id.RunID, id.Mark, readMark(id.Mark), now
	m.tell(i, before)
	return !m.votes(node)
}

// tell logs a change of a node. Called with m.mu held.
func (m *admission) tell(i int, before member) {
	node := &m.list[i]
	name := slog.String("node", m.names[i])
	switch {
	case m.votes(node):
		if node.told {
			m.log.Info("interlock: a node of the quorum has a vote again", name)
		}
		node.told = false
	case node.told:
	case before.runID == node.runID:
		node.told = true
		m.log.Error("interlock: a node of the quorum has lost its data while it ran, as by FLUSHALL, and may have forgotten locks; "+
			"it has no vote until they have ended", name, "for", m.wait(node))
	default:
		node.told = true
		m.log.Warn("interlock: a node of the quorum was started without its data, or for the first time, and may have forgotten locks; "+
			"it has no vote until they have ended", name, "for", m.wait(node), "restarted", before.runID != "")
	}
	if m.own(node) && node.mark.maxTTL != m.maxTTL && node.text != before.text {
		m.log.Error("interlock: processes of a quorum have different values of MaxTTL: after a restart of a node two processes can get one lock",
			name, "here", m.maxTTL, "there", node.mark.maxTTL)
	}
	if j := m.twin(i); j >= 0 && before.runID != node.runID {
		m.log.Error("interlock: two nodes of the quorum are one server; the second has no vote",
			"node", m.names[j], "same", m.names[i])
	}
}

// wait is how long a node has no vote, from when this process has seen its mark.
func (m *admission) wait(node *member) time.Duration {
	longest := max(m.maxTTL, node.mark.maxTTL)
	return longest + clock.Drift(longest)
}

// twin finds another node that is the same server. Called with m.mu held.
func (m *admission) twin(i int) int {
	for j := range m.list {
		if j != i && m.list[j].runID == m.list[i].runID {
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
		return because(driver.ErrConfig, "it is the same server as %s; each node is a server of its own", m.names[j])
	}
	if m.votes(node) {
		return nil
	}
	return because(driver.ErrNotReady, "it may have forgotten locks and has no vote for another %v", m.rest(node, now))
}

// rest is how long a node still has no vote, as far as this process knows.
func (m *admission) rest(node *member, now time.Time) time.Duration {
	rest := m.wait(node)
	if m.own(node) && !node.unsure {
		rest -= now.Sub(node.since)
	}
	return max(rest, 0).Round(time.Millisecond)
}

// mark returns the mark of a node that may vote; empty if it is not known.
func (m *admission) mark(i int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if node := &m.list[i]; m.votes(node) {
		return node.text
	}
	return ""
}

// due returns the mark to write for a node and the mark to replace, if any, and else
// when to look again.
func (m *admission) due(i int, now time.Time) (from, to string, next time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := &m.list[i]
	every := m.every()
	if j := m.twin(i); node.runID == "" || j >= 0 && j < i {
		return "", "", every
	}
	switch {
	case m.votes(node):
		return "", "", every
	case node.unsure:
		return "", "", minEvery
	case !m.own(node):
		return node.text, newMark(node.runID, m.maxTTL).text(), 0
	}
	if rest := m.wait(node) - now.Sub(node.since); rest > 0 {
		return "", "", min(rest, max(every/lookShare, minEvery))
	}
	voting := node.mark
	voting.votes = true
	return node.text, voting.text(), 0
}

// every is the time between two looks at a node that has a vote.
func (m *admission) every() time.Duration { return max(m.maxTTL/lookShare, minEvery) }

// differs says which MaxTTL the process has that has made the mark of a node; zero if it is
// the same as here, or not known.
func (m *admission) differs(i int) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	node := &m.list[i]
	if !m.own(node) || node.mark.maxTTL == m.maxTTL {
		return 0
	}
	return node.mark.maxTTL
}

// unmarked takes the error of a mark that could not be written.
func (m *admission) unmarked(i int, err error) {
	if m.complaints[i].Count(time.Now()) > 0 {
		m.log.Error("interlock: a node of the quorum takes no mark, and has no vote until it does", "node", m.names[i], "error", err)
	}
}
