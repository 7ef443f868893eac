package zkstore

import (
	"errors"
	pathpkg "path"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// fake is a ZooKeeper of one member in memory.
type fake struct {
	mu    sync.Mutex
	zxid  int64
	nodes map[string]*fakeNode
	conns []*fakeConn
}

// fakeNode is a node of a fake ZooKeeper.
type fakeNode struct {
	data string
	stat zk.Stat
	acl  []zk.ACL
}

// fakeConn is a connection to a fake ZooKeeper. Answers and events take the same way, one after the other.
type fakeConn struct {
	*fake
	way      time.Duration
	events   *events
	sent     map[string]int // requests, by kind
	data     map[string]bool
	below    map[string]bool
	outbox   chan func()
	closed   chan struct{}
	readOnly bool // the user may read, and no more
}

func newFake() *fake {
	return &fake{nodes: map[string]*fakeNode{"/": {}}}
}

// connect makes a connection that ends with the test.
func (f *fake) connect(t *testing.T, way time.Duration) *fakeConn {
	c := &fakeConn{
		fake: f, way: way, events: &events{to: map[string]map[*watching]bool{}}, sent: map[string]int{},
		data: map[string]bool{}, below: map[string]bool{}, outbox: make(chan func(), 200_000), closed: make(chan struct{}),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = append(f.conns, c)
	go func() {
		for {
			select {
			case deliver := <-c.outbox:
				deliver()
			case <-c.closed:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(c.closed)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.conns = slices.DeleteFunc(f.conns, func(other *fakeConn) bool { return other == c })
	})
	return c
}

func (c *fakeConn) State() zk.State                  { return zk.StateHasSession }
func (c *fakeConn) SessionID() int64                 { return 1 }
func (c *fakeConn) absent() error                    { return errors.New("the fake has no session") }
func (c *fakeConn) listen(w *watching) (stop func()) { return c.events.listen(w) }
func (c *fakeConn) Sync(path string) (string, error) {
	return path, c.ask("sync", func() error { return nil })
}

func (c *fakeConn) later(deliver func(at time.Time)) {
	at := time.Now().Add(c.way)
	c.outbox <- func() { deliver(at) }
}

func (c *fakeConn) count(kind string) (requests int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent[kind]
}

func (c *fakeConn) denied(need bool) (err error) {
	return map[bool]error{true: zk.ErrNoAuth}[c.readOnly && need]
}

func (c *fakeConn) ask(kind string, do func() error) error {
	time.Sleep(c.way)
	done := make(chan error, 1)
	c.mu.Lock()
	c.sent[kind]++
	err := do()
	c.later(func(at time.Time) { time.Sleep(time.Until(at)); done <- err })
	c.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-c.closed:
		return zk.ErrConnectionClosed
	}
}

// list returns the names right below a node. Called with the mutex held.
func (f *fake) list(below string) (names []string) {
	for p := range f.nodes {
		if p != "/" && pathpkg.Dir(p) == below {
			names = append(names, pathpkg.Base(p))
		}
	}
	return names
}

func (c *fakeConn) read(p string, do func(n *fakeNode)) error {
	n := c.nodes[p]
	if n == nil {
		return zk.ErrNoNode
	}
	do(n)
	return nil
}

func (c *fakeConn) Get(p string) (data []byte, stat *zk.Stat, err error) {
	err = c.ask("read", func() error { return c.read(p, func(n *fakeNode) { s := n.stat; data, stat = []byte(n.data), &s }) })
	return data, stat, err
}

func (c *fakeConn) GetW(p string) (data []byte, stat *zk.Stat, fired <-chan zk.Event, err error) {
	err = c.ask("read", func() error {
		return c.read(p, func(n *fakeNode) { s := n.stat; data, stat, c.data[p] = []byte(n.data), &s, true })
	})
	return data, stat, nil, err
}

func (c *fakeConn) ExistsW(p string) (there bool, stat *zk.Stat, fired <-chan zk.Event, err error) {
	err = c.ask("read", func() error { there, c.data[p] = c.nodes[p] != nil, true; return nil })
	return there, nil, nil, err
}

func (c *fakeConn) Children(p string) (names []string, stat *zk.Stat, err error) {
	err = c.ask("read", func() error { return c.read(p, func(n *fakeNode) { s := n.stat; names, stat = c.list(p), &s }) })
	return names, stat, err
}

func (c *fakeConn) ChildrenW(p string) (names []string, stat *zk.Stat, fired <-chan zk.Event, err error) {
	err = c.ask("read", func() error {
		return c.read(p, func(n *fakeNode) { s := n.stat; names, stat, c.below[p] = c.list(p), &s, true })
	})
	return names, stat, nil, err
}

func (c *fakeConn) GetACL(p string) (acl []zk.ACL, stat *zk.Stat, err error) {
	err = c.ask("read", func() error { return c.read(p, func(n *fakeNode) { acl = n.acl }) })
	return acl, nil, err
}

func (c *fakeConn) Create(p string, data []byte, _ int32, acl []zk.ACL) (string, error) {
	err := c.ask("write", func() error {
		c.zxid++
		_, err := c.execute(&zk.CreateRequest{Path: p, Data: data, Acl: acl}, false)
		return err
	})
	return p, err
}

func (c *fakeConn) Multi(ops ...any) (results []zk.MultiResponse, err error) {
	err = c.ask("write", func() error {
		results = make([]zk.MultiResponse, len(ops))
		before := map[string]fakeNode{}
		for p, n := range c.nodes {
			before[p] = *n
		}
		c.zxid++
		for _, dry := range []bool{true, false} { // all or nothing
			for i, op := range ops {
				stat, err := c.execute(op, dry)
				if results[i] = (zk.MultiResponse{Stat: stat, Error: err}); err != nil {
					c.restore(before)
					return err
				}
			}
			if dry {
				c.restore(before)
			}
		}
		return nil
	})
	return results, err
}

// restore takes a transaction back that was tried. Called with the mutex held.
func (f *fake) restore(before map[string]fakeNode) {
	clear(f.nodes)
	for p, n := range before {
		f.nodes[p] = &n
	}
}

// execute executes an operation; events are fired unless it is only tried. Called with the mutex held.
func (c *fakeConn) execute(op any, dry bool) (stat *zk.Stat, err error) {
	fire := func(p string, data, below zk.EventType) {
		for _, to := range c.conns {
			if !dry {
				to.fire(p, data, below)
			}
		}
	}
	if err := c.denied(true); err != nil {
		return nil, err
	}
	versioned := func(p string, version int32) (*fakeNode, error) {
		n := c.nodes[p]
		switch {
		case n == nil:
			return nil, zk.ErrNoNode
		case version != -1 && version != n.stat.Version:
			return nil, zk.ErrBadVersion
		}
		return n, nil
	}
	switch op := op.(type) {
	case *zk.CheckVersionRequest:
		_, err = versioned(op.Path, op.Version)
	case *zk.CreateRequest:
		above := c.nodes[pathpkg.Dir(op.Path)]
		switch {
		case above == nil:
			return nil, zk.ErrNoNode
		case c.nodes[op.Path] != nil:
			return nil, zk.ErrNodeExists
		}
		above.stat.NumChildren, above.stat.Pzxid = above.stat.NumChildren+1, c.zxid
		c.nodes[op.Path] = &fakeNode{data: string(op.Data), acl: op.Acl, stat: zk.Stat{Czxid: c.zxid, Mzxid: c.zxid, Pzxid: c.zxid}}
		fire(op.Path, zk.EventNodeCreated, 0)
		fire(pathpkg.Dir(op.Path), 0, zk.EventNodeChildrenChanged)
	case *zk.SetDataRequest:
		n, err := versioned(op.Path, op.Version)
		if err != nil {
			return nil, err
		}
		n.data, n.stat.Version, n.stat.Mzxid = string(op.Data), n.stat.Version+1, c.zxid
		s := n.stat
		fire(op.Path, zk.EventNodeDataChanged, 0)
		return &s, nil
	case *zk.DeleteRequest:
		n, err := versioned(op.Path, op.Version)
		if err != nil {
			return nil, err
		}
		if n.stat.NumChildren > 0 {
			return nil, zk.ErrNotEmpty
		}
		delete(c.nodes, op.Path)
		above := c.nodes[pathpkg.Dir(op.Path)]
		above.stat.NumChildren, above.stat.Pzxid = above.stat.NumChildren-1, c.zxid
		fire(op.Path, zk.EventNodeDeleted, zk.EventNodeDeleted)
		fire(pathpkg.Dir(op.Path), 0, zk.EventNodeChildrenChanged)
	}
	return nil, err
}

// fire sends an event, if a watch of the connection is there for it. Called with the mutex held.
func (c *fakeConn) fire(p string, data, below zk.EventType) {
	for kind, watches := range map[zk.EventType]map[string]bool{data: c.data, below: c.below} {
		if kind == 0 || !watches[p] {
			continue
		}
		delete(watches, p)
		c.later(func(at time.Time) {
			time.Sleep(time.Until(at))
			c.events.pass(zk.Event{Type: kind, Path: p})
		})
	}
}
