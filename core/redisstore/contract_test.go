//go:build integration

package redisstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/idempotency/record/recordtest"
	"github.com/interlock-go/interlock/core/redisstore"
)

// The contract has all its parts.
var _ interface {
	driver.Turns
	driver.Registry
	driver.Lister
} = (*redisstore.Store)(nil)

func TestTheStoreKeepsItsContract(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) driver.Store { return common(t).store() })
}

func TestTheStoreKeepsTheContractOfRecords(t *testing.T) {
	t.Parallel()
	recordtest.Run(t, func(t *testing.T) record.Store { return common(t).store() })
}

// room is who has a lock, as seen outside of Redis.
type room struct {
	mu               sync.Mutex
	readers, writers int
	token            int64
}

// enter adds a holder, and reports a broken rule about the holders inside, if there is
// one. At most n may share it; zero is any number.
func (r *room) enter(lease *core.Lease, writes bool, n int) (wrong string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if writes {
		if r.writers++; r.token >= lease.Token() {
			wrong = fmt.Sprintf("token %d after %d", lease.Token(), r.token)
		}
		r.token = lease.Token()
	} else {
		r.readers++
	}
	if r.writers > 1 || r.writers > 0 && r.readers > 0 || n > 0 && r.readers > n {
		wrong = fmt.Sprintf("%d writers and %d readers", r.writers, r.readers)
	}
	return wrong
}

func (r *room) leave(writes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if writes {
		r.writers--
	} else {
		r.readers--
	}
}

// share has goroutines of each process take some keys in turn. At most n are inside
// together: 1, the number of permits, or 0 for any number of readers without a writer.
func (w *world) share(lockers []*core.Locker, keys []string, each, n int) {
	w.t.Helper()
	rooms := map[string]*room{}
	for _, key := range keys {
		rooms[key] = &room{}
	}
	var all sync.WaitGroup
	var turn atomic.Int64
	for _, l := range lockers {
		for range 8 {
			all.Go(func() {
				for range each {
					i := int(turn.Add(1))
					key := keys[i%len(keys)]
					var opts []core.Option
					switch writes := i%4 == 0; {
					case n == 0 && !writes:
						opts = []core.Option{core.Shared()}
					case n > 1:
						opts = []core.Option{core.Permits(n)}
					}
					lease, err := l.Lock(w.t.Context(), key, opts...)
					if err != nil {
						w.t.Errorf("Lock(%q): %v", key, err)
						return
					}
					if wrong := rooms[key].enter(lease, opts == nil, n); wrong != "" {
						w.t.Errorf("inside %q: %s", key, wrong)
					}
					rooms[key].leave(opts == nil)
					w.release(lease)
				}
			})
		}
	}
	all.Wait()
}

// As many stores as processes have: each with separate connections.
func TestSeveralStoresExcludeEachOther(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"locks": 1, "permits": 3, "readers and writers": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := common(t)
			w.share([]*core.Locker{w.process(), w.process(), w.process()}, []string{"a", "b", "c"}, 25, n)
			w.gone()
		})
	}
}
