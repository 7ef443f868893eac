package idemcases_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/idemcases"
	"github.com/interlock-go/interlock/internal/pace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An idempotent endpoint means the same in every framework, and on each store.
func TestIdempotent(t *testing.T) {
	idemcases.Run(t, func(*testing.T) idemcases.Records { return &memory{stores: make(map[string]*memstore.Store)} })
}

// memory is records in memory, a store for each service.
type memory struct {
	mu     sync.Mutex
	stores map[string]*memstore.Store
	down   bool
	lose   memstore.Op // the reply to the next request of this kind
	lost   int
}

func (m *memory) store(service string) *memstore.Store {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stores[service] == nil {
		m.stores[service] = memstore.New()
		m.stores[service].Intercept(m.fault)
	}
	return m.stores[service]
}

func (m *memory) fault(r memstore.Request) memstore.Fault {
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
func (m *memory) all() (all []*memstore.Store) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.stores {
		all = append(all, s)
	}
	return all
}

func (m *memory) Store(_ testing.TB, service string) idempotency.Store { return m.store(service) }

// Locks returns the store of the records.
func (m *memory) Locks(testing.TB) core.Store { return m.store("interlock") }

func (m *memory) LoseLock(_ testing.TB, key string) bool { return m.store("interlock").Expire(key) }

func (m *memory) Count(_ testing.TB, service string) int { return len(m.store(service).Records()) }

func (m *memory) Dump(testing.TB) string {
	var b strings.Builder
	for _, s := range m.all() {
		fmt.Fprintf(&b, "%+v\n", s.Records())
	}
	return b.String()
}

func (m *memory) Waiting(testing.TB) (n int) {
	for _, s := range m.all() {
		for _, r := range s.Records() {
			n += r.Waiting
		}
	}
	return n
}

func (m *memory) Empty(testing.TB) {
	for _, s := range m.all() {
		s.Empty()
	}
}

func (m *memory) Lapse(testing.TB) {
	for _, s := range m.all() {
		s.LapseClaims()
	}
}

func (m *memory) Damage(tb testing.TB) {
	tb.Helper()
	if n := m.store("interlock").DamageRecords(); n != 1 {
		tb.Fatalf("%d records", n)
	}
}

// Forget does nothing: there is no connection that could have a state.
func (m *memory) Forget(testing.TB) {}

func (m *memory) Kill(testing.TB) { m.setDown(true) }

func (m *memory) Restart(testing.TB) { m.setDown(false) }

func (m *memory) setDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = down
}

func (m *memory) LoseClaim() { m.loseReply(memstore.Claim) }

func (m *memory) LoseCommit() { m.loseReply(memstore.Commit) }

func (m *memory) loseReply(to memstore.Op) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lose, m.lost = to, 0
}

func (m *memory) Lost() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost
}

func (m *memory) Pace() pace.Pace { return pace.Pace{} }

// Measure counts requests. Each is a round trip.
func (m *memory) Measure(_ testing.TB, run func()) idemcases.Cost {
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
func (m *memory) Costs() idemcases.Costs {
	of := func(n int64) idemcases.Cost { return idemcases.Cost{Trips: n, Requests: n} }
	return idemcases.Costs{Fresh: of(2), Marked: of(3), Locked: of(4), Replay: of(1), Conflict: of(1)}
}
