// Package inmemory has the records of package idemcases on core/memstore. It is for tests.
package inmemory

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/idemcases"
	"github.com/interlock-go/interlock/internal/pace"
)

// Open makes records that are empty.
func Open(*testing.T) idemcases.Records { return &records{stores: make(map[string]*memstore.Store)} }

// records are records in memory, a store for each service.
type records struct {
	mu     sync.Mutex
	stores map[string]*memstore.Store
	down   bool
	lose   memstore.Op // the reply to the next request of this kind
	lost   int
}

func (m *records) store(service string) *memstore.Store {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stores[service] == nil {
		m.stores[service] = memstore.New()
		m.stores[service].Intercept(m.fault)
	}
	return m.stores[service]
}

func (m *records) fault(r memstore.Request) memstore.Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.down:
		return memstore.Unreachable
	case r.Op == m.lose:
		m.lose = ""
		m.lost++
		return memstore.LostReply
	}
	return memstore.Fault{}
}

// all returns all stores that there are.
func (m *records) all() (all []*memstore.Store) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.stores {
		all = append(all, s)
	}
	return all
}

func (m *records) Store(_ testing.TB, service string) idempotency.Store { return m.store(service) }

// Locks returns the store of the records.
func (m *records) Locks(testing.TB) core.Store { return m.store("interlock") }

func (m *records) LoseLock(_ testing.TB, key string) bool { return m.store("interlock").Expire(key) }

func (m *records) Count(_ testing.TB, service string) int { return len(m.store(service).Records()) }

func (m *records) Dump(testing.TB) string {
	var b strings.Builder
	for _, s := range m.all() {
		fmt.Fprintf(&b, "%+v\n", s.Records())
	}
	return b.String()
}

func (m *records) Waiting(testing.TB) (n int) {
	for _, s := range m.all() {
		for _, r := range s.Records() {
			n += r.Waiting
		}
	}
	return n
}

func (m *records) Empty(testing.TB) {
	for _, s := range m.all() {
		s.Empty()
	}
}

func (m *records) Lapse(testing.TB) {
	for _, s := range m.all() {
		s.LapseClaims()
	}
}

func (m *records) Damage(tb testing.TB) {
	tb.Helper()
	if n := m.store("interlock").DamageRecords(); n != 1 {
		tb.Fatalf("%d records", n)
	}
}

// Forget does nothing: there is no connection that could have a state.
func (m *records) Forget(testing.TB) {}

func (m *records) Kill(testing.TB) { m.setDown(true) }

func (m *records) Restart(testing.TB) { m.setDown(false) }

func (m *records) setDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = down
}

func (m *records) LoseClaim() { m.loseReply(memstore.Claim) }

func (m *records) LoseCommit() { m.loseReply(memstore.Commit) }

func (m *records) loseReply(to memstore.Op) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lose, m.lost = to, 0
}

func (m *records) Lost() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost
}

func (m *records) Pace() pace.Pace { return pace.Pace{} }

// Measure counts requests. Each is a round trip.
func (m *records) Measure(_ testing.TB, run func()) idemcases.Cost {
	count := func() (n int64) {
		for _, s := range m.all() {
			for _, op := range []memstore.Op{
				memstore.Acquire, memstore.Renew, memstore.Release,
				memstore.Claim, memstore.Extend, memstore.Mark, memstore.Commit, memstore.Abandon,
			} {
				n += int64(s.Requests(op))
			}
		}
		return n
	}
	before := count()
	run()
	n := count() - before
	return idemcases.Cost{Trips: n, Requests: n}
}

// Costs are claim and commit, and between them the mark. Under a lock there are its
// acquisition and its release too.
func (m *records) Costs() idemcases.Costs {
	of := func(n int64) idemcases.Cost { return idemcases.Cost{Trips: n, Requests: n} }
	return idemcases.Costs{Fresh: of(2), Marked: of(3), Locked: of(4), Replay: of(1), Conflict: of(1)}
}
