//go:build !redis

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/etcdstore"
	"github.com/interlock-go/interlock/natsstore"
	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/zkstore"
)

// store opens the store of another server than Redis. It sends nothing, but for a login at etcd and NATS.
func (c *connection) store(log *slog.Logger) (o opened, err error) {
	switch {
	case c.postgres != "":
		o, err = c.onPostgres(log)
	case c.etcd != "":
		o, err = c.onEtcd(log)
	case c.zookeeper != "":
		o, err = c.onZooKeeper(log)
	default:
		o, err = c.onNATS(log)
	}
	if err != nil && !errors.Is(err, driver.ErrUnavailable) {
		return o, &exitError{exitUsage, err}
	}
	return o, err
}

// loginTimeout bounds the login at etcd and NATS. Tests change it.
var loginTimeout = 5 * time.Second

var errPostgresURL = errors.New("-postgres cannot be read; it is postgres://[user[:password]@]host[:port]/database, or key=value pairs, as libpq has them; " +
	"in a URL %40 stands for an @ in the password")

func (c *connection) onPostgres(log *slog.Logger) (opened, error) {
	config, err := pgxpool.ParseConfig(c.postgres)
	if err != nil {
		return opened{}, errPostgresURL // the error may show the password
	}
	for _, host := range append(config.ConnConfig.Fallbacks, &pgconn.FallbackConfig{Host: config.ConnConfig.Host}) {
		if strings.Contains(host.Host, "@") {
			return opened{}, errPostgresURL // pgx takes the rest of the password for a part of the host
		}
	}
	if c.user != "" {
		config.ConnConfig.User = c.user
	}
	if c.password != "" {
		config.ConnConfig.Password = c.password
	}
	if err := c.securePostgres(&config.ConnConfig.Config); err != nil {
		return opened{}, err
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
	return shown(store, log, func() { _ = store.Close(); pool.Close() })
}

// securePostgres adds the settings of TLS. They take the place of the URL's sslmode, which may allow a
// connection without TLS.
func (c *connection) securePostgres(config *pgconn.Config) error {
	base, err := c.security(nil)
	if base == nil || err != nil {
		return err
	}
	// Each host is listed once with TLS and once without where sslmode is prefer, or allow.
	hosts := append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port}}, config.Fallbacks...)
	config.Fallbacks = nil
	for i, host := range hosts {
		if strings.HasPrefix(host.Host, "/") {
			return errors.New("-postgres is a socket of this machine, which has no TLS: leave out -tls, -servername, -cacert and -cert")
		}
		secure := base.Clone()
		if secure.ServerName == "" {
			secure.ServerName = host.Host
		}
		if i == 0 {
			config.TLSConfig = secure
		}
		same := func(f *pgconn.FallbackConfig) bool { return f.Host == host.Host && f.Port == host.Port }
		if i > 0 && !same(hosts[0]) && !slices.ContainsFunc(config.Fallbacks, same) {
			config.Fallbacks = append(config.Fallbacks, &pgconn.FallbackConfig{Host: host.Host, Port: host.Port, TLSConfig: secure})
		}
	}
	return nil
}

// postgresAddress names the hosts and the database of -postgres. The text is not cut by hand: a password
// may contain any character.
func (c *connection) postgresAddress() string {
	config, err := pgconn.ParseConfig(c.postgres)
	if err != nil {
		return ""
	}
	var hosts []string
	for _, host := range append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port}}, config.Fallbacks...) {
		text := net.JoinHostPort(host.Host[strings.LastIndex(host.Host, "@")+1:], strconv.Itoa(int(host.Port)))
		if !slices.Contains(hosts, text) {
			hosts = append(hosts, text)
		}
	}
	return strings.Join(hosts, ",") + "/" + config.Database
}

func (c *connection) onEtcd(log *slog.Logger) (opened, error) {
	config, err := c.security(nil)
	if err != nil {
		return opened{}, err
	}
	client, err := etcdstore.Connect(clientv3.Config{
		Endpoints: strings.Split(c.etcd, ","), Username: c.user, Password: c.password, TLS: config, Logger: zap.NewNop(),
		DialTimeout: loginTimeout, // of a user: clientv3.New logs in
	})
	if err != nil && c.user != "" && c.password != "" {
		return opened{}, fmt.Errorf("%w: the login of %s: %w", driver.ErrUnavailable, c.user, err)
	}
	if err != nil {
		return opened{}, err
	}
	store, err := etcdstore.New(client, casstore.Prefix(c.prefix), casstore.Logger(log))
	if err != nil {
		_ = client.Close()
		return opened{}, err
	}
	return shown(store, log, func() { _, _ = store.Close(), client.Close() })
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
	return shown(store, log, func() { _ = store.Close(); conn.Close() })
}

func (c *connection) onNATS(log *slog.Logger) (opened, error) {
	config, err := c.security(nil)
	if err != nil {
		return opened{}, err
	}
	members, bucket, _ := strings.Cut(c.nats, "/")
	if bucket == "" {
		return opened{}, errors.New("-nats is host:port/bucket, with commas between the members")
	}
	opts := []nats.Option{nats.PingInterval(time.Second), nats.Timeout(loginTimeout)}
	if c.user != "" {
		opts = append(opts, nats.UserInfo(c.user, c.password))
	}
	if config != nil {
		opts = append(opts, nats.Secure(config))
	}
	nc, err := nats.Connect(members, opts...)
	if err != nil {
		return opened{}, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return opened{}, err
	}
	store, err := natsstore.New(js, bucket, casstore.Prefix(c.prefix), casstore.Logger(log))
	if err != nil {
		nc.Close()
		return opened{}, err
	}
	return shown(store, log, func() { _ = store.Close(); nc.Close() })
}
