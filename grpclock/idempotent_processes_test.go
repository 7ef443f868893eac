//go:build unix

package grpclock_test

import (
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/idemtest"
)

func TestIdempotentProcesses(t *testing.T) {
	idemtest.RunProcesses(t, idempotency.GRPC, serveIdempotent)
}
