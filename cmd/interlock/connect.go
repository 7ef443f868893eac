package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// connection is how the tool reaches the server.
type connection struct {
	url, addr, sentinel, sentinelUser, user, prefix string
	postgres, etcd, zookeeper, nats                 string // unless empty, in place of Redis
	cluster                                         bool
	db                                              int
	tls                                             bool
	serverName, caCert, cert, key                   string

	password, sentinelPassword string // of the environment alone

	given map[string]bool // the flags of the command line
}

// take notes which flags a command line has.
func (c *connection) take(fs *flag.FlagSet) {
	if c.given == nil {
		c.given = map[string]bool{}
	}
	fs.Visit(func(f *flag.Flag) { c.given[f.Name] = true })
}

// prefer replaces the servers of the environment by the servers that flags name.
func (c *connection) prefer() {
	toRedis := c.given["url"] || c.given["addr"] || c.given["sentinel"] || c.given["cluster"]
	if !toRedis && !c.given["postgres"] && !c.given["etcd"] && !c.given["zookeeper"] && !c.given["nats"] {
		return
	}
	if !toRedis {
		c.url, c.addr, c.sentinel, c.cluster = "", "", "", false
	}
	for name, server := range map[string]*string{"postgres": &c.postgres, "etcd": &c.etcd, "zookeeper": &c.zookeeper, "nats": &c.nats} {
		if !c.given[name] {
			*server = ""
		}
	}
	if c.given["url"] && !c.given["addr"] {
		c.addr = ""
	}
	switch {
	case c.given["cluster"] && !c.given["sentinel"]:
		c.sentinel = ""
	case c.given["sentinel"] && !c.given["cluster"]:
		c.cluster = false
	}
}

const connectionHelp = `Passwords come from the environment, where other users of the machine cannot read them:
INTERLOCK_PASSWORD, and INTERLOCK_SENTINEL_PASSWORD for the sentinels. INTERLOCK_URL, INTERLOCK_ADDR,
INTERLOCK_POSTGRES, INTERLOCK_ETCD, INTERLOCK_ZOOKEEPER, INTERLOCK_NATS, INTERLOCK_USER, INTERLOCK_SENTINEL, INTERLOCK_SENTINEL_USER, INTERLOCK_PREFIX, INTERLOCK_SERVERNAME, INTERLOCK_CACERT, INTERLOCK_CERT
and INTERLOCK_CERT_KEY (-key) are the defaults of their flags, and so are INTERLOCK_CLUSTER=1 and INTERLOCK_TLS=1; INTERLOCK_URL and INTERLOCK_POSTGRES may
have a password in them.
`

// defaultPrefix is the prefix of the stores.
const defaultPrefix = "interlock"

// fromEnvironment returns the defaults.
func fromEnvironment(env func(string) string) *connection {
	c := &connection{
		url: env("INTERLOCK_URL"), addr: env("INTERLOCK_ADDR"), user: env("INTERLOCK_USER"), prefix: env("INTERLOCK_PREFIX"),
		postgres: env("INTERLOCK_POSTGRES"), etcd: env("INTERLOCK_ETCD"), zookeeper: env("INTERLOCK_ZOOKEEPER"), nats: env("INTERLOCK_NATS"),
		password:     env("INTERLOCK_PASSWORD"),
		sentinelUser: env("INTERLOCK_SENTINEL_USER"), sentinelPassword: env("INTERLOCK_SENTINEL_PASSWORD"),
		sentinel: env("INTERLOCK_SENTINEL"), serverName: env("INTERLOCK_SERVERNAME"),
		caCert: env("INTERLOCK_CACERT"), cert: env("INTERLOCK_CERT"), key: env("INTERLOCK_CERT_KEY"),
	}
	// A value that is no boolean counts as true: it would be worse to go on without TLS.
	set := func(name string) bool {
		on, err := strconv.ParseBool(env(name))
		return on || err != nil && env(name) != ""
	}
	c.cluster, c.tls = set("INTERLOCK_CLUSTER"), set("INTERLOCK_TLS")
	if c.prefix == "" {
		c.prefix = defaultPrefix
	}
	return c
}

// define defines the flags, with the values so far as defaults. The URL is shown by none of
// them: it may hold a password.
func (c *connection) define(fs *flag.FlagSet) {
	fs.Func("url", "`redis://[user@]host:port[/db]` or rediss://, with the parameters of go-redis's ParseURL",
		func(s string) error { c.url = s; return nil })
	fs.StringVar(&c.addr, "addr", c.addr, "`host[:port]`, or several with commas: nodes of a Cluster, or sentinels; 127.0.0.1:6379 if neither it nor -url is given")
	fs.Func("postgres", "the locks are in PostgreSQL: `postgres://[user@]host[:port]/database`, or key=value pairs, as libpq has them",
		func(s string) error { c.postgres = s; return nil })
	fs.StringVar(&c.etcd, "etcd", c.etcd, "locks in etcd, in place of Redis: `host:port` of its members, with commas")
	fs.StringVar(&c.zookeeper, "zookeeper", c.zookeeper, "locks in ZooKeeper, in place of Redis: `host:port` of its servers, with commas")
	fs.StringVar(&c.nats, "nats", c.nats, "locks in a bucket of NATS, in place of Redis: `host:port/bucket`, with commas between the members")
	fs.BoolVar(&c.cluster, "cluster", c.cluster, "the addresses are nodes of a Redis Cluster")
	fs.StringVar(&c.sentinel, "sentinel", c.sentinel, "the addresses are sentinels, and the master has this `name`")
	fs.StringVar(&c.sentinelUser, "sentinel-user", c.sentinelUser, "`name` of the user of the sentinels")
	fs.StringVar(&c.user, "user", c.user, "`name` of the user of Redis, etcd, NATS or ZooKeeper (digest)")
	fs.IntVar(&c.db, "db", c.db, "`number` of the database")
	fs.StringVar(&c.prefix, "prefix", c.prefix, "`text` with which the names of keys begin (Prefix of the store; interlock_ of the tables in PostgreSQL)")
	fs.BoolVar(&c.tls, "tls", c.tls, "connect with TLS")
	fs.StringVar(&c.serverName, "servername", c.serverName, "`name` in the servers' certificate, if it is not the host of their address; implies -tls")
	fs.StringVar(&c.caCert, "cacert", c.caCert, "`file` with the certificates that sign the servers'; implies -tls")
	fs.StringVar(&c.cert, "cert", c.cert, "`file` with the client's certificate; implies -tls")
	fs.StringVar(&c.key, "key", c.key, "`file` with the key of -cert")
}

// open makes a client. It sends nothing.
func (c *connection) open() (redis.UniversalClient, error) {
	o, err := c.options()
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	return redis.NewUniversalClient(o), nil
}

// options returns the options of the client.
func (c *connection) options() (*redis.UniversalOptions, error) {
	o := &redis.UniversalOptions{}
	if c.url != "" {
		if err := c.fromURL(o); err != nil {
			return nil, err
		}
	}
	if c.addr != "" {
		o.Addrs = strings.Split(c.addr, ",")
		for i, addr := range o.Addrs {
			o.Addrs[i] = c.withPort(addr)
		}
	}
	if len(o.Addrs) == 0 {
		o.Addrs = []string{"127.0.0.1:6379"}
	}
	if c.user != "" {
		o.Username = c.user
	}
	if c.password != "" {
		o.Password = c.password
	}
	if c.db != 0 {
		o.DB = c.db
	}
	switch {
	case c.cluster && c.sentinel != "":
		return nil, errors.New("-cluster and -sentinel together: give the flag that fits the servers")
	case c.cluster && o.DB != 0:
		return nil, errors.New("-cluster and -db together: a Cluster has database 0 only")
	case c.sentinel == "" && !c.cluster && len(o.Addrs) > 1:
		return nil, errors.New("several addresses: say with -cluster or -sentinel NAME what they are")
	}
	o.IsClusterMode, o.MasterName, o.SentinelUsername, o.SentinelPassword = c.cluster, c.sentinel, c.sentinelUser, c.sentinelPassword
	o.ContextTimeoutEnabled, o.DisableIdentity, o.DialerRetries = true, true, 1
	return o, c.secure(o)
}

// several reports whether the connection leads to several servers.
func (c *connection) several() bool { return c.cluster || c.sentinel != "" }

// withPort returns an address with the port that Redis, or a sentinel, has by itself.
func (c *connection) withPort(addr string) string {
	if _, _, err := net.SplitHostPort(addr); err == nil || addr == "" || strings.HasPrefix(addr, "/") {
		return addr
	}
	port := "6379"
	if c.sentinel != "" {
		port = "26379"
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), port)
}

// fromURL takes over the settings of a URL. No error shows the URL, which may have a
// password.
func (c *connection) fromURL(o *redis.UniversalOptions) error {
	if c.cluster {
		u, err := redis.ParseClusterURL(c.url)
		if err != nil {
			return errURL
		}
		o.Addrs, o.Username, o.Password, o.TLSConfig = u.Addrs, u.Username, u.Password, ofEachHost(u.TLSConfig)
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.Protocol = u.DialTimeout, u.ReadTimeout, u.WriteTimeout, u.Protocol
		return nil
	}
	u, err := redis.ParseURL(c.url)
	if err != nil {
		return errURL
	}
	o.Addrs, o.Username, o.Password, o.DB, o.TLSConfig = []string{u.Addr}, u.Username, u.Password, u.DB, u.TLSConfig
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.Protocol = u.DialTimeout, u.ReadTimeout, u.WriteTimeout, u.Protocol
	if c.sentinel != "" {
		o.TLSConfig = ofEachHost(u.TLSConfig)
	}
	return nil
}

// ofEachHost returns the configuration for several servers. go-redis asks for the name in the URL,
// which is a seed's or a sentinel's; without a name TLS asks each server for the host of its
// address.
func ofEachHost(c *tls.Config) *tls.Config {
	if c != nil {
		c.ServerName = ""
	}
	return c
}

var errURL = errors.New("-url cannot be read; it is redis://[user[:password]@]host:port[/db], rediss:// for TLS, " +
	"with a percent sign before the hexadecimal number of a special character")

// secure adds the settings of TLS.
func (c *connection) secure(o *redis.UniversalOptions) error {
	config, err := c.security(o.TLSConfig)
	if config != nil {
		o.TLSConfig = config
	}
	return err
}

// security is the configuration of TLS, on the base of another one; nil if there is no TLS.
func (c *connection) security(base *tls.Config) (*tls.Config, error) {
	if (c.cert == "") != (c.key == "") {
		return nil, errors.New("-cert and -key go together")
	}
	if !c.tls && c.serverName == "" && c.caCert == "" && c.cert == "" {
		return base, nil
	}
	if base == nil {
		base = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if c.serverName != "" {
		base.ServerName = c.serverName
	}
	if c.caCert != "" {
		pem, err := os.ReadFile(c.caCert)
		if err != nil {
			return nil, fmt.Errorf("-cacert: %w", err)
		}
		base.RootCAs = x509.NewCertPool()
		if !base.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("-cacert: %s has no certificate in PEM form", c.caCert)
		}
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("-cert: %w", err)
		}
		base.Certificates = []tls.Certificate{pair}
	}
	return base, nil
}
