//go:build unix

package postgres_test

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
)

// pooler starts PgBouncer in transaction mode in front of a server, and returns how to
// connect through it.
func pooler(t *testing.T, db *sql.DB) (dsn string) {
	t.Helper()
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path = "/usr/sbin/pgbouncer" // where Debian has it, which is not on every PATH
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("there is no pgbouncer: apt-get install pgbouncer")
	}
	to := strings.TrimPrefix(strings.Fields(dsnOf(t, db))[0], "host=")
	dir, err := os.MkdirTemp("", "pooler-") //nolint:usetesting // into which another user can look
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("users", `"postgres" ""`)
	write("ini", fmt.Sprintf(`[databases]
* = host=%s port=5432
[pgbouncer]
listen_addr =
listen_port = 5432
unix_socket_dir = %s
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 4
`, to, dir, filepath.Join(dir, "users")))
	cmd := exec.Command(path, filepath.Join(dir, "ini"))
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if os.Geteuid() == 0 { // as which it refuses to run
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32) // they are numbers
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		if err := os.Chown(dir, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // "signal: killed"
		if said, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("PgBouncer said:\n%s", said[max(0, len(said)-3000):])
		}
		_ = log.Close()
		_ = os.RemoveAll(dir)
	})
	dsn = fmt.Sprintf("host=%s user=postgres dbname=postgres sslmode=disable default_query_exec_mode=exec", dir)
	through := pool(t, dsn)
	eventually(t, "PgBouncer answers", func() bool { return through.PingContext(t.Context()) == nil })
	return dsn
}

// schemaOf returns the schema of the tables: a search path does not go through a pooler.
func schemaOf(t *testing.T, db *sql.DB) (schema string) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema); err != nil {
		t.Fatal(err)
	}
	return schema
}

func TestLocksKeepTheContractBehindAPooler(t *testing.T) {
	db := lockTable(t)
	dsn, schema := pooler(t, db), schemaOf(t, db)
	through := pool(t, dsn)
	for name, change := range map[string]func(*config){
		"looking": func(c *config) { c.Schema = schema },
		// LISTEN succeeds behind a pooler, and hears nothing.
		"listening": func(c *config) { c.Schema, c.Listen = schema, listener{dsn} },
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) driver.Store { return newLocks(t, through, change) })
		})
	}
}

func TestAWaitEndsSoonBehindAPooler(t *testing.T) {
	db := lockTable(t)
	dsn, schema := pooler(t, db), schemaOf(t, db)
	var log said
	holder := newLocker(t, newLocks(t, pool(t, dsn), func(c *config) { c.Schema = schema }))
	other := newLocker(t, newLocks(t, pool(t, dsn), func(c *config) {
		c.Schema, c.Listen, c.Log = schema, listener{dsn}, log.logger()
	}))
	lease, err := holder.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan time.Time)
	go func() {
		lease, err := other.Lock(t.Context(), "k")
		if err != nil {
			t.Errorf("Lock: %v", err)
		} else if err := lease.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
		got <- time.Now()
	}()
	eventually(t, "the log says that nothing is heard", func() bool { return log.count("announcements are not heard") == 1 })
	released := time.Now()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := (<-got).Sub(released)
	t.Logf("the wait ended after %v", took)
	if took > 2*time.Second {
		t.Errorf("the wait ended %v after the release", took)
	}
}
