//go:build unix

package pgtest

import (
	"database/sql"
	"syscall"
	"testing"
)

// Server is the PostgreSQL of one test, which the test can kill and start again. Unlike
// the server that tests share, it writes through to the disk.
type Server struct{ *server }

// Start starts a server; the test's cleanup ends it. settings are more of its parameters,
// as "name=value".
func Start(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s, err := start(settings...)
	return keep(tb, s, err)
}

// keep gives a server that was started to a test.
func keep(tb testing.TB, s *server, err error) *Server {
	tb.Helper()
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("PostgreSQL said:\n%s", s.Tail())
		}
		if err := s.stop(); err != nil {
			tb.Errorf("pgtest: %v", err)
		}
	})
	return &Server{s}
}

// DSN says how to connect to the server, for the driver pgx.
func (s *Server) DSN() string { return s.dsn("public") }

// Open returns a pool of connections to the server. The test's cleanup closes it.
func (s *Server) Open(tb testing.TB) *sql.DB {
	tb.Helper()
	db := s.open("public")
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// Abort ends the server at once, without a checkpoint: it has to recover when it starts
// again ("immediate shutdown").
func (s *Server) Abort(tb testing.TB) {
	tb.Helper()
	if err := s.Process.Process.Signal(syscall.SIGQUIT); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	<-s.Done
}

// Restart starts the server again after [Server.Abort], and waits until it answers.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	if err := s.serve(); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
}
