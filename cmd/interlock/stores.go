//go:build !redis

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5/pgxpool"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/etcdstore"
	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/zkstore"
)

// store opens the store of another server than Redis. It sends nothing.
func (c *connection) store(log *slog.Logger) (o opened, err error) {
	switch {
	case c.postgres != "":
		o, err = c.onPostgres(log)
	case c.etcd != "":
		o, err = c.onEtcd(log)
	default:
		o, err = c.onZooKeeper(log)
	}
	if err != nil {
		return o, &exitError{exitUsage, err}
	}
	return o, nil
}

var errPostgresURL = errors.New("-postgres cannot be read; it is postgres://[user[:password]@]host[:port]/database, or key=value pairs, as libpq has them")

func (c *connection) onPostgres(log *slog.Logger) (opened, error) {
	config, err := pgxpool.ParseConfig(c.postgres)
	if err != nil {
		return opened{}, errPostgresURL // the error may show the password
	}
	if c.password != "" {
		config.ConnConfig.Password = c.password
	}
	config.MaxConns = max(config.MaxConns, 12) // as many as the store uses at most
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return opened{}, err
	}
	opts := []pgstore.Option{pgstore.Logger(log), pgstore.SweepEvery(-1)}
	if c.prefix != defaultPrefix {
		opts = append(opts, pgstore.Prefix(c.prefix))
	}
	store, err := pgxstore.New(pool, opts...)
	if err != nil {
		pool.Close()
		return opened{}, err
	}
	return opened{store, func() { _ = store.Close(); pool.Close() }}, nil
}

func (c *connection) onEtcd(log *slog.Logger) (opened, error) {
	config, err := c.security(nil)
	if err != nil {
		return opened{}, err
	}
	client, err := etcdstore.Connect(clientv3.Config{
		Endpoints: strings.Split(c.etcd, ","), Username: c.user, Password: c.password, TLS: config, Logger: zap.NewNop(),
	})
	if err != nil {
		return opened{}, err
	}
	store, err := etcdstore.New(client, casstore.Prefix(c.prefix), casstore.Logger(log))
	if err != nil {
		_ = client.Close()
		return opened{}, err
	}
	return opened{store, func() { _, _ = store.Close(), client.Close() }}, nil
}

func (c *connection) onZooKeeper(log *slog.Logger) (opened, error) {
	config, err := c.security(nil)
	if err != nil {
		return opened{}, err
	}
	var dial zk.Dialer
	if config != nil {
		dial = func(network, address string, timeout time.Duration) (net.Conn, error) {
			return tls.DialWithDialer(&net.Dialer{Timeout: timeout}, network, address, config)
		}
	}
	conn, err := zkstore.Connect(strings.Split(c.zookeeper, ","), dial)
	if err != nil {
		return opened{}, err
	}
	if c.user != "" {
		// It waits for a server, and goes before all later requests.
		go func() { _ = conn.AddAuth("digest", []byte(c.user+":"+c.password)) }()
	}
	store, err := zkstore.New(conn, casstore.Prefix(c.prefix), casstore.Logger(log))
	if err != nil {
		conn.Close()
		return opened{}, err
	}
	return opened{store, func() { _ = store.Close(); conn.Close() }}, nil
}
