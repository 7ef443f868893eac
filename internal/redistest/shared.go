package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// shared is the server that the tests of one binary have in common.
var shared struct {
	mu      sync.Mutex
	dir     string
	server  *Server
	example *redis.Client // the examples' client; no testing.TB closes it
}

// Main runs a package's tests, ends the shared server and then fails the
// package if goroutines leaked. It is the whole of a TestMain and does not
// return. What go-redis and slog.Default() log meanwhile is shown only if a test
// fails.
func Main(m *testing.M, opts ...goleak.Option) {
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

// Shared returns the test binary's common server with an empty database. It is
// started by the first call and ended by [Main]. Each call flushes all data, so
// it is not for tests that run in parallel with one another, nor for those that
// kill, pause or reconfigure their server: those use [Start].
func Shared(tb testing.TB) *Server {
	tb.Helper()
	s, err := sharedServer()
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return s
}

// ExampleClient returns a client of the [Shared] server with an empty database
// to Example functions, which have no testing.TB to fail or to clean up with.
// [Main] closes it. It panics when there is no server.
func ExampleClient() *redis.Client {
	s, err := sharedServer()
	if err != nil {
		panic("redistest: " + err.Error())
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.example == nil {
		shared.example = redis.NewClient(&redis.Options{Addr: s.Addr()})
	}
	return shared.example
}

func sharedServer() (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
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
	}
	s := shared.server
	return s, s.adminWithin(ctx, once, func(rdb *redis.Client) error { return rdb.FlushAll(ctx).Err() })
}

func stopShared() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		return nil
	}
	var err error
	if shared.example != nil {
		err = shared.example.Close()
	}
	shared.server.remove()
	err = errors.Join(err, os.RemoveAll(shared.dir))
	shared.server, shared.example = nil, nil
	return err
}
