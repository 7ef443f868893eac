package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

const (
	// moveBatch is how many keys one MIGRATE takes along, as with redis-cli.
	moveBatch = 10
	// moveTimeout bounds one MIGRATE, in ms.
	moveTimeout = 5000
)

// Slot returns the slot of a Cluster that a key belongs to (the specification's
// CRC-16/XMODEM of its hash tag, modulo 16384).
func Slot(key string) int {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for _, c := range []byte(key) {
		crc ^= uint16(c) << 8
		for range 8 {
			top := crc & 0x8000
			crc <<= 1
			if top != 0 {
				crc ^= 0x1021
			}
		}
	}
	return int(crc) % clusterSlots
}

// Migration is the move of one slot from a master to another, in the steps that
// redis-cli takes, so that a test can look at the states between them. A test
// that begins one finishes it. Its methods belong to the test's own goroutine.
type Migration struct {
	set          *ClusterSet
	slot         int
	to           *Server
	fromID, toID string
	source       *redis.Client
	target       *redis.Client
}

// Migrate begins to move a slot: from here on its owner sends requests for keys
// that it does not have to the other master (ASK), and both answer TRYAGAIN to
// requests for several keys if they have only some of the keys.
func (c *ClusterSet) Migrate(tb testing.TB, slot int, from, to *Server) *Migration {
	tb.Helper()
	m := &Migration{set: c, slot: slot, to: to, source: c.consoles[from], target: c.consoles[to]}
	m.begin(tb)
	return m
}

func (m *Migration) begin(tb testing.TB) {
	tb.Helper()
	ctx := tb.Context()
	var err error
	if m.fromID, err = m.source.ClusterMyID(ctx).Result(); err != nil {
		tb.Fatalf("redistest: migrate slot %d: %v", m.slot, err)
	}
	if m.toID, err = m.target.ClusterMyID(ctx).Result(); err != nil {
		tb.Fatalf("redistest: migrate slot %d: %v", m.slot, err)
	}
	// In this order: an owner that redirects must find a node that accepts.
	m.must(tb, m.setslot(ctx, m.target, "importing", m.fromID))
	m.must(tb, m.setslot(ctx, m.source, "migrating", m.toID))
}

func (m *Migration) setslot(ctx context.Context, rdb *redis.Client, state, id string) error {
	return rdb.Do(ctx, "cluster", "setslot", m.slot, state, id).Err()
}

func (m *Migration) must(tb testing.TB, errs ...error) {
	tb.Helper()
	if err := errors.Join(errs...); err != nil {
		tb.Fatalf("redistest: migrate slot %d: %v", m.slot, err)
	}
}

// Move moves these keys, as far as they exist.
func (m *Migration) Move(tb testing.TB, keys ...string) {
	tb.Helper()
	args := []any{"migrate", "127.0.0.1", m.to.port, "", 0, moveTimeout, "keys"}
	for _, key := range keys {
		args = append(args, key)
	}
	m.must(tb, m.source.Do(tb.Context(), args...).Err()) // NOKEY is no error
}

// MoveAll moves the remaining keys of the slot.
func (m *Migration) MoveAll(tb testing.TB) {
	tb.Helper()
	for {
		keys, err := m.source.ClusterGetKeysInSlot(tb.Context(), m.slot, moveBatch).Result()
		m.must(tb, err)
		if len(keys) == 0 {
			return
		}
		m.Move(tb, keys...)
	}
}

// Accept tells the new owner that the slot is its own. The old one does not know
// yet.
func (m *Migration) Accept(tb testing.TB) {
	tb.Helper()
	m.must(tb, m.setslot(tb.Context(), m.target, "node", m.toID))
}

// Finish moves the remaining keys and tells all masters which node has the slot now.
func (m *Migration) Finish(tb testing.TB) {
	tb.Helper()
	m.MoveAll(tb)
	m.Accept(tb)
	m.must(tb, m.setslot(tb.Context(), m.source, "node", m.toID))
	for _, shard := range m.set.Shards {
		rdb := m.set.consoles[shard[0]]
		if rdb == m.source || rdb == m.target {
			continue
		}
		if err := m.setslot(tb.Context(), rdb, "node", m.toID); err != nil {
			m.must(tb, fmt.Errorf("telling %s: %w", shard[0].Addr(), err))
		}
	}
}

// Settle waits until all masters agree on the node of each slot, and on its epoch. To
// be called before the slots of another target move: a node that does not know an
// epoch yet can take the same epoch for itself, and when the Cluster tells the two
// apart, a slot that was just given away may come back to a node that does not know
// about it.
func (c *ClusterSet) Settle(tb testing.TB) {
	tb.Helper()
	Eventually(tb, topologyTimeout, func(ctx context.Context) error {
		var first []string
		for _, shard := range c.Shards {
			text, err := c.consoles[shard[0]].ClusterNodes(ctx).Result()
			if err != nil {
				return err
			}
			view := owners(text)
			if first == nil {
				first = view
			}
			if !slices.Equal(view, first) {
				return fmt.Errorf("%s sees %q, %s %q", c.Shards[0][0].Addr(), first, shard[0].Addr(), view)
			}
		}
		return nil
	})
}

// owners extracts from the answer to CLUSTER NODES each node's id, epoch and
// slots.
func owners(text string) (all []string) {
	for line := range strings.Lines(text) {
		// <id> <addr> <flags> <master> <ping> <pong> <epoch> <link> <slots>...
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		open := slices.IndexFunc(f, func(s string) bool { return strings.HasPrefix(s, "[") })
		if open >= 0 {
			f = f[:open] // keys under migration
		}
		all = append(all, fmt.Sprint(f[0], " ", f[6], " ", f[8:]))
	}
	slices.Sort(all)
	return all
}
