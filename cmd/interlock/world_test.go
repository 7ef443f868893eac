//go:build integration

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// tool returns the path of the tool, which is this program, and the environment for that.
func tool(tb testing.TB) (path, env string) {
	tb.Helper()
	path, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	return path, toolEnv + "=1"
}

func text(n int64) string { return strconv.FormatInt(n, 10) }

// servers are where the tool finds Redis, and a client of the same.
type servers struct {
	t    *testing.T
	rdb  redis.UniversalClient
	args []string // of the connection
	env  []string
}

// alone returns a new server.
func alone(t *testing.T) *servers {
	t.Helper()
	return of(t, redistest.Start(t))
}

// of returns one server.
func of(t *testing.T, srv *redistest.Server) *servers {
	t.Helper()
	return &servers{t: t, rdb: srv.Client(t), args: []string{"-addr", srv.Addr()}}
}

// topologies runs a test on each kind of servers.
func topologies(t *testing.T, test func(s *servers)) {
	t.Helper()
	t.Run("single", func(t *testing.T) { test(alone(t)) })
	t.Run("sentinel", func(t *testing.T) {
		set := redistest.Sentinel(t, 1)
		test(&servers{t: t, rdb: set.Client(t), args: []string{"-sentinel", set.Name, "-addr", strings.Join(set.Addrs(), ",")}})
	})
	t.Run("cluster", func(t *testing.T) {
		set := redistest.Cluster(t, 3, 0)
		test(&servers{t: t, rdb: set.Client(t), args: []string{"-cluster", "-addr", strings.Join(set.Addrs(), ",")}})
	})
}

// run calls the tool. Flags of the connection stand before the command.
func (s *servers) run(args ...string) ran {
	s.t.Helper()
	return s.input("", args...)
}

// input is run with a standard input.
func (s *servers) input(stdin string, args ...string) ran {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := s.command(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		s.t.Fatalf("interlock %q: %v, %v\n%s%s", args, err, ctx.Err(), &out, &stderr)
	}
	return ran{cmd.ProcessState.ExitCode(), out.String(), stderr.String()}
}

// command makes a call of the tool.
func (s *servers) command(ctx context.Context, args ...string) *exec.Cmd {
	s.t.Helper()
	path, env := tool(s.t)
	cmd := exec.CommandContext(ctx, path, append(append([]string(nil), s.args...), args...)...)
	cmd.Env = append([]string{env, "GORACE=atexit_sleep_ms=0", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, s.env...)
	return cmd
}

// want calls the tool, which must end with an exit code.
func (s *servers) want(code int, args ...string) ran {
	s.t.Helper()
	r := s.run(args...)
	if r.code != code {
		s.t.Fatalf("interlock %q: exit code %d, want %d\n%s%s", args, r.code, code, r.out, r.stderr)
	}
	return r
}

// decode reads the lines of JSON that a call has printed. Names that are not documented
// are an error.
func decode[T any](t *testing.T, r ran) (all []T) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(r.out))
	dec.DisallowUnknownFields()
	for {
		var v T
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, r.out)
		}
		all = append(all, v)
	}
}

// process makes a locker with its own store, as another process has.
func (s *servers) process(opts ...core.LockerOption) *core.Locker {
	s.t.Helper()
	store, err := redisstore.New(s.rdb)
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := core.New(store, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // locks that a test leaves held are lost
		_ = l.Close(ctx)
		_ = store.Close()
	})
	return l
}

func (s *servers) lock(l *core.Locker, key string, opts ...core.Option) *core.Lease {
	s.t.Helper()
	lease, err := l.Lock(s.t.Context(), key, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return lease
}

// until calls the tool again and again, until its output is right.
func (s *servers) until(right func(r ran) bool, args ...string) (r ran) {
	s.t.Helper()
	redistest.Eventually(s.t, time.Minute, func(context.Context) error {
		if r = s.run(args...); !right(r) {
			return fmt.Errorf("interlock %q: %+v", args, r)
		}
		return nil
	})
	return r
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}
