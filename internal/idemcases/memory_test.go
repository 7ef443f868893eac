package idemcases_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core/idempotency/endpoint/endpointtest"
	"github.com/interlock-go/interlock/internal/frameworks/all"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An idempotent endpoint means the same in every framework, and on each store.
func TestIdempotent(t *testing.T) { endpointtest.Run(t, all.Frameworks...) }
