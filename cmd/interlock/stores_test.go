//go:build !redis

package main

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// A flag of TLS that is dropped sends the password in plain text.
func TestTheFlagsOfTLSCountOnPostgreSQL(t *testing.T) {
	for _, postgres := range []string{
		"postgres://db,other/app", "postgres://db,other/app?sslmode=disable", "host=db,other dbname=app sslmode=allow",
	} {
		config, err := pgconn.ParseConfig(postgres)
		if err != nil {
			t.Fatal(err)
		}
		c := connection{postgres: postgres, tls: true}
		if err := c.securePostgres(config); err != nil {
			t.Fatal(err)
		}
		if config.TLSConfig == nil || config.TLSConfig.InsecureSkipVerify || config.TLSConfig.ServerName != "db" {
			t.Errorf("%s: the first host has the TLS of %+v; want TLS for db", postgres, config.TLSConfig)
		}
		if len(config.Fallbacks) != 1 || config.Fallbacks[0].TLSConfig == nil || config.Fallbacks[0].TLSConfig.ServerName != "other" {
			t.Errorf("%s: the other hosts are %+v; want other, with TLS", postgres, config.Fallbacks)
		}
	}
	if r := here("-postgres", "postgres://127.0.0.1:1/app", "-cacert", "/does/not/exist", "ls"); r.code != exitUsage || !strings.Contains(r.stderr, "-cacert") {
		t.Errorf("-cacert with a file that is not there: %+v; want a wrong command line", r)
	}
	socket := connection{postgres: "host=/tmp dbname=app", tls: true}
	if _, err := socket.store(slog.Default()); err == nil {
		t.Error("-tls on a socket: no error; want a refusal")
	}
}

// A bad option of a store would show only where there is a server. A closed connection of ZooKeeper ends seconds later:
// it is left out.
func TestTheFlagsOfEachServerOpenItsStore(t *testing.T) {
	for _, c := range []connection{
		{postgres: "postgres://reader:secret@127.0.0.1:1/app", prefix: defaultPrefix},
		{postgres: "host=127.0.0.1 port=1 dbname=app", prefix: "locks_"},
		{etcd: "127.0.0.1:1,127.0.0.1:2", prefix: defaultPrefix},
	} {
		o, err := c.store(slog.New(slog.NewTextHandler(io.Discard, nil)))
		if err != nil {
			t.Errorf("%s: %v; want a store", c.server(), err)
			continue
		}
		o.close()
		if strings.Contains(c.elsewhere(), "secret") {
			t.Errorf("%q shows the password", c.elsewhere())
		}
	}
	for postgres, want := range map[string]string{
		"postgres://reader:se@cret@db:5433/app":                          "PostgreSQL db:5433/app",
		"host=db port=5433 dbname=app user=reader password=se@cret":      "PostgreSQL db:5433/app",
		"postgres://reader:se%40cret@db,other/app?password=another@cret": "PostgreSQL db:5432,other:5432/app",
	} {
		c := connection{postgres: postgres}
		if got := c.elsewhere(); got != want {
			t.Errorf("the address of %q is shown as %q; want %q", postgres, got, want)
		}
	}
	for _, flag := range []string{"-addr", "-etcd", "-zookeeper", "-nats"} {
		if r := here(flag, "user:se@cret@db:1", "ls"); r.code != exitUsage || strings.Contains(r.stderr, "cret") {
			t.Errorf("%s with a password: %+v; want a wrong command line, without the password", flag, r)
		}
	}
	for _, postgres := range []string{"postgres://reader:secret@[/app", "postgres://reader:pass@secret@db/app", "postgres://reader:pass@secret@db,other/app"} {
		bad := connection{postgres: postgres, prefix: defaultPrefix}
		if _, err := bad.store(slog.Default()); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want an error without the password", postgres, err)
		}
	}
}
