package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/idempotency/record/recordtest"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestTheStoreKeepsItsContract(t *testing.T) {
	drivertest.Run(t, opener(redistest.Shared(t).Client(t)))
}

func TestTheStoreKeepsItsContractOnACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.Cluster(t, 3, 0).Client(t)
	drivertest.Run(t, opener(rdb))
	drivertest.RunPlaces(t, opener(rdb))
	recordtest.Run(t, func(t *testing.T) record.Store { return newStore(t, rdb, redisstore.Timeout(10*time.Second)) })
}

func TestTheStoreKeepsTheContractOfPlaces(t *testing.T) {
	t.Parallel()
	drivertest.RunPlaces(t, opener(redistest.Start(t).Client(t)))
}

func TestTheStoreKeepsTheContractOfRecords(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	recordtest.Run(t, func(t *testing.T) record.Store { return newStore(t, rdb, redisstore.Timeout(10*time.Second)) })
}

// opener returns what opens a store over a client.
func opener(rdb redis.UniversalClient) func(t *testing.T) driver.Store {
	return func(t *testing.T) driver.Store {
		store, err := redisstore.New(rdb, redisstore.Timeout(10*time.Second)) // with a second try, an answer is called ambiguous
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Errorf("closing the store: %v", err)
			}
		})
		return store
	}
}
