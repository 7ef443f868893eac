package zkstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
)

const (
	// there begins the data of a node that is an entry. Every other node is an entry that is
	// not there: it was deleted, or only has nodes below.
	there = "+"
	// gone is the data of a node that is no entry. A node that is deleted and created anew
	// has version 0 again, so a late transaction could meet a version that it has seen
	// before. So a node stays when its entry is deleted.
	gone = "-"

	// highest bounds the number of a change. ZooKeeper counts the elections of a leader above
	// 32 bits; a fencing token has room for 16,128 of them.
	highest = 1<<46 - 1<<40
	// versions is added to a version where it is given away: it has a sign, and [casstore.Revision] has positive ones.
	versions = 1 << 32
	// anyVersion is the version that a request gives to compare none. A version has 32 bits and
	// a sign, and goes on from the highest at the lowest. So no node may rest at this version:
	// a write that would leave it there writes twice.
	anyVersion = -1
	// From the version nearAny on each write compares, so that none goes too far.
	nearAny = anyVersion - 1000
)

// node is the state of a path.
type node struct {
	there    bool
	live     bool // it is an entry
	value    string
	version  int32
	number   int64 // of the transaction that wrote it
	children int32
	below    int64 // the number of the last transaction that created or deleted a node below
}

// entry is the node as an entry.
func (n node) entry(name string) casstore.Entry {
	e := casstore.Entry{Name: name}
	if n.live {
		e.Value, e.Revision = n.value, n.revision()
	}
	return e
}

func (n node) revision() casstore.Revision {
	if !n.live {
		return casstore.Revision{}
	}
	return casstore.Revision{Number: n.number, Version: int64(uint32(n.version)) + versions}
}

// same reports whether nothing was written between two readings of a node.
func (n node) same(o node) bool { return n.there == o.there && n.number == o.number }

// compared is the version that a request gives to compare the node. A node that rests at
// [anyVersion], where only another program can have left it, cannot be compared: then the
// request fails.
func (n node) compared() int32 {
	if n.version == anyVersion {
		return math.MinInt32
	}
	return n.version
}

func newNode(data []byte, stat *zk.Stat) node {
	value, live := strings.CutPrefix(string(data), there)
	if !live {
		value = ""
	}
	return node{
		there: true, live: live, value: value, version: stat.Version, number: stat.Mzxid,
		children: stat.NumChildren, below: stat.Pzxid,
	}
}

// path is where the entry of a name is.
func path(name string) string { return "/" + strings.TrimSuffix(name, "/") }

// found is a result that the client has read.
type found[T any] struct {
	what T
	stat *zk.Stat
}

// get reads a node.
func (s *server) get(ctx context.Context, name string) (node, error) {
	r, err := call(ctx, s, func() (found[[]byte], error) {
		data, stat, err := s.conn.Get(path(name))
		return found[[]byte]{what: data, stat: stat}, err
	})
	if err != nil {
		if errors.Is(err, zk.ErrNoNode) {
			err = nil
		}
		return node{}, err
	}
	n := newNode(r.what, r.stat)
	s.saw(n.number)
	return n, nil
}

// children reads the names of the nodes below a node, without the adapter's own, and the state of the
// node without its data.
func (s *server) children(ctx context.Context, name string) (names []string, n node, err error) {
	r, err := call(ctx, s, func() (found[[]string], error) {
		names, stat, err := s.conn.Children(path(name))
		return found[[]string]{what: names, stat: stat}, err
	})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil, node{}, nil
	case err != nil:
		return nil, node{}, err
	}
	return entries(r.what), newNode(nil, r.stat), nil
}

// entries leaves out the names of the adapter's own nodes: names of entries have no dot.
func entries(names []string) []string {
	var list []string
	for _, name := range names {
		if !strings.Contains(name, ".") {
			list = append(list, name)
		}
	}
	return list
}

// saw notes the number of a change.
func (s *server) saw(number int64) {
	for {
		last := s.newest.Load()
		if number <= last || s.newest.CompareAndSwap(last, number) {
			return
		}
	}
}

// root is the node of the first part of a name. Below it the adapter has two special nodes:
//
//	.epoch   its version is compared by every transaction, and changes with every one that
//	         deletes nodes: so no transaction meets a version that a deleted node has had
//	.now     is written by transactions that tell their number by nothing else
type root struct {
	name string

	mu     sync.Mutex
	known  bool
	at     epoch
	acl    []zk.ACL
	seenIn epoch           // epoch of the nodes
	nodes  map[string]node // without their values
}

// epoch is a time without the deletion of a node.
type epoch struct {
	version int32
	number  int64 // of its first transaction
}

func (r *root) epochPath() string { return path(r.name + "/.epoch") }
func (r *root) nowPath() string   { return path(r.name + "/.now") }

// rootOf returns the root of all names of a transaction.
func (s *server) rootOf(txn casstore.Txn) (*root, error) {
	names := slices.Concat(txn.Read, txn.Else)
	for _, c := range txn.If {
		names = append(names, c.Name)
	}
	for _, op := range txn.Then {
		names = append(names, op.Name)
	}
	for _, r := range txn.List {
		names = append(names, r.Prefix)
	}
	first, _, _ := strings.Cut(names[0], "/")
	for _, name := range names {
		if part, _, _ := strings.Cut(name, "/"); part != first || part == "" {
			return nil, fmt.Errorf("%w: names below /%s and /%s in one transaction", casstore.ErrRefused, first, part)
		}
	}
	s.rooting.Lock()
	defer s.rooting.Unlock()
	r := s.roots[first]
	if r == nil {
		r = &root{name: first}
		s.roots[first] = r
	}
	return r, nil
}

// open returns the epoch, and the rights for new nodes. It makes missing nodes.
func (s *server) open(ctx context.Context, r *root) (epoch, []zk.ACL, error) {
	r.mu.Lock()
	at, acl, known := r.at, r.acl, r.known
	r.mu.Unlock()
	if known {
		return at, acl, nil
	}
	acl, err := s.rights(ctx, r)
	if err != nil {
		return at, nil, err
	}
	for {
		n, err := s.get(ctx, r.name+"/.epoch")
		if err != nil {
			return at, nil, err
		}
		if n.there {
			at = epoch{version: n.version, number: n.number}
			break
		}
		for _, p := range []string{r.nowPath(), r.epochPath()} {
			if err := s.create(ctx, p, acl); err != nil {
				return at, nil, err
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at, r.acl, r.known = at, acl, true
	return at, acl, nil
}

// rights are the rights of new nodes, which have the rights of the root. It makes the root if that is not there, open to all.
func (s *server) rights(ctx context.Context, r *root) ([]zk.ACL, error) {
	for {
		acl, err := call(ctx, s, func() ([]zk.ACL, error) {
			acl, _, err := s.conn.GetACL(path(r.name))
			return acl, err
		})
		switch {
		case err == nil:
			return inherited(acl), nil
		case !errors.Is(err, zk.ErrNoNode):
			return nil, err
		}
		if err := s.create(ctx, path(r.name), zk.WorldACL(zk.PermAll)); err != nil {
			return nil, err
		}
	}
}

// inherited are the rights of a node below one with some rights. ZooKeeper shows the hash of a password as "x" to a user
// who may not change the rights; then the new node has the user of the connection in that place.
func inherited(acl []zk.ACL) []zk.ACL {
	acl = slices.Clone(acl)
	for i, a := range acl {
		if a.Scheme == "digest" && strings.HasSuffix(a.ID, ":x") {
			acl[i] = zk.ACL{Perms: a.Perms, Scheme: "auth"}
		}
	}
	return acl
}

// create makes a node that is no entry, unless it is there.
func (s *server) create(ctx context.Context, p string, acl []zk.ACL) error {
	_, err := call(ctx, s, func() (string, error) { return s.conn.Create(p, []byte(gone), 0, acl) })
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// parents makes the nodes above a name.
func (s *server) parents(ctx context.Context, name string, acl []zk.ACL) error {
	for i := range len(name) {
		if name[i] == '/' {
			if err := s.create(ctx, path(name[:i]), acl); err != nil {
				return err
			}
		}
	}
	return nil
}

// end ends an epoch.
func (r *root) end(at epoch) step {
	return step{r.name, &zk.SetDataRequest{Path: r.epochPath(), Data: []byte(gone), Version: at.version}, -1}
}

// forget has the epoch be read again.
func (r *root) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = false
}
