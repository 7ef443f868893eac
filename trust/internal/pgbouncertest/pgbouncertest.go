//go:build unix

// Package pgbouncertest starts a real PgBouncer for tests.
//
//	direct := pgtest.DSN(t)
//	pooled := pgbouncertest.Start(t, direct, pgbouncertest.Transaction)
//
// It is a private process in front of the server of package pgtest. Its files are in a
// temporary directory, it listens on a socket in there and on no port, and lets every
// client in. The program is the one that INTERLOCK_PGBOUNCER names, else pgbouncer on
// PATH or where Debian puts it. Without it the tests fail.
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
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// roles counts those that were made.
var roles atomic.Int64

// Start starts a PgBouncer in front of a database, in one of the modes, and returns the
// connection string of the same schema through it. The test's cleanup ends it. settings
// are lines for its section [pgbouncer], as "default_pool_size = 2"; the last of one
// name counts.
//
// Its clients are a user of their own, a superuser too: PgBouncer does not pass on
// which schema a client wants, so that of the user is theirs.
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
			tb.Logf("PgBouncer said:\n%s", b.tail())
		}
		if err := b.stop(); err != nil {
			tb.Errorf("pgbouncertest: %v", err)
		}
	})
	through := b.dsn(config)
	if mode != Session {
		through += " default_query_exec_mode=exec"
	}
	return through
}

// makeUser makes a user whose connections begin with a schema.
func makeUser(ctx context.Context, dsn, user, schema string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("CREATE ROLE %[1]s SUPERUSER LOGIN; ALTER ROLE %[1]s SET search_path TO %[2]s", user, schema))
	return errors.Join(err, conn.Close(ctx))
}

// bouncer is one PgBouncer.
type bouncer struct {
	dir  string // its file, its socket and its log
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

func start(config *pgx.ConnConfig, settings []string) (*bouncer, error) {
	program, err := program()
	if err != nil {
		return nil, err
	}
	// Not a test's TempDir, into which another user could not look.
	dir, err := os.MkdirTemp("", "pgbouncertest-")
	if err != nil {
		return nil, err
	}
	b := &bouncer{dir: dir, done: make(chan struct{})}
	if err := b.run(program, config, settings); err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, b.tail()), os.RemoveAll(dir))
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
		b.dir, port, strings.Join(settings, "\n"))
}

func (b *bouncer) dsn(config *pgx.ConnConfig) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable", b.dir, port, config.User, config.Database)
}

func (b *bouncer) run(program string, config *pgx.ConnConfig, settings []string) error {
	who, err := pgtest.RunAs()
	if err != nil {
		return err
	}
	if who != nil {
		if err := os.Chown(b.dir, int(who.Uid), int(who.Gid)); err != nil {
			return err
		}
	}
	file := filepath.Join(b.dir, "pgbouncer.ini") // without a secret: another user reads it
	if err := os.WriteFile(file, []byte(b.ini(config, settings)), 0o644); err != nil {
		return err
	}
	log, err := os.Create(b.logFile())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own copy, ours was never written to
	b.cmd = exec.Command(program, file)
	b.cmd.Dir = b.dir
	b.cmd.Stdout, b.cmd.Stderr = log, log // as files, which take no goroutine to copy
	b.cmd.SysProcAttr = pgtest.Attributes(who)
	started := make(chan error, 1)
	go b.serve(started)
	if err := <-started; err != nil {
		return err
	}
	if err := b.ready(config); err != nil {
		return errors.Join(err, b.end())
	}
	return nil
}

// serve starts the process and waits for it, both on one locked thread: Linux tells a
// child that its parent has died when the thread that forked ends (prctl(2),
// PR_SET_PDEATHSIG).
func (b *bouncer) serve(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(b.done)

	err := b.cmd.Start()
	started <- err
	if err == nil {
		_ = b.cmd.Wait() // it is killed in the end
	}
}

// ready waits until a statement goes through.
func (b *bouncer) ready(config *pgx.ConnConfig) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		conn, err := pgx.Connect(ctx, b.dsn(config))
		if err == nil {
			return errors.Join(conn.Ping(ctx), conn.Close(ctx))
		}
		select {
		case <-b.done:
			return errors.New("PgBouncer exited")
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-again.C:
		}
	}
}

// stop ends the process and removes its files.
func (b *bouncer) stop() error { return errors.Join(b.end(), os.RemoveAll(b.dir)) }

// end ends the process, which keeps nothing.
func (b *bouncer) end() error {
	err := b.cmd.Process.Kill()
	<-b.done
	if errors.Is(err, os.ErrProcessDone) {
		return errors.New("PgBouncer ended by itself")
	}
	return err
}

func (b *bouncer) logFile() string { return filepath.Join(b.dir, "log") }

// tail returns the last lines of the log.
func (b *bouncer) tail() string {
	said, err := os.ReadFile(b.logFile())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
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
