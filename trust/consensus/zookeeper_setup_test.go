//go:build long && linux

package consensus_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/zkstore"
)

// openOn makes a store that is closed at the end of the test.
func openOn(t *testing.T, conn *zkstore.Conn, opts ...casstore.Option) *zkstore.Store {
	t.Helper()
	store, err := zkstore.New(conn, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return store
}

func TestOnZooKeeperCheckNamesWhatIsUnsafe(t *testing.T) {
	e := newEnsemble(t)
	ctx, cancel := timeout(t, limit)
	defer cancel()
	store := openOn(t, e.conn())
	if found, err := store.Check(ctx); err != nil || len(found) > 0 {
		t.Errorf("three members: %q, %v", found, err)
	}
	e.members[1].kill()
	e.members[2].kill()
	e.members[0].signal(9)
	soon, end := timeout(t, 2*time.Second)
	defer end()
	if _, err := store.Check(soon); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("without members: %v; want ErrUnavailable", err)
	}
}

// The rights of docs/consensus.md keep others out, and are enough for locks.
func TestOnZooKeeperTheRootHasTheRights(t *testing.T) {
	e := newEnsemble(t)
	ctx := t.Context()
	bank := e.conn()
	if err := bank.AddAuth("digest", []byte("bank:secret")); err != nil {
		t.Fatal(err)
	}
	if _, err := bank.Create("/bank", nil, 0, zk.AuthACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	do := func(conn *zkstore.Conn) error {
		locker, err := core.New(openOn(t, conn, casstore.Prefix("bank"), casstore.Timeout(limit)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = locker.Close(context.Background()) }()
		return locker.Do(ctx, "account/42", func(context.Context) error { return nil })
	}
	if err := do(bank); err != nil {
		t.Errorf("with the rights of the document: %v", err)
	}
	other := e.conn()
	begin := time.Now()
	if err := do(other); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("without a right: %v; want ErrUnavailable", err)
	}
	if took := time.Since(begin); took > limit {
		t.Errorf("a missing right was said after %v", took)
	}
	for _, name := range []string{"/bank/.epoch", "/bank/account%2F42/lock"} {
		if _, _, err := other.Get(name); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("another user reads %s: %v", name, err)
		}
	}
	if acl, _, err := bank.GetACL("/bank/account%2F42/lock"); err != nil || len(acl) != 1 || !strings.HasPrefix(acl[0].ID, "bank:") {
		t.Errorf("%+v, %v", acl, err)
	}
}

// A backup has the numbers of the past. With higher epochs the members go on above them.
func TestOnZooKeeperTokensGrowOverARestoredBackup(t *testing.T) {
	e := newEnsemble(t)
	token := func() int64 {
		t.Helper()
		locker, err := core.New(openOn(t, e.conn(), casstore.Timeout(limit)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = locker.Close(context.Background()) }()
		lease, err := locker.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = lease.Release(context.Background()) }()
		return lease.Token()
	}
	killAll := func() {
		for _, m := range e.members {
			m.kill()
		}
	}
	startAll := func() {
		for _, m := range e.members {
			m.start()
		}
		e.leader()
	}
	first := token()
	killAll()
	backups := make([]string, len(e.members))
	for i, m := range e.members {
		backups[i] = t.TempDir()
		if err := os.CopyFS(backups[i], os.DirFS(filepath.Join(m.dir, "version-2"))); err != nil {
			t.Fatal(err)
		}
	}
	startAll()
	last := token()
	killAll()
	for i, m := range e.members {
		data := filepath.Join(m.dir, "version-2")
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(data, os.DirFS(backups[i])); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"acceptedEpoch", "currentEpoch"} {
			if err := os.WriteFile(filepath.Join(data, name), []byte("1000"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	startAll()
	if restored := token(); first >= last || last >= restored {
		t.Errorf("the tokens are %d, %d, and %d after the backup was restored", first, last, restored)
	}
}
