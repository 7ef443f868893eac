package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// host lets redistest start servers outside of a test: it is as much of a
// testing.TB as that needs.
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

// deployment is real servers: a single one or a Cluster.
type deployment struct {
	name     string
	clusters bool
	replicas int
	addrs    []string        // of the masters
	admins   []*redis.Client // one for each of them
	host     *host
}

// deploy starts a single server, or a Cluster of so many masters with as many
// replicas each.
func deploy(ctx context.Context, masters, replicas int) (d *deployment, err error) {
	dir, err := os.MkdirTemp("", "interlock-scale-")
	if err != nil {
		return nil, err
	}
	d = &deployment{name: "one server", host: &host{ctx: ctx, dir: dir}}
	defer func() {
		if failure := recover(); failure != nil {
			d.stop()
			d, err = nil, fmt.Errorf("starting servers: %v", failure)
		}
	}()
	if masters == 0 {
		d.addrs = []string{redistest.Start(d.host).Addr()} //nolint:contextcheck // it takes the host's
	} else {
		d.name, d.clusters, d.replicas = fmt.Sprintf("Cluster of %d", masters), true, replicas
		if replicas > 0 {
			d.name += fmt.Sprintf(", %d replica each", replicas)
		}
		for _, shard := range redistest.Cluster(d.host, masters, replicas).Shards { //nolint:contextcheck // it takes the host's
			d.addrs = append(d.addrs, shard[0].Addr())
		}
	}
	for _, addr := range d.addrs {
		d.admins = append(d.admins, redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1}))
	}
	return d, nil
}

func (d *deployment) stop() {
	for _, rdb := range d.admins {
		_ = rdb.Close() // the server goes as well
	}
	for _, f := range d.host.cleanups {
		f()
	}
	_ = os.RemoveAll(d.host.dir) // it is in the system's temporary directory
}

// client is a user's client of the deployment.
func (d *deployment) client() redis.UniversalClient {
	if d.clusters {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: d.addrs})
	}
	return redis.NewClient(&redis.Options{Addr: d.addrs[0]})
}

// open makes a process's store: its connections are its own.
func (d *deployment) open() (core.Store, func() error, error) {
	s, end, err := d.store()
	return s, end, err
}

func (d *deployment) store() (*redisstore.Store, func() error, error) {
	rdb := d.client()
	s, err := redisstore.New(rdb, redisstore.Logger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	if err != nil {
		return nil, nil, errors.Join(err, rdb.Close())
	}
	return s, func() error { return errors.Join(s.Close(), rdb.Close()) }, nil
}

// load is what the servers have done, all together.
type load struct {
	commands  float64 // the commands of scripts too, INFO not
	requests  float64 // EVALSHA
	script    time.Duration
	cpu       time.Duration
	in, out   float64 // bytes
	reads     float64 // of sockets
	clients   float64
	memory    float64
	releases  float64       // DEL, which only a release does
	ownOutput float64       // what INFO itself has told
	client    time.Duration // CPU time of this process
}

// read reads INFO of all servers.
func (d *deployment) read(ctx context.Context) (l load, err error) {
	for _, rdb := range d.admins {
		info, err := rdb.Info(ctx, "everything").Result()
		if err != nil {
			return l, err
		}
		for line := range strings.Lines(info) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			l.take(name, value)
		}
		l.ownOutput += float64(len(info))
	}
	var ru syscall.Rusage
	err = syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	l.client = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	return l, err
}

// take adds a line of INFO. Lines that are no numbers are none of those wanted.
func (l *load) take(name, value string) {
	if command, ok := strings.CutPrefix(name, "cmdstat_"); ok {
		// cmdstat_evalsha:calls=12,usec=345,...
		var calls, usec float64
		_, _ = fmt.Sscanf(value, "calls=%f,usec=%f", &calls, &usec)
		switch command {
		case "info":
			return
		case "evalsha":
			l.requests += calls
			l.script += time.Duration(usec * float64(time.Microsecond))
		case "del":
			l.releases += calls
		}
		l.commands += calls
		return
	}
	n, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return
	}
	switch name {
	case "used_cpu_user", "used_cpu_sys":
		l.cpu += time.Duration(n * float64(time.Second))
	case "total_net_input_bytes":
		l.in += n
	case "total_net_output_bytes":
		l.out += n
	case "total_reads_processed":
		l.reads += n
	case "connected_clients":
		l.clients += n
	case "used_memory":
		l.memory += n
	}
}

// minus is what was done between two readings. What INFO itself has told at the
// first one was counted behind it.
func (l load) minus(o load) load {
	return load{
		commands: l.commands - o.commands, requests: l.requests - o.requests,
		script: l.script - o.script, cpu: l.cpu - o.cpu, in: l.in - o.in, out: l.out - o.out - o.ownOutput,
		reads: l.reads - o.reads, clients: l.clients - o.clients, memory: l.memory - o.memory,
		releases: l.releases - o.releases, client: l.client - o.client,
	}
}
