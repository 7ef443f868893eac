package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

// host lets redistest start its servers outside of a test: it is as much of a
// testing.TB as that needs. What it does not have panics, which startServer turns
// into an error.
type host struct {
	testing.TB
	ctx      context.Context
	dir      string
	cleanups []func()
}

func (h *host) Helper()                  {}
func (h *host) Context() context.Context { return h.ctx }
func (h *host) TempDir() string          { return h.dir }
func (h *host) Cleanup(f func())         { h.cleanups = append(h.cleanups, f) }

func (h *host) Fatalf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }

// server is a private Redis server and a directory beside it.
type server struct {
	*redistest.Server
	host *host
	rdb  *redis.Client
}

func startServer(ctx context.Context) (s *server, err error) {
	dir, err := os.MkdirTemp("", "interlock-bench-")
	if err != nil {
		return nil, err
	}
	s = &server{host: &host{ctx: ctx, dir: dir}}
	defer func() {
		if failure := recover(); failure != nil {
			s.stop()
			s, err = nil, fmt.Errorf("starting a server: %v", failure)
		}
	}()
	s.Server = redistest.Start(s.host) //nolint:contextcheck // it takes the host's
	s.rdb = redis.NewClient(&redis.Options{Addr: s.Addr()})
	return s, nil
}

func (s *server) stop() {
	if s.rdb != nil {
		_ = s.rdb.Close() // the server goes as well
	}
	for _, f := range s.host.cleanups {
		f()
	}
	_ = os.RemoveAll(s.host.dir) // it is in the system's temporary directory
}

// load is what the server has done since it started.
type load struct {
	at       time.Time
	commands int64
	cpu      time.Duration
}

// load reads INFO. Every command counts, the commands of scripts too; INFO itself
// does not.
func (s *server) load(ctx context.Context) (l load, err error) {
	l.at = time.Now()
	info, err := s.rdb.Info(ctx, "all").Result()
	if err != nil {
		return l, err
	}
	lines := bufio.NewScanner(strings.NewReader(info))
	var failures error
	number := func(text string) float64 {
		n, err := strconv.ParseFloat(text, 64)
		failures = errors.Join(failures, err)
		return n
	}
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch {
		case name == "used_cpu_user", name == "used_cpu_sys":
			l.cpu += time.Duration(number(value) * float64(time.Second))
		case strings.HasPrefix(name, "cmdstat_") && name != "cmdstat_info":
			// cmdstat_evalsha:calls=12,usec=345,...
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			l.commands += int64(number(calls))
		}
	}
	return l, errors.Join(failures, lines.Err())
}
