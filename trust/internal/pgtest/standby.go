//go:build unix

package pgtest

import (
	"context"
	"database/sql"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Standby starts a standby of the server, and waits until the server streams to it. The
// test's cleanup ends it. settings are its parameters, as of [Start]: the parameters of the server
// are not copied.
//
// A server with synchronous_standby_names=* answers no commit before it has a standby.
func (s *Server) Standby(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	made, err := create(settings, func(made *server) error {
		path := filepath.Join(s.bin, "pg_basebackup")
		if server, err := filepath.EvalSymlinks(filepath.Join(s.bin, "postgres")); err == nil {
			path = filepath.Join(filepath.Dir(server), "pg_basebackup") // bin may have links to some programs only
		}
		if err := made.Run(path, "-D", made.data(),
			"-R", "-X", "stream", "-c", "fast", "--no-sync", "-h", s.Dir, "-U", "postgres"); err != nil {
			return err
		}
		return made.serve()
	})
	standby := keep(tb, made, err)
	s.wait(tb, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming')")
	return standby
}

// Detach has a standby of the server get no later commits. The standby goes on without it,
// and can be promoted.
func (s *Server) Detach(tb testing.TB, standby *Server) {
	tb.Helper()
	db := standby.open("public")
	defer func() { _ = db.Close() }()
	for _, text := range []string{"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"} {
		if _, err := db.ExecContext(tb.Context(), text); err != nil {
			tb.Fatalf("pgtest: %v", err)
		}
	}
	s.wait(tb, "SELECT NOT EXISTS (SELECT FROM pg_stat_replication)")
}

// Attach has a standby of the server stream again after [Server.Detach], and waits until it
// does.
func (s *Server) Attach(tb testing.TB, standby *Server) {
	tb.Helper()
	db := standby.open("public")
	defer func() { _ = db.Close() }()
	for _, text := range []string{"ALTER SYSTEM SET primary_conninfo = 'host=" + s.Dir + " user=postgres'", "SELECT pg_reload_conf()"} {
		if _, err := db.ExecContext(tb.Context(), text); err != nil {
			tb.Fatalf("pgtest: %v", err)
		}
	}
	s.wait(tb, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming')")
}

// Promote makes a standby an independent server, and waits until it takes writes. End
// its primary before that ([Server.Abort]): nothing else keeps it from taking writes,
// too.
func (s *Server) Promote(tb testing.TB) {
	tb.Helper()
	s.wait(tb, "SELECT pg_promote(true, 60)")
}

// wait asks the server until it answers true.
func (s *Server) wait(tb testing.TB, query string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	db := s.open("public")
	defer func() { _ = db.Close() }()
	for {
		var met bool
		if err := db.QueryRowContext(ctx, query).Scan(&met); err != nil {
			tb.Fatalf("pgtest: %s: %v", query, err)
		}
		if met {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Route leads the connections of pools to one server, as a name in the DNS or a proxy
// does. [Route.To] changes it for connections that are made later. A Route is safe for
// concurrent use.
type Route struct{ to atomic.Pointer[Server] }

// NewRoute returns a route to a server.
func NewRoute(s *Server) *Route {
	r := new(Route)
	r.To(s)
	return r
}

// To leads new connections to a server.
func (r *Route) To(s *Server) { r.to.Store(s) }

// Open returns a pool of connections over the route. The test's cleanup closes it.
func (r *Route) Open(tb testing.TB) *sql.DB {
	tb.Helper()
	config, err := pgx.ParseConfig(r.to.Load().DSN())
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, filepath.Join(r.to.Load().Dir, filepath.Base(addr)))
	}
	db := stdlib.OpenDB(*config)
	tb.Cleanup(func() { _ = db.Close() })
	return db
}
