//go:build long

package transactions

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/idempotency/record/recordtest"
	"github.com/interlock-go/interlock/core/pgstore"
)

func TestContract(t *testing.T) {
	recordtest.Run(t, func(t *testing.T) record.Store {
		// One that is tried again has an answer that is called ambiguous.
		_, store := open(t, pgstore.Timeout(10*time.Second))
		return store
	})
}
