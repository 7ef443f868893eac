package transactions

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/storetest"
	"github.com/interlock-go/interlock/core/pgstore"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) idempotency.Store {
		// One that is tried again has an answer that is called ambiguous.
		_, store := open(t, pgstore.Timeout(10*time.Second))
		return store
	})
}
