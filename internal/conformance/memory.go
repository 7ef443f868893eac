package conformance

import (
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

// Memory opens a store in memory.
func Memory(*testing.T, bool) Server { return memory{memstore.New()} }

type memory struct{ store *memstore.Store }

func (m memory) Store(testing.TB) core.Store { return m.store }

func (m memory) Held(_ testing.TB, key string) bool {
	_, _, held := m.store.Holder(key)
	return held
}

func (m memory) Lose(_ testing.TB, key string) bool { return m.store.Expire(key) }

func (m memory) CutOff(testing.TB) {
	m.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
}
