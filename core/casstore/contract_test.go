package casstore_test

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// open makes a store that is closed at the end of the test.
func open(t *testing.T, server casstore.Server, opts ...casstore.Option) *casstore.Store {
	t.Helper()
	store, err := casstore.New(server, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return store
}

func TestTheStoreKeepsItsContract(t *testing.T) {
	for name, meet := range map[string]func(*casstore.Txn) castest.Fault{
		"at once": func(*casstore.Txn) castest.Fault { return castest.Fault{} },
		"slow": func(*casstore.Txn) castest.Fault {
			return castest.Fault{Before: time.Millisecond, After: time.Millisecond}
		},
		"far": func(*casstore.Txn) castest.Fault {
			return castest.Fault{Before: 10 * time.Millisecond, After: 10 * time.Millisecond}
		},
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.RunInBubbles(t, func(t *testing.T) driver.Store {
				return open(t, &castest.Link{Server: castest.NewMemory(), Meet: meet, Lags: true, Apart: name == "far"})
			})
		})
	}
}
