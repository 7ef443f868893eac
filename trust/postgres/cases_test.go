//go:build integration && unix

package postgres_test

import (
	"testing"

	"github.com/interlock-go/interlock/internal/frameworks"
	"github.com/interlock-go/interlock/internal/idemcases"
)

// TestIdempotentOnPostgreSQL has the effects of handlers outside of PostgreSQL.
func TestIdempotentOnPostgreSQL(t *testing.T) {
	open := opener(t)
	idemcases.RunOn(t, frameworks.Protocols, func(t *testing.T, s idemcases.Server) idemcases.Records { return open(t, s) })
}

// TestIdempotentInTransactions has them in the transaction that stores the answer.
func TestIdempotentInTransactions(t *testing.T) {
	open := opener(t)
	idemcases.RunInTransactions(t, frameworks.Protocols, func(t *testing.T, s idemcases.Server) idemcases.Transactions {
		return inTransactions(t, open(t, s))
	})
}
