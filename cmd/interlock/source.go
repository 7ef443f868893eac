package main

import (
	"log/slog"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/redisstore"
)

// opened is a store, and the locks in it.
type opened struct {
	core.Store
	locks *fleet.Fleet
	close func()
}

// other reports whether the connection leads to another server than Redis.
func (c *connection) other() bool {
	return c.postgres != "" || c.etcd != "" || c.zookeeper != "" || c.nats != ""
}

// choose returns an error if the flags name two servers.
func (c *connection) choose() error {
	for name, text := range map[string]string{"addr": c.addr, "etcd": c.etcd, "zookeeper": c.zookeeper, "nats": c.nats} {
		if strings.Contains(text, "@") { // the text may have a password
			return usageError("-%s is host:port, and several with commas: a user is given with -user, a password in INTERLOCK_PASSWORD", name)
		}
	}
	named := 0
	for _, s := range []string{c.url + c.addr + c.sentinel, c.postgres, c.etcd, c.zookeeper, c.nats} {
		if s != "" {
			named++
		}
	}
	if named > 1 {
		return usageError("give one of -postgres, -etcd, -zookeeper, -nats, or the flags of Redis")
	}
	return nil
}

// fleet opens the locks. Its connections end with the call. opts are for Redis.
func (c *call) fleet(opts ...fleet.Option) (*fleet.Fleet, error) {
	log := slog.New(slog.NewTextHandler(c.stderr, nil))
	if err := c.conn.choose(); err != nil {
		return nil, err
	}
	if c.conn.other() {
		store, err := c.conn.store(log)
		if err != nil {
			return nil, err
		}
		c.close = store.close
		return store.locks, nil
	}
	return c.onRedis(append([]fleet.Option{fleet.Logger(log)}, opts...)...)
}

// onRedis opens the [fleet.Fleet].
func (c *call) onRedis(opts ...fleet.Option) (*fleet.Fleet, error) {
	rdb, err := c.conn.open()
	if err != nil {
		return nil, err
	}
	f, err := fleet.New(rdb, append([]fleet.Option{fleet.Prefix(c.conn.prefix)}, opts...)...)
	if err != nil {
		_ = rdb.Close()
		return nil, &exitError{exitUsage, err}
	}
	c.rdb = rdb
	c.close = func() { _, _ = f.Close(), rdb.Close() }
	return f, nil
}

// store opens a store for locks and records, with options for Redis.
func (c *call) store(log *slog.Logger, opts ...redisstore.Option) (opened, error) {
	if err := c.conn.choose(); err != nil {
		return opened{}, err
	}
	if c.conn.other() {
		return c.conn.store(log)
	}
	rdb, err := c.conn.open()
	if err != nil {
		return opened{}, err
	}
	store, err := redisstore.New(rdb, append([]redisstore.Option{redisstore.Prefix(c.conn.prefix), redisstore.Logger(log)}, opts...)...)
	if err != nil {
		_ = rdb.Close()
		return opened{}, &exitError{exitUsage, err}
	}
	f, err := fleet.New(rdb, fleet.Prefix(c.conn.prefix), fleet.Logger(log))
	if err != nil {
		_, _ = store.Close(), rdb.Close()
		return opened{}, &exitError{exitUsage, err}
	}
	return opened{store, f, func() { _, _, _ = f.Close(), store.Close(), rdb.Close() }}, nil
}

// shown returns an opened store with its locks.
func shown(store core.Store, log *slog.Logger, closing func()) (opened, error) {
	f, err := fleet.On(store, fleet.Logger(log))
	if err != nil {
		closing()
		return opened{}, err
	}
	return opened{store, f, closing}, nil
}

// server names the kind of server for a reader.
func (c *connection) server() string {
	switch {
	case c.postgres != "":
		return "PostgreSQL"
	case c.etcd != "":
		return "etcd"
	case c.zookeeper != "":
		return "ZooKeeper"
	case c.nats != "":
		return "NATS"
	}
	return "Redis"
}

// elsewhere says in a few words which server it is, without a password.
func (c *connection) elsewhere() string {
	text := c.etcd + c.zookeeper + c.nats
	if c.postgres != "" {
		text = c.postgresAddress()
	}
	return strings.TrimSpace(c.server() + " " + text)
}
