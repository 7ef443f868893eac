package zkstore

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
)

// A look made the root and the adapter's own nodes, open to all, and so a user with the right to read could not look.
func TestALookWritesNothing(t *testing.T) {
	for name, f := range map[string]*fake{"nothing is there": newFake(), "a service has run": withEntries("r/k", 2)} {
		c := f.connect(t, 0)
		before := slices.Sorted(maps.Keys(f.nodes))
		c.readOnly = true
		for _, late := range []bool{false, true} {
			answer, err := newServer(c).Commit(t.Context(), casstore.Txn{
				Read: []string{"r/k/0"}, List: []casstore.Range{{Prefix: "r/k/"}}, Late: late,
			})
			if err != nil || !answer.Done || len(answer.Read) != 1 || len(answer.Lists) != 1 {
				t.Errorf("%s: %+v, %v; want that a user with the right to read can look", name, answer, err)
			}
		}
		if after := slices.Sorted(maps.Keys(f.nodes)); !slices.Equal(before, after) {
			t.Errorf("%s: the nodes are %q after a look; want %q", name, after, before)
		}
	}
}

// A root with all rights but the one to change them made new nodes with the rights of a user that had not logged in,
// which ZooKeeper refuses as invalid.
func TestNewNodesHaveTheRightsOfTheRoot(t *testing.T) {
	most := int32(zk.PermRead | zk.PermWrite | zk.PermCreate | zk.PermDelete)
	reader := zk.ACL{Perms: zk.PermRead, Scheme: "world", ID: "anyone"}
	for name, c := range map[string]struct{ root, want []zk.ACL }{
		"open to all":              {zk.WorldACL(zk.PermAll), zk.WorldACL(zk.PermAll)},
		"but for changing rights":  {zk.WorldACL(most), zk.WorldACL(most)},
		"others may look":          {append(zk.DigestACL(zk.PermAll, "bank", "secret"), reader), append(zk.DigestACL(zk.PermAll, "bank", "secret"), reader)},
		"a hash that is not shown": {[]zk.ACL{{Perms: most, Scheme: "digest", ID: "bank:x"}, reader}, append(zk.AuthACL(most), reader)},
	} {
		f := withEntries("r/k", 0)
		f.nodes["/r"].acl = c.root
		_, err := newServer(f.connect(t, 0)).Commit(t.Context(), casstore.Txn{Then: []casstore.Op{{Name: "r/k/lock", Value: "v"}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := f.nodes["/r/k/lock"].acl; !slices.Equal(got, c.want) {
			t.Errorf("%s: a new node has the rights %+v; want %+v", name, got, c.want)
		}
	}
}

// The error of a user without a right is not taken for an error that passes.
func TestAUserWhoMayNotWriteIsRefused(t *testing.T) {
	c := withEntries("r/k", 0).connect(t, 0)
	c.readOnly = true
	_, err := newServer(c).Commit(t.Context(), casstore.Txn{Then: []casstore.Op{{Name: "r/k/lock", Value: "v"}}})
	if !errors.Is(err, casstore.ErrRefused) {
		t.Errorf("%v; want ErrRefused", err)
	}
}
