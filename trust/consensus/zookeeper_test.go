//go:build long && linux

package consensus_test

import (
	"testing"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/zkstore"
)

func TestZooKeeperKeepsTheContractOfAServer(t *testing.T) {
	e := newEnsemble(t)
	castest.Run(t, func(t *testing.T) casstore.Server { return zkstore.Server(e.conn()) })
}

func TestTheStoreOnZooKeeperKeepsItsContract(t *testing.T) {
	e := newEnsemble(t)
	conn := e.conn()
	drivertest.Run(t, func(t *testing.T) driver.Store {
		store, err := zkstore.New(conn, casstore.Timeout(limit))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		return store
	})
}
