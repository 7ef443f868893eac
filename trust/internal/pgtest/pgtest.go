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
// and trusts whoever can reach the socket. Its programs, initdb and postgres, are
// looked for in the directory that INTERLOCK_POSTGRES_BIN names, on PATH, and
// where Debian puts them. Without them the tests fail.
//
// PostgreSQL refuses to run as root, so in tests that do it runs as the user
// postgres, or nobody. It does not outlive the test binary: [Main] stops it, and
// on Linux the kernel does when the binary itself dies.
package pgtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"go.uber.org/goleak"
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

// schemas counts those that were given to tests.
var schemas atomic.Int64

// Main runs a package's tests, ends the server and then fails the package if
// goroutines leaked. It is the whole of a TestMain and does not return.
func Main(m *testing.M) { goleak.VerifyTestMain(withServer{m}) }

// withServer ends the server between the tests and the leak check, which would
// otherwise find the goroutine that waits for the process.
type withServer struct{ m *testing.M }

// Run implements goleak.TestingM.
func (w withServer) Run() int {
	code := w.m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server != nil {
		if err := shared.server.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Open returns a database in which all names are those of an empty schema, made
// for this test. The test's cleanup closes it. The server is started by the first
// call; when none can be, the test fails.
func Open(tb testing.TB) *sql.DB {
	tb.Helper()
	s, err := theServer()
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	schema := "test" + strconv.FormatInt(schemas.Add(1), 10)
	db := s.open(schema)
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("PostgreSQL said:\n%s", s.tail())
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

func theServer() (*server, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil && shared.err == nil { // else it was tried
		shared.server, shared.err = start("fsync=off", "synchronous_commit=off", "full_page_writes=off")
	}
	return shared.server, shared.err
}

// server is one PostgreSQL.
type server struct {
	bin      string // the directory of its programs
	who      *syscall.Credential
	settings []string
	dir      string // its files, its socket and its log
	cmd      *exec.Cmd
	done     chan struct{} // closed when the process has ended
}

// start makes a new database cluster, and serves it.
func start(settings ...string) (*server, error) {
	return create(settings, "initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
}

// create has a program make the files of a server, and serves them.
func create(settings []string, program string, args ...string) (*server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	who, err := runAs()
	if err != nil {
		return nil, err
	}
	// Not a test's TempDir, into which another user could not look.
	dir, err := os.MkdirTemp("", "pgtest-")
	if err != nil {
		return nil, err
	}
	s := &server{bin: bin, who: who, settings: settings, dir: dir}
	if err := s.run(program, args); err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, s.tail()), os.RemoveAll(dir))
	}
	return s, nil
}

func (s *server) run(program string, args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if s.who != nil {
		if err := os.Chown(s.dir, int(s.who.Uid), int(s.who.Gid)); err != nil {
			return err
		}
	}
	log, err := os.Create(s.logFile())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own copy, ours was never written to

	path := filepath.Join(s.bin, program)
	if server, err := filepath.EvalSymlinks(filepath.Join(s.bin, "postgres")); err == nil && program != "initdb" {
		path = filepath.Join(filepath.Dir(server), program) // bin may have links to some programs only
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"-D", s.data()}, args...)...)
	s.prepare(cmd, log)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return s.launch(ctx, log)
}

func (s *server) data() string { return filepath.Join(s.dir, "data") }

// prepare says how a program of the server runs.
func (s *server) prepare(cmd *exec.Cmd, log *os.File) {
	cmd.Dir = s.dir
	// An *os.File is handed to the child as it is; any other writer would cost
	// a copying goroutine that the leak check sees.
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes(s.who)
}

// launch serves the database cluster that there is.
func (s *server) launch(ctx context.Context, log *os.File) error {
	args := []string{"-D", s.data(), "-k", s.dir, "-c", "listen_addresses=", "-c", "deadlock_timeout=100ms"}
	for _, set := range s.settings {
		args = append(args, "-c", set)
	}
	s.cmd, s.done = exec.Command(filepath.Join(s.bin, "postgres"), args...), make(chan struct{})
	s.prepare(s.cmd, log)
	started := make(chan error, 1)
	go s.serve(started)
	if err := <-started; err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return errors.Join(err, s.end())
	}
	return nil
}

// serve starts the process and waits for it, both on one locked thread: Linux
// tells a child that its parent has died when the *thread* that forked ends
// (prctl(2), PR_SET_PDEATHSIG). Blocked in Wait, this one lives as long as the
// child.
func (s *server) serve(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(s.done)

	err := s.cmd.Start()
	started <- err
	if err == nil {
		_ = s.cmd.Wait() // the exit status of a server that was stopped says nothing
	}
}

// ready waits until the server answers.
func (s *server) ready(ctx context.Context) error {
	db := s.open("public")
	defer func() { _ = db.Close() }()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return errors.New("the server exited")
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-again.C:
		}
	}
}

// open returns a pool of connections to which a schema is the only one.
func (s *server) open(schema string) *sql.DB {
	db, err := sql.Open("pgx", s.dsn(schema))
	if err != nil {
		panic(err) // the driver is imported
	}
	return db
}

func (s *server) dsn(schema string) string {
	return fmt.Sprintf("host=%s user=postgres dbname=postgres sslmode=disable search_path=%s", s.dir, schema)
}

// stop ends the server in good order and removes its files.
func (s *server) stop() error { return errors.Join(s.end(), os.RemoveAll(s.dir)) }

// end ends the process: clients are disconnected (SIGINT, "fast shutdown"), and if
// that takes too long it is aborted.
func (s *server) end() error {
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-s.done:
		return nil
	case <-timer.C:
	}
	_ = s.cmd.Process.Kill() // fails only when it is gone already
	<-s.done
	return fmt.Errorf("PostgreSQL did not stop within %v", stopTimeout)
}

func (s *server) logFile() string { return filepath.Join(s.dir, "log") }

// tail returns the last lines of the log.
func (s *server) tail() string {
	said, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
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

// runAs returns whom the server runs as, nil for the user of the test.
func runAs() (*syscall.Credential, error) {
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
