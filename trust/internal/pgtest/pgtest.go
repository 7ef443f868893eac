//go:build unix

// Package pgtest starts a real PostgreSQL for tests.
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		db := pgtest.Open(t) // an empty schema of the test binary's server
//	}
//
// The server is a private process with its files in a temporary directory; it
// listens on a socket in there and on no port, writes nothing through to the disk,
// and trusts all who can reach the socket. Its programs, initdb and postgres, are
// looked for in the directory that INTERLOCK_POSTGRES_BIN names, on PATH, and
// where Debian puts them. Without them the tests fail.
//
// PostgreSQL refuses to run as root, so in tests that do it runs as the user
// postgres, or nobody. It does not outlive the test binary: [Main] stops it, and
// on Linux the kernel does when the binary itself dies.
package pgtest

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/trust/internal/child"
)

const (
	// binEnv names a directory with the server's programs.
	binEnv = "INTERLOCK_POSTGRES_BIN"
	// startTimeout bounds the start of a server, initdb included. It takes about
	// two seconds; the rest is for a busy machine.
	startTimeout = 60 * time.Second
	// stopTimeout is how long a server may take to shut down in good order.
	stopTimeout = 10 * time.Second
)

// shared is the server that the tests of one binary have in common.
var shared struct {
	mu     sync.Mutex
	server *server
	err    error
}

// schemas counts the schemas that were given to tests.
var schemas atomic.Int64

// Main runs a package's tests, ends the server and then fails the package if
// goroutines leaked. It is the whole of a TestMain and does not return.
func Main(m *testing.M, opts ...goleak.Option) { goleak.VerifyTestMain(withServer{m}, opts...) }

// withServer ends the server between the tests and the leak check, which would
// otherwise find the goroutine that waits for the process.
type withServer struct{ m *testing.M }

// Run implements goleak.TestingM.
func (w withServer) Run() int {
	code := w.m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for _, s := range []*server{shared.server, template.server} {
		if s == nil {
			continue
		}
		if err := s.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Open returns a database for this test: all its names belong to an empty schema.
// The test's cleanup closes it. The server is started by the first call; when none
// can be, the test fails.
func Open(tb testing.TB) *sql.DB {
	tb.Helper()
	s, schema := theServer(tb), "test"+strconv.FormatInt(schemas.Add(1), 10)
	db := s.open(schema)
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("PostgreSQL said:\n%s", s.Tail())
		}
		if err := db.Close(); err != nil {
			tb.Errorf("pgtest: %v", err)
		}
	})
	if _, err := db.ExecContext(tb.Context(), "CREATE SCHEMA "+schema); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	return db
}

// DSN returns the connection string for a database as [Open] opens it: with an empty schema,
// made for this test.
func DSN(tb testing.TB) string {
	tb.Helper()
	var schema string
	if err := Open(tb).QueryRowContext(tb.Context(), "SELECT current_schema()").Scan(&schema); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	return theServer(tb).dsn(schema)
}

func theServer(tb testing.TB) *server {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil && shared.err == nil { // else it was tried
		shared.server, shared.err = start("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=300")
	}
	if shared.err != nil {
		tb.Fatalf("pgtest: %v", shared.err)
	}
	return shared.server
}

// server is one PostgreSQL.
type server struct {
	*child.Daemon
	bin      string // the directory of its programs
	settings []string
}

// template is a database cluster that no server serves. To copy it takes a fifth of the
// work that makes one.
var template struct {
	sync.Once
	*server
	err error
}

// start makes a new database cluster, and serves it.
func start(settings ...string) (*server, error) {
	template.Do(func() {
		template.server, template.err = create(nil, func(s *server) error {
			return s.Run(filepath.Join(s.bin, "initdb"), "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
		})
	})
	if template.err != nil {
		return nil, template.err
	}
	return create(settings, func(s *server) error {
		if err := s.Run("/bin/cp", "-a", template.data(), s.data()); err != nil {
			return err
		}
		return s.serve()
	})
}

// create makes a server in a new directory.
func create(settings []string, fill func(s *server) error) (*server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	who, err := RunAs()
	if err != nil {
		return nil, err
	}
	d, err := child.NewDaemon("pgtest", who)
	if err != nil {
		return nil, err
	}
	s := &server{d, bin, settings}
	if err := fill(s); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *server) data() string { return filepath.Join(s.Dir, "data") }

// serve serves the database cluster that there is, and waits until it answers. SIGQUIT aborts
// it and removes its shared memory; SIGKILL would leave that.
func (s *server) serve() error {
	args := []string{"-D", s.data(), "-k", s.Dir, "-c", "listen_addresses=", "-c", "deadlock_timeout=100ms"}
	for _, set := range s.settings {
		args = append(args, "-c", set)
	}
	db := s.open("public")
	defer func() { _ = db.Close() }()
	return s.Launch(syscall.SIGQUIT, startTimeout, db.PingContext, filepath.Join(s.bin, "postgres"), args...)
}

// open returns a pool of connections that see one schema only.
func (s *server) open(schema string) *sql.DB {
	db, err := sql.Open("pgx", s.dsn(schema))
	if err != nil {
		panic(err) // the driver is imported
	}
	return db
}

func (s *server) dsn(schema string) string {
	return fmt.Sprintf("host=%s user=postgres dbname=postgres sslmode=disable search_path=%s", s.Dir, schema)
}

// stop ends the server in good order, for which clients are disconnected (SIGINT, "fast
// shutdown"), and removes its files.
func (s *server) stop() error {
	return errors.Join(s.End(os.Interrupt, stopTimeout), os.RemoveAll(s.Dir))
}

// programs returns the directory of initdb and postgres.
func programs() (string, error) {
	candidates := []string{os.Getenv(binEnv)}
	if candidates[0] == "" {
		candidates = filepath.SplitList(os.Getenv("PATH"))
		debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well-formed
		slices.Reverse(debian)
		candidates = append(candidates, debian...)
	}
	for _, dir := range candidates {
		missing := slices.ContainsFunc([]string{"initdb", "postgres"}, func(name string) bool {
			_, err := exec.LookPath(filepath.Join(dir, name))
			return err != nil
		})
		if !missing {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no initdb and postgres in %q: run ./scripts/test.sh, which installs them, or apt-get install postgresql", candidates)
}

// RunAs returns whom a program runs as that refuses to run as root, nil for the user of
// the test. The socket of the server is theirs.
func RunAs() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(err1, err2)
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
}
