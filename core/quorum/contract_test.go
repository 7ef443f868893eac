package quorum_test

import (
	"testing"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
)

func TestTheStoreKeepsItsContract(t *testing.T) {
	nodes := newGroup(t, 3)
	drivertest.Run(t, func(t *testing.T) driver.Store { return nodes.store(t) })
}
