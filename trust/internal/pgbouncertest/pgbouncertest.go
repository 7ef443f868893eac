//go:build unix

// Package pgbouncertest starts a real PgBouncer for tests.
//
// It is a private process in front of the server of package pgtest. Its files are in a
// temporary directory, it listens on a socket in there and on no port, and lets every
// client in. The program is named by INTERLOCK_PGBOUNCER, else it is pgbouncer on PATH
// or where Debian puts it. Without it the tests fail.
//
// PgBouncer refuses to run as root, so in tests that do it runs as the server does. It
// ends with the test, and on Linux when the test binary dies.
package pgbouncertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-go/interlock/trust/internal/child"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// The modes of a pool say for how long a client has a connection to the server for
// itself: until it disconnects, for a transaction, for a statement.
const (
	Session     = "session"
	Transaction = "transaction"
	Statement   = "statement"
)

const (
	// programEnv names the program.
	programEnv = "INTERLOCK_PGBOUNCER"
	// startTimeout bounds the start, which takes some milliseconds; the rest is for a
	// busy machine.
	startTimeout = 30 * time.Second
	// port is the number in the name of the socket.
	port = 6432
)

// roles counts the roles that were made.
var roles atomic.Int64

// Start starts a PgBouncer in front of a database, in a mode, and returns the
// connection string of the same schema through it. The test's cleanup ends it. settings
// are lines for its section [pgbouncer], as "default_pool_size = 2"; the last of one
// name counts.
//
// Its clients are a separate user, a superuser too: PgBouncer does not pass on which schema a
// client wants, so the schema of the user is theirs.
//
// In other modes than [Session] the connection string has pgx prepare no statements:
// the next one may run on another connection of the server.
func Start(tb testing.TB, dsn, mode string, settings ...string) string {
	tb.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		tb.Fatalf("pgbouncertest: %v", err)
	}
	schema := config.RuntimeParams["search_path"]
	config.User = fmt.Sprintf("%s_%d", schema, roles.Add(1))
	if err := makeUser(tb.Context(), dsn, config.User, schema); err != nil {
		tb.Fatalf("pgbouncertest: %v", err)
	}
	b, err := start(config, append([]string{"pool_mode = " + mode}, settings...))
	if err != nil {
		tb.Fatalf("pgbouncertest: %v", err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("PgBouncer said:\n%s", b.Tail())
		}
		b.Kill() // it keeps nothing
		if err := os.RemoveAll(b.Dir); err != nil {
			tb.Errorf("pgbouncertest: %v", err)
		}
	})
	through := b.dsn(config)
	if mode != Session {
		through += " default_query_exec_mode=exec"
	}
	return through
}

// makeUser makes a user with a schema for its connections.
func makeUser(ctx context.Context, dsn, user, schema string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("CREATE ROLE %[1]s SUPERUSER LOGIN; ALTER ROLE %[1]s SET search_path TO %[2]s", user, schema))
	return errors.Join(err, conn.Close(ctx))
}

// bouncer is one PgBouncer.
type bouncer struct{ *child.Daemon }

func start(config *pgx.ConnConfig, settings []string) (*bouncer, error) {
	program, err := program()
	if err != nil {
		return nil, err
	}
	who, err := pgtest.RunAs()
	if err != nil {
		return nil, err
	}
	d, err := child.NewDaemon("pgbouncertest", who)
	if err != nil {
		return nil, err
	}
	b := &bouncer{d}
	file := filepath.Join(b.Dir, "pgbouncer.ini") // without a secret: another user reads it
	err = os.WriteFile(file, []byte(b.ini(config, settings)), 0o644)
	if err == nil {
		err = b.Launch(syscall.SIGKILL, startTimeout, func(ctx context.Context) error {
			conn, err := pgx.Connect(ctx, b.dsn(config))
			if err != nil {
				return err
			}
			return errors.Join(conn.Ping(ctx), conn.Close(ctx))
		}, program, file)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(b.Dir))
	}
	return b, nil
}

// ini is the configuration for a database and some settings.
func (b *bouncer) ini(config *pgx.ConnConfig, settings []string) string {
	return fmt.Sprintf(`[databases]
%s = host=%s port=%d dbname=%s user=%s
[pgbouncer]
unix_socket_dir = %s
listen_port = %d
auth_type = any
ignore_startup_parameters = search_path,extra_float_digits
max_client_conn = 1000
%s
`, config.Database, config.Host, config.Port, config.Database, config.User,
		b.Dir, port, strings.Join(settings, "\n"))
}

func (b *bouncer) dsn(config *pgx.ConnConfig) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable", b.Dir, port, config.User, config.Database)
}

// program returns the path of PgBouncer. Debian puts it where only root looks.
func program() (string, error) {
	candidates := []string{os.Getenv(programEnv)}
	if candidates[0] == "" {
		candidates = []string{"pgbouncer", "/usr/sbin/pgbouncer"}
	}
	for _, name := range candidates {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no pgbouncer as %q: run ./scripts/test.sh, which installs it, or apt-get install pgbouncer", candidates)
}
