//go:build !redis

package main

import (
	"io"
	"log/slog"
	"strings"
	"testing"
)

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
	bad := connection{postgres: "postgres://reader:secret@[/app", prefix: defaultPrefix}
	if _, err := bad.store(slog.Default()); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v; want an error without the password", err)
	}
}
