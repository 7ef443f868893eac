package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/bench/rig"
	"github.com/interlock-go/interlock/internal/redistest"
)

// server is a private Redis server with its directory.
type server struct {
	*redistest.Server
	dir string
	end func()
	rdb *redis.Client
}

func startServer(ctx context.Context) (*server, error) {
	s := &server{}
	var err error
	s.dir, s.end, err = rig.Start(ctx, func(tb testing.TB) { s.Server = redistest.Start(tb) })
	if err != nil {
		return nil, err
	}
	s.rdb = redis.NewClient(&redis.Options{Addr: s.Addr()})
	return s, nil
}

func (s *server) stop() {
	_ = s.rdb.Close() // the server goes as well
	s.end()
}

// load is the work of the server since its start.
type load struct {
	at       time.Time
	commands int64
	cpu      time.Duration
}

// load reads INFO. Every command counts, the commands of scripts too; INFO itself
// does not.
func (s *server) load(ctx context.Context) (l load, err error) {
	l.at = time.Now()
	var failures error
	number := func(text string) float64 {
		n, err := strconv.ParseFloat(text, 64)
		failures = errors.Join(failures, err)
		return n
	}
	_, err = rig.Info(ctx, s.rdb, func(name, value string) {
		switch {
		case name == "used_cpu_user", name == "used_cpu_sys":
			l.cpu += time.Duration(number(value) * float64(time.Second))
		case strings.HasPrefix(name, "cmdstat_") && name != "cmdstat_info":
			// cmdstat_evalsha:calls=12,usec=345,...
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			l.commands += int64(number(calls))
		}
	})
	return l, errors.Join(err, failures)
}
