package zkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
)

// errWatchEnded is the error of a watch when its session has ended.
var errWatchEnded = errors.New("zkstore: the watch has ended")

// watched is a node that is watched. A watch of ZooKeeper fires once: then the node is read
// again, and watched anew.
type watched struct {
	node      node
	data      <-chan zk.Event // fires when the node changes
	below     <-chan zk.Event // fires when a node below it comes or goes
	readData  bool            // it is to be read
	readBelow bool
}

// watching is a watch of an entry, or of all entries below a name.
type watching struct {
	*server
	ctx   context.Context
	base  string
	one   bool // only the entry of the name
	nodes map[string]*watched
}

// Watch implements [casstore.Server]. It reads changed nodes again until no more have
// changed: the client delivers changes before the reads, so that all values are of one
// moment then. The last report is compared with the present state.
func (s *server) Watch(ctx context.Context, prefix string, report func([]casstore.Change)) error {
	w := &watching{server: s, ctx: ctx, base: strings.TrimSuffix(prefix, "/"), nodes: map[string]*watched{}}
	w.one = w.base == prefix
	w.nodes[w.base] = &watched{readData: true, readBelow: !w.one}
	var last map[string]node
	for {
		if err := w.look(); err != nil {
			return err
		}
		now := map[string]node{}
		for name, at := range w.nodes {
			if w.one || name != w.base {
				now[name] = at.node
			}
		}
		for _, changes := range changes(last, now) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			report(changes)
		}
		last = now
		if err := w.wait(); err != nil {
			return err
		}
	}
}

// look reads changed nodes, until no more have changed.
func (w *watching) look() error {
	for {
		if err := w.drain(); err != nil {
			return err
		}
		done := true
		for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
			at := w.nodes[name]
			if at == nil || !at.readData && !at.readBelow {
				continue // a node above it has gone meanwhile
			}
			done = false
			if err := w.read(name, at); err != nil {
				return err
			}
		}
		if done {
			return nil
		}
	}
}

// read reads a node and its children, and watches both.
func (w *watching) read(name string, at *watched) error {
	if at.readData {
		n, fired, err := w.getWatched(name)
		if err != nil {
			return err
		}
		at.node, at.data, at.readData = n, fired, false
		if !n.there {
			at.readBelow, at.below = false, nil
			w.drop(name, nil)
			if name != w.base {
				delete(w.nodes, name) // the node above it is watched
			}
			return nil
		}
		if !w.one && at.below == nil {
			at.readBelow = true
		}
	}
	if !at.readBelow {
		return nil
	}
	r, err := w.arm(path(name)+"/", func() (armed, error) {
		names, _, fired, err := w.conn.ChildrenW(path(name))
		return armed{below: names, fired: fired}, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		at.readData, at.readBelow, at.below = true, false, nil
		return nil
	}
	if err != nil {
		return err
	}
	at.below, at.readBelow = r.fired, false
	there := map[string]bool{}
	for _, part := range entries(r.below) {
		own := name + "/" + part
		if there[own] = true; w.nodes[own] == nil {
			w.nodes[own] = &watched{readData: true, readBelow: true}
		}
	}
	w.drop(name, there)
	return nil
}

// getWatched reads a node and watches it, also if it is not there.
func (w *watching) getWatched(name string) (node, <-chan zk.Event, error) {
	for {
		r, err := w.arm(path(name), func() (armed, error) {
			data, stat, fired, err := w.conn.GetW(path(name))
			if err != nil {
				return armed{}, err
			}
			return armed{node: newNode(data, stat), fired: fired}, nil
		})
		if !errors.Is(err, zk.ErrNoNode) || name != w.base {
			if errors.Is(err, zk.ErrNoNode) {
				err = nil
			}
			return r.node, r.fired, err
		}
		r, err = w.arm(path(name)+"?", func() (armed, error) {
			there, _, fired, err := w.conn.ExistsW(path(name))
			return armed{node: node{there: there}, fired: fired}, err
		})
		if err != nil || !r.node.there {
			return node{}, r.fired, err
		}
	}
}

// armed is the finding of a watch that has not fired: it is as it was.
type armed struct {
	node  node
	below []string
	fired <-chan zk.Event
}

// watches are the watches that have not fired, by path and kind. The client cannot take one
// back, and keeps it until it fires: so a later watch of the same uses it, too.
type watches struct {
	mu sync.Mutex
	by map[string]armed
}

// arm reads and watches, unless there is a watch that has not fired.
func (w *watching) arm(what string, read func() (armed, error)) (armed, error) {
	w.watches.mu.Lock()
	last, ok := w.watches.by[what]
	w.watches.mu.Unlock()
	if ok {
		select {
		case <-last.fired: // others that wait for it see that it is closed
		default:
			return last, nil
		}
	}
	next, err := call(w.ctx, w.server, read)
	w.watches.mu.Lock()
	defer w.watches.mu.Unlock()
	if w.watches.by == nil || len(w.watches.by) >= remembers {
		w.watches.by = map[string]armed{}
	}
	if delete(w.watches.by, what); err == nil {
		w.watches.by[what] = next
	}
	return next, err
}

// drop forgets the nodes below a name that are not there any more.
func (w *watching) drop(name string, there map[string]bool) {
	for other := range w.nodes {
		part, below := strings.CutPrefix(other, name+"/")
		if !below {
			continue
		}
		part, _, _ = strings.Cut(part, "/")
		if !there[name+"/"+part] {
			delete(w.nodes, other)
		}
	}
}

// drain notes which watches have fired.
func (w *watching) drain() error {
	for _, at := range w.nodes {
		for _, c := range []<-chan zk.Event{at.data, at.below} {
			select {
			case e := <-c:
				if err := at.note(c, e); err != nil {
					return err
				}
			default:
			}
		}
	}
	return nil
}

// note notes that a watch has fired.
func (at *watched) note(c <-chan zk.Event, e zk.Event) error {
	switch {
	case e.Err != nil || e.Type == zk.EventNotWatching:
		return fmt.Errorf("%w: %w", errWatchEnded, e.Err)
	case c == at.data:
		at.data, at.readData = nil, true
	default:
		at.below, at.readBelow = nil, true
	}
	return nil
}

// wait waits until a watch fires.
func (w *watching) wait() error {
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(w.ctx.Done())}}
	of := []*watched{nil}
	for _, at := range w.nodes {
		for _, c := range []<-chan zk.Event{at.data, at.below} {
			if c != nil {
				cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)})
				of = append(of, at)
			}
		}
	}
	i, value, _ := reflect.Select(cases)
	if i == 0 {
		return context.Cause(w.ctx)
	}
	return of[i].note(cases[i].Chan.Interface().(<-chan zk.Event), value.Interface().(zk.Event))
}

// changes returns the changes between two looks, by transaction. The first look has all
// entries that there are.
func changes(last, now map[string]node) [][]casstore.Change {
	by := map[int64][]casstore.Change{}
	newest := int64(0)
	for _, n := range now {
		newest = max(newest, n.number)
	}
	written := func(name string, n node) casstore.Change { return casstore.Change{Entry: n.entry(name)} }
	deleted := func(name string) casstore.Change {
		return casstore.Change{Entry: casstore.Entry{Name: name}, Deleted: true}
	}
	all := maps.Clone(now)
	maps.Copy(all, last)
	names := slices.Sorted(maps.Keys(all))
	for _, name := range names {
		n, before := now[name], last[name]
		switch {
		case !n.live || before.live && before.same(n):
		case before.live && n.version != before.version+1: // it may have been deleted between
			by[n.number] = append(by[n.number], deleted(name), written(name, n))
		default:
			by[n.number] = append(by[n.number], written(name, n))
		}
	}
	for _, name := range names {
		if n := now[name]; last[name].live && !n.live {
			at := n.number
			if !n.there {
				at = newest
			}
			by[at] = append(by[at], deleted(name))
		}
	}
	if last == nil {
		first := []casstore.Change{}
		for _, some := range by {
			first = append(first, some...)
		}
		slices.SortFunc(first, func(a, b casstore.Change) int { return cmp.Compare(a.Name, b.Name) })
		return [][]casstore.Change{first}
	}
	reports := make([][]casstore.Change, 0, len(by))
	for _, number := range slices.Sorted(maps.Keys(by)) {
		reports = append(reports, by[number])
	}
	return reports
}
