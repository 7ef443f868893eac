//go:build integration && long && unix

package conformance_test

import (
	"testing"

	"github.com/interlock-go/interlock/internal/frameworks"
	"github.com/interlock-go/interlock/internal/idemcases"
	"github.com/interlock-go/interlock/internal/redistest"
)

// TestIdempotentProcesses runs the table of what happens when a process is killed, or
// stopped for longer than its lease, in the middle of a request. It also is these
// processes.
func TestIdempotentProcesses(t *testing.T) {
	idemcases.RunProcesses(t, frameworks.Protocols, func(t *testing.T) (idemcases.Records, string) {
		srv := redistest.Start(t)
		return newRedis(t, srv), srv.Addr()
	}, func(t *testing.T, addr string) idemcases.Records { return connectRedis(t, addr) })
}
