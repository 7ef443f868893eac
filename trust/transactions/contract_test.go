package transactions

import (
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/storetest"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) idempotency.Store {
		_, store := open(t)
		return store
	})
}
