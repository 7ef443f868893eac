package zkstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

// errFar says that the numbers of this ZooKeeper leave no room for fencing tokens.
var errFar = fmt.Errorf("%w: %w", casstore.ErrRefused, errors.New("zkstore: this ZooKeeper has elected a leader more than "+
	"16,127 times: the number of a change comes near 2^46, which leaves no room for fencing tokens; use a new ensemble"))

// commit is a transaction on its way.
type commit struct {
	*server
	root *root
	txn  casstore.Txn
	// nodes has the assumed states of the nodes of the conditions and operations.
	// ZooKeeper compares: a mistake costs a look, and another try. They were read in the
	// epoch, or written in it.
	nodes map[string]node
	at    epoch
	acl   []zk.ACL
	// conditions are the conditions of the transaction, by name.
	conditions map[string]casstore.Revision
}

// Commit implements [casstore.Server]. ZooKeeper executes a list of operations, each with
// the version of its node, as one change or not at all.
func (s *server) Commit(ctx context.Context, txn casstore.Txn) (answer casstore.Answer, err error) {
	if len(txn.If)+len(txn.Then)+len(txn.Read)+len(txn.List)+len(txn.Else) == 0 {
		return casstore.Answer{Done: true}, nil
	}
	if s.newest.Load() >= highest {
		return answer, errFar
	}
	r, err := s.rootOf(txn)
	if err != nil {
		return answer, err
	}
	c := &commit{server: s, root: r, txn: txn, conditions: map[string]casstore.Revision{}}
	for _, condition := range txn.If {
		c.conditions[condition.Name] = condition.Revision
	}
	for {
		session := c.conn.SessionID()
		answer, again, err := c.once(ctx)
		if err == nil && c.conn.SessionID() == session {
			s.answered.Store(session)
		} else if err == nil {
			s.answered.Store(0)
		}
		if !again || err != nil {
			return answer, err
		}
	}
}

// once makes one try, or only reads.
func (c *commit) once(ctx context.Context) (answer casstore.Answer, again bool, err error) {
	if len(c.txn.If)+len(c.txn.Then) > 0 {
		return c.try(ctx)
	}
	answer, err = c.read(ctx)
	return answer, false, err
}

// try makes one try. again says that nothing was executed, and that an assumed state was
// wrong.
func (c *commit) try(ctx context.Context) (answer casstore.Answer, again bool, err error) {
	if err := c.ready(ctx); err != nil {
		return answer, false, err
	}
	session := c.conn.SessionID()
	if c.nodes == nil {
		if c.at, c.acl, err = c.open(ctx, c.root); err == nil {
			err = c.believe(ctx)
		}
		if err != nil {
			return answer, false, unsent(err)
		}
	}
	p, holds := plan{}, c.hold(c.nodes)
	if holds {
		p = c.plan()
	} // else an empty transaction: a read after it is no older
	o := c.multi(ctx, c.root, c.at.version, p)
	switch {
	case o.err == nil && holds:
		return c.executed(ctx, session, p.steps, o)
	case o.err != nil && !mistaken(o.err):
		return answer, false, o.err
	case o.err != nil:
		if err := c.correct(ctx, o); err != nil {
			return answer, false, unsent(err)
		}
	}
	if c.at, c.acl, err = c.open(ctx, c.root); err != nil {
		return answer, false, unsent(err)
	}
	v, err := c.look(ctx, c.names(), nil, nil)
	if err == nil && c.conn.SessionID() != session {
		err = errOtherSession
	}
	if err != nil {
		return answer, false, unsent(err)
	}
	c.nodes = v.nodes
	for name, n := range v.nodes {
		c.root.learned(name, n, c.at)
	}
	if c.hold(v.nodes) {
		return answer, true, nil
	}
	return casstore.Answer{Read: v.entries(c.txn.Else)}, false, nil
}

// read reads, and writes nothing: so who has no other right can look. A member answers alone. If it must not lag behind
// others, it first takes all changes that the leader has made (sync). In a session no answer is older than one before it.
func (c *commit) read(ctx context.Context) (answer casstore.Answer, err error) {
	if err := c.ready(ctx); err != nil {
		return answer, err
	}
	session := c.conn.SessionID()
	if !c.txn.Late || c.answered.Load() != session {
		_, err = call(ctx, c.server, func() (string, error) { return c.conn.Sync(path(c.root.name)) })
	}
	var v view
	if err == nil {
		v, err = c.look(ctx, c.txn.Read, nil, c.txn.List)
	}
	if err == nil && c.conn.SessionID() != session {
		err = errOtherSession
	}
	if err != nil {
		return answer, unsent(err)
	}
	return casstore.Answer{Done: true, Read: v.entries(c.txn.Read), Lists: v.lists}, nil
}

// unsent says of an error that nothing was executed.
func unsent(err error) error {
	if errors.Is(err, casstore.ErrRefused) || errors.Is(err, driver.ErrNotReady) {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrNotReady, err)
}

// names are the names of all entries that a transaction is about which is not executed.
func (c *commit) names() []string {
	all := map[string]bool{}
	for name := range c.conditions {
		all[name] = true
	}
	for _, op := range c.txn.Then {
		all[op.Name] = true
	}
	for _, name := range c.txn.Else {
		all[name] = true
	}
	return slices.Collect(maps.Keys(all))
}

// believe fills in the assumed states. The memory of the epoch has them, and so has a
// condition that names a revision, unless that is from before the epoch: then the node may
// have been deleted and created since, up to the same version.
func (c *commit) believe(ctx context.Context) error {
	c.nodes = map[string]node{}
	var unknown, absent []string
	for name, revision := range c.conditions {
		last, known := c.root.remembered(name, c.at)
		switch {
		case known && revision.Is(last.revision()):
			c.nodes[name] = last
		case revision.Version == casstore.AnyVersion:
			unknown = append(unknown, name)
		case revision != casstore.Revision{} && revision.Number > c.at.number:
			c.nodes[name] = node{there: true, live: true, number: revision.Number, version: int32(revision.Version)}
		case revision == casstore.Revision{} && !known && !c.written(name):
			c.nodes[name] = node{}
			absent = append(absent, name)
		default:
			unknown = append(unknown, name)
		}
	}
	for _, op := range c.txn.Then {
		if _, known := c.conditions[op.Name]; known {
			continue
		}
		last, known := c.root.remembered(op.Name, c.at)
		switch {
		case known:
			c.nodes[op.Name] = last
		case op.Brief: // most likely it is not there; if it is, the transaction fails, and finds out
			c.nodes[op.Name] = node{}
		default:
			unknown = append(unknown, op.Name)
		}
	}
	if len(unknown) > 0 {
		unknown = append(unknown, absent...) // in the same time
	}
	return c.getAll(ctx, unknown, func(name string, n node) {
		c.nodes[name] = n
		c.root.learned(name, n, c.at)
	})
}

func (c *commit) written(name string) bool {
	for _, op := range c.txn.Then {
		if op.Name == name {
			return true
		}
	}
	return false
}

// hold reports whether the conditions hold.
func (c *commit) hold(nodes map[string]node) bool {
	for name, revision := range c.conditions {
		if !revision.Is(nodes[name].revision()) {
			return false
		}
	}
	return true
}

// step is an operation of ZooKeeper.
type step struct {
	name string
	op   any
	then int // the place of the operation in the transaction; -1 for a condition, or a part of one
}

// plan is the work of ZooKeeper for a transaction.
type plan struct {
	checks []check // of nodes that no step is about
	steps  []step
}

// check compares the version of a node.
type check struct {
	name    string
	version int32
}

// plan makes the operations of ZooKeeper.
func (c *commit) plan() plan {
	var p plan
	for name := range c.conditions {
		if !c.written(name) {
			p.unchanged(name, c.nodes[name], -1, c.acl)
		}
	}
	for i, op := range c.txn.Then {
		n, data, version := c.nodes[op.Name], gone, int32(anyVersion)
		if _, compared := c.conditions[op.Name]; compared || n.version >= nearAny && n.version < anyVersion {
			version = n.compared()
		}
		if !op.Delete {
			data = there + op.Value
		}
		switch {
		case !n.there && op.Delete:
			p.unchanged(op.Name, n, i, c.acl)
		case op.Delete && op.Brief && n.children == 0:
			p.steps = append(p.steps, step{op.Name, &zk.DeleteRequest{Path: path(op.Name), Version: version}, i})
		case !n.there:
			p.steps = append(p.steps, step{op.Name, &zk.CreateRequest{Path: path(op.Name), Data: []byte(data), Acl: c.acl}, i})
		default:
			p.steps = append(p.steps, step{op.Name, &zk.SetDataRequest{Path: path(op.Name), Data: []byte(data), Version: version}, i})
			if n.version == anyVersion-1 {
				p.steps = append(p.steps, step{op.Name, &zk.SetDataRequest{Path: path(op.Name), Data: []byte(data), Version: anyVersion}, i})
			}
		}
	}
	return p
}

// unchanged compares that a node is as it is taken for. That it is not there is compared
// by creating it as no entry: the next time its version is compared.
func (p *plan) unchanged(name string, n node, then int, acl []zk.ACL) {
	if n.there {
		p.checks = append(p.checks, check{name, n.compared()})
	} else {
		p.steps = append(p.steps, step{name, &zk.CreateRequest{Path: path(name), Data: []byte(gone), Acl: acl}, then})
	}
}

// correct makes the missing nodes that a transaction has failed for. Called after a
// transaction that was not executed.
func (c *commit) correct(ctx context.Context, o outcome) error {
	switch _, creates := o.wrong.op.(*zk.CreateRequest); {
	case o.wrong.name == c.root.name:
		c.root.forget() // the epoch has ended
	case creates && errors.Is(o.err, zk.ErrNoNode):
		return c.parents(ctx, o.wrong.name, c.acl)
	}
	return nil
}

// executed answers after a transaction that was executed.
func (c *commit) executed(ctx context.Context, session int64, steps []step, o outcome) (casstore.Answer, bool, error) {
	c.saw(o.number)
	answer := casstore.Answer{Done: true, Written: make([]casstore.Revision, len(c.txn.Then))}
	now, childless := map[string]node{}, map[string]bool{}
	for name := range c.conditions {
		now[name] = c.nodes[name]
	}
	for i, s := range steps {
		n := node{there: true, number: o.number}
		switch s.op.(type) {
		case *zk.CreateRequest:
		case *zk.DeleteRequest:
			n = node{}
		case *zk.SetDataRequest:
			n.version = o.results[i].Stat.Version
			childless[s.name+"/"] = o.results[i].Stat.NumChildren == 0 && !c.writesBelow(s.name)
		default:
			continue
		}
		if s.then >= 0 && !c.txn.Then[s.then].Delete {
			n.live, n.value = true, c.txn.Then[s.then].Value
			answer.Written[s.then] = n.revision()
		} else if n.there {
			c.left.Add(1)
		}
		now[s.name] = n
		c.root.learned(s.name, n, c.at)
	}
	for name, n := range now {
		if n.live && n.value == "" && !c.written(name) {
			delete(now, name) // its revision is known, its value is not
		}
	}
	lists := slices.Clone(c.txn.List)
	if !slices.ContainsFunc(lists, func(r casstore.Range) bool { return !childless[r.Prefix] }) {
		answer.Lists, lists = make([][]casstore.Entry, len(lists)), nil
	}
	if len(c.txn.Read)+len(lists) == 0 {
		return answer, false, nil
	}
	v, err := c.look(ctx, c.txn.Read, now, lists)
	if err == nil && c.conn.SessionID() != session {
		err = errOtherSession
	}
	if err != nil {
		return casstore.Answer{}, false, err
	}
	if answer.Read = v.entries(c.txn.Read); lists != nil {
		answer.Lists = v.lists
	}
	return answer, false, nil
}

// writesBelow reports whether the transaction writes a node below one.
func (c *commit) writesBelow(name string) bool {
	return slices.ContainsFunc(c.txn.Then, func(op casstore.Op) bool { return strings.HasPrefix(op.Name, name+"/") })
}
