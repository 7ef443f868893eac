//go:build unix

package pgtest

import (
	"syscall"
	"testing"
)

// DSN returns the connection string of what [Open] opens: of an empty schema, made for
// this test.
func DSN(tb testing.TB) string {
	tb.Helper()
	var schema string
	if err := Open(tb).QueryRowContext(tb.Context(), "SELECT current_schema()").Scan(&schema); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	s, err := theServer()
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	return s.dsn(schema)
}

// RunAs returns whom a program runs as that refuses to run as root, nil for the user of
// the test. The socket of the server is theirs.
func RunAs() (*syscall.Credential, error) { return runAs() }

// Attributes has a program run as a user, and on Linux die with the test binary.
func Attributes(who *syscall.Credential) *syscall.SysProcAttr { return attributes(who) }
