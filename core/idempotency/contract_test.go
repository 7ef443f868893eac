package idempotency_test

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/idempotency/record/recordtest"
)

func TestTheStoreOfTheseTestsKeepsTheContract(t *testing.T) {
	recordtest.Run(t, func(*testing.T) record.Store { return newFake() })
}

// A store whose requests take time goes another way, and keeps the contract too.
func TestTheStoreOfTheseTestsKeepsTheContractWhenItIsSlow(t *testing.T) {
	recordtest.Run(t, func(*testing.T) record.Store {
		store := newFake()
		store.onCall(func(call) fault { return fault{before: time.Millisecond / 2, after: time.Millisecond / 2} })
		return store
	})
}
