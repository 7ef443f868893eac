package castest_test

import (
	"testing"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	memory := castest.NewMemory()
	castest.Run(t, func(*testing.T) casstore.Server { return memory })
}

func TestALinkWithoutFaultsKeepsTheContract(t *testing.T) {
	link := &castest.Link{Server: castest.NewMemory(), Meet: func(*casstore.Txn) castest.Fault { return castest.Fault{} }, Lags: true}
	castest.Run(t, func(*testing.T) casstore.Server { return link })
}
