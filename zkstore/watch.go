package zkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
)

// errWatchEnded is the error of a watch when its session has ended.
var errWatchEnded = errors.New("zkstore: the watch has ended")

// watching is a watch of an entry, or of the entries right below a name. A watch of ZooKeeper fires once: then
// the node is read again, and watched anew.
type watching struct {
	*server
	ctx   context.Context
	base  string
	one   bool            // only the entry of the name
	nodes map[string]node // as they were read last, if they are there

	mu    sync.Mutex
	fired map[string]bool // the names of nodes to read; the base stands for the names below it, unless one is set
	ended error
	more  chan struct{} // has room for one
}

// Watch implements [casstore.Server]. It reads changed nodes again until no more have
// changed: the client delivers changes before the reads, so that all values are of one
// moment then. The last report is compared with the present state.
func (s *server) Watch(ctx context.Context, prefix string, report func([]casstore.Change)) error {
	base := strings.TrimSuffix(prefix, "/")
	w := &watching{
		server: s, ctx: ctx, base: base, one: base == prefix, nodes: map[string]node{},
		fired: map[string]bool{base: true}, more: make(chan struct{}, 1),
	}
	defer s.conn.listen(w)()
	for first := true; ; first = false {
		before, now, err := w.look()
		if err != nil {
			return err
		}
		if first {
			before = nil
		}
		for _, changes := range changes(before, now) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			report(changes)
		}
		select {
		case <-w.more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// fires notes that a node has changed, or that its watch has ended.
func (w *watching) fires(name string, event zk.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fired[name] = true; event.Err != nil || event.Type == zk.EventNotWatching {
		w.ended = fmt.Errorf("%w: %w", errWatchEnded, event.Err)
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// take returns the nodes to read.
func (w *watching) take() (fired map[string]bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fired, w.fired = w.fired, map[string]bool{}
	return fired, w.ended
}

// look reads changed nodes, until no more have changed. It returns the nodes that it has read, as they were before and as
// they are now.
func (w *watching) look() (before, now map[string]node, err error) {
	before, now = map[string]node{}, map[string]node{}
	for {
		fired, err := w.take()
		if err != nil || len(fired) == 0 {
			return before, now, err
		}
		if fired[w.base] && !w.one {
			below, err := w.below()
			if err != nil {
				return nil, nil, err
			}
			delete(fired, w.base)
			for _, name := range below {
				if _, known := w.nodes[name]; !known {
					fired[name] = true
				}
			}
		}
		read, err := w.readAll(slices.Sorted(maps.Keys(fired)))
		if err != nil {
			return nil, nil, err
		}
		for name, n := range read {
			if _, again := now[name]; !again {
				before[name] = w.nodes[name]
			}
			now[name] = n
			if w.nodes[name] = n; !n.there {
				delete(w.nodes, name)
			}
		}
	}
}

// readAll reads and watches nodes, many at once.
func (w *watching) readAll(names []string) (map[string]node, error) {
	read := map[string]node{}
	for some := range slices.Chunk(names, together) {
		var all sync.WaitGroup
		var mu sync.Mutex
		var failed error
		for _, name := range some {
			all.Go(func() {
				n, err := w.read(name)
				mu.Lock()
				defer mu.Unlock()
				if read[name] = n; err != nil {
					failed = err
				}
			})
		}
		if all.Wait(); failed != nil {
			return nil, failed
		}
	}
	return read, nil
}

// read reads and watches a node. That it comes is watched only of the base: the names below that are watched.
func (w *watching) read(name string) (node, error) {
	for {
		n, err := call(w.ctx, w.server, func() (node, error) {
			data, stat, _, err := w.conn.GetW(path(name))
			if err != nil {
				return node{}, err
			}
			return newNode(data, stat), nil
		})
		if !errors.Is(err, zk.ErrNoNode) {
			return n, err
		}
		if name != w.base {
			return node{}, nil
		}
		if there, err := w.awaits(); err != nil || !there {
			return node{}, err
		}
	}
}

// below returns the names right below the base, and watches them.
func (w *watching) below() (names []string, err error) {
	for {
		parts, err := call(w.ctx, w.server, func() ([]string, error) {
			parts, _, _, err := w.conn.ChildrenW(path(w.base))
			return parts, err
		})
		if err == nil {
			for _, part := range entries(parts) {
				names = append(names, w.base+"/"+part)
			}
			return names, nil
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
		if there, err := w.awaits(); err != nil || !there {
			return nil, err
		}
	}
}

// awaits watches whether the base comes, unless it is there.
func (w *watching) awaits() (there bool, err error) {
	return call(w.ctx, w.server, func() (bool, error) {
		there, _, _, err := w.conn.ExistsW(path(w.base))
		return there, err
	})
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
