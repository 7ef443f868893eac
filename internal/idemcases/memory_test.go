package idemcases_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/internal/frameworks/all"
	"github.com/interlock-go/interlock/internal/idemcases"
	"github.com/interlock-go/interlock/internal/idemcases/inmemory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An idempotent endpoint means the same in every framework, and on each store.
func TestIdempotent(t *testing.T) { idemcases.Run(t, all.Frameworks, inmemory.Open) }
