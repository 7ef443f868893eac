package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// startTimeout bounds the start of one server. It takes 20 ms on an idle
	// machine; the rest is for a busy one.
	startTimeout = 20 * time.Second
	// startAttempts is the number of ports that are tried when others keep taking them.
	startAttempts = 5
	// stopTimeout bounds the time that a server takes to shut down in good order.
	stopTimeout = 5 * time.Second
)

var (
	errNoServer  = errors.New("no redis-server or valkey-server on PATH: run ./scripts/test.sh, which installs one, or apt-get install redis-server")
	errPortTaken = errors.New("port is taken")
)

// Server is one server process with a fixed address. Its methods are safe for
// concurrent use, except that those taking a testing.TB may fail the test and
// so belong to the test's own goroutine.
type Server struct {
	cfg  config
	port int
	bus  int // the Cluster bus port; 0 outside Cluster
	dir  string

	claims []net.PacketConn // of its ports; see claimPort

	mu   sync.Mutex
	proc *process // the current run, or the last one when the server is down
}

// Option changes how servers are started. The default is a server with
// --save "" and --appendonly no.
type Option func(*config)

// Args passes settings on to the server as on its command line, for example
// Args("--maxmemory", "10mb"). They come last and override the defaults. In a
// topology they go to each data server, not to the sentinels.
func Args(args ...string) Option {
	return func(c *config) { c.args = append(c.args, args...) }
}

// config is the configuration of a server. The topologies fill in more of it than options
// can.
type config struct {
	base     string // the parent of the servers' directories
	args     []string
	cluster  bool
	sentinel string // the content of a sentinel's configuration file
}

func newConfig(base string, opts []Option) config {
	c := config{base: base}
	for _, opt := range opts {
		opt(&c)
	}
	return c
}

// with returns c with settings that options still override.
func (c config) with(args ...string) config {
	c.args = append(args, c.args...)
	return c
}

// Start starts one server and returns once it answers; the test's cleanup kills
// it. The test fails when no server can be started.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	return startAll(tb, newConfig(tb.TempDir(), opts))[0]
}

// Independent starts n servers that know nothing of one another, as a quorum of
// masters needs them.
func Independent(tb testing.TB, n int, opts ...Option) []*Server {
	tb.Helper()
	cfgs := make([]config, n)
	base := tb.TempDir()
	for i := range cfgs {
		cfgs[i] = newConfig(base, opts)
	}
	return startAll(tb, cfgs...)
}

// startAll starts one server per configuration, side by side, and registers
// their cleanup. Any failure fails the test.
func startAll(tb testing.TB, cfgs ...config) []*Server {
	tb.Helper()
	servers := make([]*Server, len(cfgs))
	errs := make([]error, len(cfgs))
	var wg sync.WaitGroup
	for i, cfg := range cfgs {
		wg.Go(func() { servers[i], errs[i] = start(tb.Context(), cfg) })
	}
	wg.Wait()
	// Registered before the failure is reported: servers that did start must go.
	for _, s := range servers {
		if s != nil {
			tb.Cleanup(s.remove)
		}
	}
	if err := errors.Join(errs...); err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return servers
}

// start starts a server on a port that no other server has.
func start(ctx context.Context, cfg config) (*Server, error) {
	var err error
	for range startAttempts {
		s := &Server{cfg: cfg}
		if s.dir, err = os.MkdirTemp(cfg.base, "redis-"); err != nil {
			return nil, err
		}
		if err = s.claimPorts(); err == nil {
			err = s.run(ctx)
		}
		if err == nil {
			return s, nil
		}
		s.release()
		// Between choosing a port and binding it another program may have been faster:
		// only then another try helps.
		if !errors.Is(err, errPortTaken) {
			return nil, err
		}
	}
	return nil, err
}

// remove kills the server and gives its ports up.
func (s *Server) remove() {
	s.Kill()
	s.release()
}

// run starts the process at the server's port and waits until it answers. The
// error is errPortTaken when the port is another server's.
func (s *Server) run(ctx context.Context) error {
	prog, err := findProgram()
	if err != nil {
		return err
	}
	args, err := s.arguments(prog)
	if err != nil {
		return err
	}
	log, err := os.Create(s.logFile())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own copy, ours was never written to

	p, err := launch(prog.path, args, s.dir, log)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = poll(ctx, func(ctx context.Context) error {
		if p.dead() {
			return stop{errors.New("the server exited")}
		}
		return s.ready(ctx, p.pid())
	})
	if err == nil {
		return nil
	}
	p.kill()
	said, _ := os.ReadFile(s.logFile()) // only to explain err
	if bytes.Contains(said, []byte("ddress already in use")) {
		return fmt.Errorf("%w: %s", errPortTaken, s.Addr())
	}
	return fmt.Errorf("start %s at %s: %w\n%s", prog.path, s.Addr(), err, tail(said))
}

// arguments returns the command line.
func (s *Server) arguments(prog program) ([]string, error) {
	args := []string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir,
		"--daemonize", "no",
	}
	if s.cfg.sentinel != "" {
		// A sentinel keeps its state in its configuration file and does not start
		// without one. It is written anew for each run: a sentinel learns its
		// state of before a restart again from the others.
		file := filepath.Join(s.dir, "sentinel.conf")
		if err := os.WriteFile(file, []byte(s.cfg.sentinel), 0o600); err != nil {
			return nil, err
		}
		return append([]string{file, "--sentinel"}, args...), nil
	}
	args = append(args,
		"--save", "", "--appendonly", "no",
		// By default a master waits 5 s for more replicas before the first sync.
		"--repl-diskless-sync-delay", "0",
	)
	if prog.major >= 7 {
		args = append(args, "--enable-debug-command", "yes") // before 7 it is always on
	}
	if s.cfg.cluster {
		args = append(args, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(s.bus))
	}
	return append(args, s.cfg.args...), nil
}

// ready is nil once the server with this process id answers at the address. The
// id matters: when another test binary won the port, its server answers there
// just as well while ours is still failing to bind.
func (s *Server) ready(ctx context.Context, pid int) error {
	return s.admin(ctx, func(rdb *redis.Client) error {
		info, err := rdb.Info(ctx, "server").Result()
		if err != nil {
			return err
		}
		if got := infoField(info, "process_id"); got != strconv.Itoa(pid) {
			return fmt.Errorf("%s is served by process %s, not by ours, %d", s.Addr(), got, pid)
		}
		return rdb.Ping(ctx).Err() // INFO answers while a file is being loaded, PING does not
	})
}

// admin runs fn with a client on a connection that lives for this call: it works after a
// restart and leaves nothing for a test to stumble over. A poll gives an answer a
// second.
func (s *Server) admin(ctx context.Context, fn func(*redis.Client) error) error {
	return s.adminWithin(ctx, time.Second, fn)
}

// once is how long a request that is made once waits for its answer.
const once = 30 * time.Second

func (s *Server) adminWithin(ctx context.Context, wait time.Duration, fn func(*redis.Client) error) error {
	// Dialled here and not by go-redis, which logs every refusal: while a
	// server starts, being refused is nothing to report.
	dialer := net.Dialer{Timeout: wait}
	conn, err := dialer.DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{
		Dialer:                func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		Protocol:              2,
		DisableIdentity:       true,
		PoolSize:              1,
		MaxRetries:            -1, // poll tries again, and there is but one connection
		DialerRetries:         1,
		ReadTimeout:           wait,
		ContextTimeoutEnabled: true,
	})
	err = errors.Join(fn(rdb), rdb.Close())
	_ = conn.Close() // closed by the client already, if that ever used it
	return err
}

// Addr is the server's address, the same after every Restart.
func (s *Server) Addr() string { return address(s.port) }

// Dir is the server's working directory, where its log and any persistence
// files are; it is removed after the test.
func (s *Server) Dir() string { return s.dir }

// PID is the id of the server's process, of its last one while it is down.
func (s *Server) PID() int { return s.current().pid() }

func (s *Server) logFile() string { return filepath.Join(s.dir, "server.log") }

func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// Client returns a client of the server, closed by the test's cleanup. Each
// function may change its options.
func (s *Server) Client(tb testing.TB, change ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	o := &redis.Options{Addr: s.Addr()}
	for _, f := range change {
		f(o)
	}
	rdb := redis.NewClient(o)
	closeAfter(tb, rdb)
	return rdb
}

// closeAfter closes a client with the test; one the test has closed is fine.
func closeAfter(tb testing.TB, rdb redis.UniversalClient) {
	tb.Cleanup(func() {
		if err := rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			tb.Errorf("redistest: close client: %v", err)
		}
	})
}

// Kill ends the server as kill -9 does and returns when it is gone. Data that
// was not persisted is lost. Killing a server that is down does nothing.
func (s *Server) Kill() { s.current().kill() }

// Stop shuts the server down in good order and returns when it is gone; more than 5 s fail
// the test.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	p := s.current()
	s.send(tb, sigTerminate)
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
		tb.Fatalf("redistest: %s did not stop within %v", s.Addr(), stopTimeout)
	}
}

// Pause suspends the process: connections stay open, nothing is answered, and
// the server's clock runs on. It looks like a partition, or a host that hangs.
func (s *Server) Pause(tb testing.TB) {
	tb.Helper()
	s.send(tb, sigPause)
}

// Resume lets a paused process go on. It then answers the requests received meanwhile.
func (s *Server) Resume(tb testing.TB) {
	tb.Helper()
	s.send(tb, sigResume)
}

func (s *Server) send(tb testing.TB, sig os.Signal) {
	tb.Helper()
	if err := s.current().signal(sig); err != nil {
		tb.Fatalf("redistest: signal %v to %s: %v", sig, s.Addr(), err)
	}
}

// Restart kills the server if it runs and starts it again at the same address
// with the same settings, and returns once it answers. The data is gone unless
// Args switched persistence on.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Kill()
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	err := poll(ctx, func(ctx context.Context) error {
		err := s.run(ctx)
		if err != nil && !errors.Is(err, errPortTaken) {
			return stop{err}
		}
		return err // the address must not change, so a taken port is waited for
	})
	if err != nil {
		tb.Fatalf("redistest: restart: %v", err)
	}
}

// tail returns the last lines of a server's log.
func tail(log []byte) string {
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
