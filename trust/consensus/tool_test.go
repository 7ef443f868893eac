//go:build long && linux

package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
)

// The tool shows a holder with its host, and who waits. It takes the lock from the holder, which finds
// that out.
func TestTheToolShowsAndReleasesLocks(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "interlock")
	if said, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../../cmd/interlock", "-o", tool, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for name, open := range map[string]func(t *testing.T) (flag, addrs string, stores [2]core.Store){
		"etcd": func(t *testing.T) (string, string, [2]core.Store) {
			c := newCluster(t)
			return "-etcd", strings.Join(c.addrs(), ","),
				[2]core.Store{open(t, c.client(), casstore.Timeout(limit)), open(t, c.client(), casstore.Timeout(limit))}
		},
		"NATS": func(t *testing.T) (string, string, [2]core.Store) {
			c := newNATS(t, 0)
			return "-nats", strings.Join(c.addrs(), ",") + "/" + natsBucket,
				[2]core.Store{openNATS(t, c.js(), casstore.Timeout(limit)), openNATS(t, c.js(), casstore.Timeout(limit))}
		},
		"ZooKeeper": func(t *testing.T) (string, string, [2]core.Store) {
			e := newEnsemble(t)
			return "-zookeeper", strings.Join(e.addrs(), ","),
				[2]core.Store{openOn(t, e.conn(), casstore.Timeout(limit)), openOn(t, e.conn(), casstore.Timeout(limit))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			flag, addrs, stores := open(t)
			var lockers [2]*core.Locker
			for i := range lockers {
				var err error
				if lockers[i], err = core.New(stores[i], core.Watchdog(15*time.Second)); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = lockers[i].Close(context.Background()) })
			}
			ctx, cancel := timeout(t, time.Minute)
			defer cancel()
			held, err := lockers[0].Lock(ctx, "account/42")
			if err != nil {
				t.Fatal(err)
			}
			run := func(args ...string) string {
				t.Helper()
				said, err := exec.CommandContext(ctx, tool, append([]string{flag, addrs}, args...)...).CombinedOutput()
				if err != nil {
					t.Fatalf("interlock %v: %v\n%s", args, err, said)
				}
				return string(said)
			}
			next := make(chan *core.Lease, 1)
			go func() {
				got, err := lockers[1].Lock(ctx, "account/42")
				if err != nil {
					t.Errorf("the process that waits: %v", err)
				}
				next <- got
			}()
			for shown := ""; !strings.Contains(shown, "waits 1"); {
				shown = run("inspect", "account/42")
				if ctx.Err() != nil {
					t.Fatalf("no locker waits in\n%s", shown)
				}
			}
			if shown := run("ls"); !strings.Contains(shown, "account/42") || !strings.Contains(shown, fmt.Sprint(held.Token())) {
				t.Errorf("ls shows no lock of account/42 with the token %d:\n%s", held.Token(), shown)
			}
			run("release", "account/42", "-token", fmt.Sprint(held.Token()))
			select {
			case <-held.Context().Done():
			case <-ctx.Done():
				t.Fatal("the holder does not learn that its lock was released")
			}
			if !errors.Is(held.Err(), core.ErrLost) {
				t.Errorf("the holder has the error %v; want ErrLost", held.Err())
			}
			got := <-next
			if got == nil {
				t.FailNow()
			}
			if got.Token() <= held.Token() {
				t.Errorf("the next holder has the token %d; want one above %d", got.Token(), held.Token())
			}
			if err := got.Release(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
