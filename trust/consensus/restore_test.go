//go:build long && linux

package consensus_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/snapshot"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
	"go.uber.org/zap"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
)

// A snapshot has the revisions of the past, and its cluster would give tokens twice. With the
// options of docs/consensus.md the revisions go on above all that were given out.
func TestTokensGrowOverARestoredSnapshot(t *testing.T) {
	for name, part := range map[string]struct {
		opts []string
		grow bool
	}{
		"as the document says":      {[]string{"--bump-revision", "1000000000", "--mark-compacted"}, true},
		"without the higher number": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			token := func(key string) int64 {
				t.Helper()
				locker, err := core.New(open(t, c.client(), casstore.Timeout(limit)))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = locker.Close(context.Background()) }()
				lease, err := locker.Lock(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = lease.Release(context.Background()) }()
				return lease.Token()
			}
			first := token("k")
			backup := filepath.Join(t.TempDir(), "backup")
			if _, err := snapshot.SaveWithVersion(t.Context(), zap.NewNop(), clientv3.Config{Endpoints: c.addrs()[:1]}, backup); err != nil {
				t.Fatal(err)
			}
			last := first
			for range 5 {
				last = token("k")
			}
			for _, m := range c.members {
				m.kill()
			}
			for _, m := range c.members {
				m.restore(backup, part.opts)
				m.start()
			}
			c.leader()
			if restored := token("k"); first >= last || last < restored != part.grow {
				t.Errorf("the tokens are %d, %d, and %d after the backup was restored", first, last, restored)
			}
		})
	}
}

// restore gives a member the data of a backup, by the command of etcdutl.
func (m *member) restore(backup string, opts []string) {
	m.t.Helper()
	of := strings.Split(m.args, " ")
	if err := os.RemoveAll(of[1]); err != nil {
		m.t.Fatal(err)
	}
	restore := etcdutl.NewSnapshotRestoreCommand()
	restore.SetArgs(append([]string{
		backup, "--name", of[0], "--data-dir", of[1], "--initial-advertise-peer-urls", of[4],
		"--initial-cluster", of[5], "--initial-cluster-token", "interlock",
	}, opts...))
	if err := restore.Execute(); err != nil {
		m.t.Fatal(err)
	}
}
