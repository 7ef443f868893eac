//go:build long && linux

package consensus_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/etcdstore"
)

// limit is for transactions where no fault is expected: a stall of the machine breaks none.
const limit = 30 * time.Second

func timeout(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

// pause is for polls.
func pause(d time.Duration) { <-time.After(d) }

// open makes a store that is closed at the end of the test.
func open(t *testing.T, client *clientv3.Client, opts ...casstore.Option) *etcdstore.Store {
	t.Helper()
	store, err := etcdstore.New(client, opts...)
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

func TestEtcdKeepsTheContractOfAServer(t *testing.T) {
	c := newCluster(t)
	castest.Run(t, func(*testing.T) casstore.Server { return etcdstore.Server(c.client()) })
}

func TestTheStoreOnEtcdKeepsItsContract(t *testing.T) {
	c := newCluster(t)
	client := c.client()
	drivertest.Run(t, func(t *testing.T) driver.Store { return open(t, client, casstore.Timeout(limit)) })
}
