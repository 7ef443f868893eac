//go:build integration && unix

package postgres_test

import (
	"testing"

	"github.com/interlock-go/interlock/internal/idemcases"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// TestIdempotentOnPostgreSQL has the effects of handlers outside of PostgreSQL.
func TestIdempotentOnPostgreSQL(t *testing.T) {
	open := opener(t)
	idemcases.RunOn(t, func(t *testing.T, s idemcases.Server) idemcases.Records { return open(t, s) })
}

// TestIdempotentInTransactions has them in the transaction that stores the answer.
func TestIdempotentInTransactions(t *testing.T) {
	open := opener(t)
	idemcases.RunInTransactions(t, func(t *testing.T, s idemcases.Server) idemcases.Transactions {
		return inTransactions(t, open(t, s))
	})
}

// TestIdempotentProcessesOnPostgreSQL kills and stops processes. It also is these
// processes.
func TestIdempotentProcessesOnPostgreSQL(t *testing.T) {
	idemcases.RunProcesses(t, func(t *testing.T) (idemcases.Records, string) {
		dsn := pgtest.DSN(t)
		return openRecords(t, dsn), dsn
	}, func(t *testing.T, dsn string) idemcases.Records { return openRecords(t, dsn) })
}
