//go:build long && unix

package postgres_test

import (
	"testing"

	"github.com/interlock-go/interlock/internal/frameworks"
	"github.com/interlock-go/interlock/internal/idemcases"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// TestIdempotentProcessesOnPostgreSQL kills and stops processes. It also is these
// processes.
func TestIdempotentProcessesOnPostgreSQL(t *testing.T) {
	idemcases.RunProcesses(t, frameworks.Protocols, func(t *testing.T) (idemcases.Records, string) {
		dsn := pgtest.DSN(t)
		return openRecords(t, dsn), dsn
	}, func(t *testing.T, dsn string) idemcases.Records { return openRecords(t, dsn) })
}
