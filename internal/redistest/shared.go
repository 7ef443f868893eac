package redistest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// shared is the server that the tests of one binary have in common.
var shared struct {
	mu     sync.Mutex
	tests  int // how many have called Common
	dir    string
	server *Server
}

// Main runs a package's tests, ends the shared server and then fails the package
// if goroutines leaked. It is the whole of a TestMain and does not return. The log
// of go-redis and slog.Default() meanwhile is shown only if a test fails.
//
// Tests on a server wait more than they work, so that four times as many run in parallel
// as there are cores, unless the flag -parallel says another number.
func Main(m *testing.M, opts ...goleak.Option) {
	// The flags of the caller are read later, and count.
	_ = flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0)))
	goleak.VerifyTestMain(withShared{m}, opts...)
}

// withShared ends the shared server between the tests and the leak check, which
// would otherwise find the goroutine that waits for the process.
type withShared struct{ m *testing.M }

// Run implements goleak.TestingM.
func (w withShared) Run() int {
	logs := keepLogs()
	code := w.m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "redistest:", err)
		code = max(code, 1)
	}
	if code != 0 {
		logs.show(os.Stderr)
	}
	return code
}

// Common returns the test binary's common server, and a name for the test that no other
// caller has: as the prefix of its store, or of its keys. The first call starts the server,
// [Main] ends it. Common flushes nothing, so it is for tests that run in parallel; they
// call it after t.Parallel, since [Shared] flushes for the tests before them. A test that
// kills, pauses or reconfigures its server, or counts the server's work, uses [Start].
func Common(tb testing.TB) (s *Server, name string) {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	s, err := sharedServer(tb.Context())
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	shared.tests++
	return s, fmt.Sprintf("test%d", shared.tests)
}

// Shared returns the same server with an empty database. Each call flushes all data, so
// it is not for tests that run in parallel with one another.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	s, err := sharedServer(ctx)
	if err == nil {
		err = s.adminWithin(ctx, once, func(rdb *redis.Client) error { return rdb.FlushAll(ctx).Err() })
	}
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return s
}

// sharedServer starts the shared server unless it runs. The caller has the mutex of it.
func sharedServer(ctx context.Context) (*Server, error) {
	if shared.server != nil {
		return shared.server, nil
	}
	// A test's own TempDir would go with the first test that calls.
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, err
	}
	s, err := start(ctx, newConfig(dir, nil))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	shared.dir, shared.server = dir, s
	return s, nil
}

func stopShared() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		return nil
	}
	shared.server.remove()
	shared.server = nil
	return os.RemoveAll(shared.dir)
}
