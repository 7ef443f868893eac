package redisstore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestTheStoreKeepsItsContract(t *testing.T) {
	contract(t, redistest.Shared(t).Client(t))
}

func TestTheStoreKeepsItsContractOnACluster(t *testing.T) {
	contract(t, redistest.Cluster(t, 3, 0).Client(t))
}

func contract(t *testing.T, rdb redis.UniversalClient) {
	drivertest.Run(t, func(t *testing.T) driver.Store {
		store, err := redisstore.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Errorf("closing the store: %v", err)
			}
		})
		return store
	})
}
