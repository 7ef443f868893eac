package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/bench/rig"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// deployment is real servers: a single one or a Cluster.
type deployment struct {
	name     string
	clusters bool
	replicas int
	addrs    []string        // of the masters
	admins   []*redis.Client // one for each of them
	end      func()
}

// deploy starts a single server, or a Cluster of so many masters with as many
// replicas each.
func deploy(ctx context.Context, masters, replicas int) (*deployment, error) {
	d := &deployment{name: "one server"}
	var err error
	_, d.end, err = rig.Start(ctx, func(tb testing.TB) {
		if masters == 0 {
			d.addrs = []string{redistest.Start(tb).Addr()}
			return
		}
		d.name, d.clusters, d.replicas = fmt.Sprintf("Cluster of %d", masters), true, replicas
		if replicas > 0 {
			d.name += fmt.Sprintf(", %d replica each", replicas)
		}
		for _, shard := range redistest.Cluster(tb, masters, replicas).Shards {
			d.addrs = append(d.addrs, shard[0].Addr())
		}
	})
	if err != nil {
		return nil, err
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
	d.end()
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

// load is the work of all servers together.
type load struct {
	commands  float64 // the commands of scripts too, INFO not
	requests  float64 // EVALSHA
	script    time.Duration
	cpu       time.Duration
	in, out   float64 // bytes
	reads     float64 // of sockets
	clients   float64
	memory    float64
	releases  float64       // DEL, which only a release does where no other process waits
	messages  float64       // PUBLISH and SPUBLISH
	ownOutput float64       // the output of INFO itself
	client    time.Duration // CPU time of this process
}

// read reads INFO of all servers.
func (d *deployment) read(ctx context.Context) (l load, err error) {
	for _, rdb := range d.admins {
		said, err := rig.Info(ctx, rdb, l.take)
		if err != nil {
			return l, err
		}
		l.ownOutput += float64(said)
	}
	var ru syscall.Rusage
	err = syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	l.client = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	return l, err
}

// take adds a line of INFO. Lines without numbers are not wanted.
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
		case "publish", "spublish":
			l.messages += calls
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

// minus is the work between two readings. Redis counted the output of the first INFO after
// that INFO.
func (l load) minus(o load) load {
	return load{
		commands: l.commands - o.commands, requests: l.requests - o.requests,
		script: l.script - o.script, cpu: l.cpu - o.cpu, in: l.in - o.in, out: l.out - o.out - o.ownOutput,
		reads: l.reads - o.reads, clients: l.clients - o.clients, memory: l.memory - o.memory,
		releases: l.releases - o.releases, messages: l.messages - o.messages, client: l.client - o.client,
	}
}
