package zkstore

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/interlock-go/interlock/core/casstore"
)

const (
	// together is how many nodes of a list are read at once.
	together = 100
	// remembers is how many nodes the adapter remembers.
	remembers = 10_000
)

// view is the result of several reads, all of one moment.
type view struct {
	nodes map[string]node
	lists [][]casstore.Entry
}

// view reads entries and lists. number, unless zero, is of a transaction that the member
// has executed: where nothing was written since, all that is read is of that moment. Else
// it reads until two looks find the same. known has nodes that are as they were at that
// moment. Lists with a limit are the pages of a long list, and read once: see
// [casstore.Range].
func (s *server) view(ctx context.Context, names []string, known map[string]node, lists []casstore.Range, number int64) (view, error) {
	var last *view
	for {
		v, newest, looks, err := s.look(ctx, names, known, lists)
		if err != nil {
			return view{}, err
		}
		if number > 0 && newest <= number || looks <= 1 || last != nil && v.same(*last) {
			return v, nil
		}
		last, known = &v, nil
	}
}

// entries are some nodes as entries.
func (v view) entries(names []string) []casstore.Entry {
	list := make([]casstore.Entry, len(names))
	for i, name := range names {
		list[i] = v.nodes[name].entry(name)
	}
	return list
}

func (v view) same(o view) bool {
	for name, n := range v.nodes {
		if !n.same(o.nodes[name]) {
			return false
		}
	}
	return slices.EqualFunc(v.lists, o.lists, func(a, b []casstore.Entry) bool { return slices.Equal(a, b) })
}

// look reads entries and lists once. newest is the number of the last change of it, looks how
// many nodes it has asked for that can change the result.
func (s *server) look(
	ctx context.Context, names []string, known map[string]node, lists []casstore.Range,
) (v view, newest int64, looks int, err error) {
	v.nodes = map[string]node{}
	var unknown []string
	for _, name := range names {
		n, ok := known[name]
		if _, twice := v.nodes[name]; !ok && !twice {
			unknown = append(unknown, name)
		}
		v.nodes[name] = n
	}
	// The lists are begun together with the names, and begin again where they may be older than those.
	walks := make([]list, len(lists))
	var begun sync.WaitGroup
	for i, r := range lists {
		walks[i] = list{reads: s, of: r}
		begun.Go(func() { walks[i].begin(ctx) })
	}
	err = s.getAll(ctx, unknown, func(name string, n node) {
		v.nodes[name] = n
		newest = max(newest, n.number)
	})
	begun.Wait()
	if looks = len(unknown); len(known) > 0 {
		looks++
	}
	after := newest
	for i, r := range lists {
		l := &walks[i]
		if err == nil {
			err = l.read(ctx, after)
		}
		if r.Limit == 0 {
			newest = max(newest, l.newest)
			looks += 2
		}
		v.lists = append(v.lists, l.entries)
	}
	return v, newest, looks, err
}

// getAll reads nodes at once.
func (s *server) getAll(ctx context.Context, names []string, do func(string, node)) error {
	if len(names) == 1 {
		n, err := s.get(ctx, names[0])
		if err == nil {
			do(names[0], n)
		}
		return err
	}
	var mu sync.Mutex
	var first error
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			n, err := s.get(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				first = err
				return
			}
			do(name, n)
		})
	}
	all.Wait()
	return first
}

// reads are the requests of a list.
type reads interface {
	children(ctx context.Context, name string) ([]string, node, error)
	getAll(ctx context.Context, names []string, do func(string, node)) error
}

// list reads the entries below a name.
type list struct {
	reads
	of      casstore.Range
	entries []casstore.Entry
	newest  int64

	parts  []string // the names right below
	moment int64    // the number of a transaction that the member had executed when it gave them
	err    error
}

func (l *list) top() string { return strings.TrimSuffix(l.of.Prefix, "/") }

// begin reads the names right below.
func (l *list) begin(ctx context.Context) {
	var of node
	l.parts, of, l.err = l.children(ctx, l.top())
	l.newest, l.moment = max(l.newest, of.below), max(of.number, of.below)
}

// read reads the entries. If it has begun before the transaction with a number, as far as is known, it
// begins again.
func (l *list) read(ctx context.Context, number int64) error {
	if l.err == nil && l.moment < number {
		l.begin(ctx)
	}
	if l.err != nil {
		return l.err
	}
	return l.walk(ctx, l.top(), l.parts)
}

func (l *list) full() bool { return l.of.Limit > 0 && len(l.entries) >= l.of.Limit }

// walk reads the entries below a name, in the order of their names. parts are the names right below.
func (l *list) walk(ctx context.Context, name string, parts []string) error {
	// The names below a node sort as if the node's name ended with a slash.
	var order []string
	for _, part := range parts {
		own, under := name+"/"+part, name+"/"+part+"/"
		if own > l.of.After {
			order = append(order, own)
		}
		if under > l.of.After || strings.HasPrefix(l.of.After, under) {
			order = append(order, under)
		}
	}
	slices.Sort(order)
	read := map[string]node{}
	for i, own := range order {
		if l.full() {
			return nil
		}
		under, isUnder := strings.CutSuffix(own, "/")
		if isUnder {
			own = under
		}
		if _, ok := read[own]; !ok {
			if err := l.getAll(ctx, ahead(order[i:], read), func(name string, n node) { read[name] = n }); err != nil {
				return err
			}
		}
		n := read[own]
		l.newest = max(l.newest, n.number, n.below)
		switch {
		case isUnder && n.children > 0:
			parts, of, err := l.children(ctx, own)
			if l.newest = max(l.newest, of.below); err == nil {
				err = l.walk(ctx, own, parts)
			}
			if err != nil {
				return err
			}
		case !isUnder && n.live:
			l.entries = append(l.entries, n.entry(own))
		}
	}
	return nil
}

// ahead are the next names that have to be read.
func ahead(order []string, read map[string]node) []string {
	var names []string
	asked := map[string]bool{}
	for _, name := range order {
		name = strings.TrimSuffix(name, "/")
		if _, ok := read[name]; ok || asked[name] {
			continue
		}
		asked[name] = true
		if names = append(names, name); len(names) == together {
			break
		}
	}
	return names
}

// remembered returns the last state of a node in an epoch.
func (r *root) remembered(name string, in epoch) (node, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, ok := r.nodes[name]
	return n, ok && r.seenIn == in
}

// learned notes the state of a node that was read in an epoch, or written in it. A node that
// is not there is not remembered: most of those are never asked for again.
func (r *root) learned(name string, n node, in epoch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case in.number < r.seenIn.number:
		return
	case in != r.seenIn || len(r.nodes) >= remembers || r.nodes == nil:
		r.seenIn, r.nodes = in, map[string]node{}
	}
	if n.value = ""; n.there {
		r.nodes[name] = n
	} else {
		delete(r.nodes, name)
	}
}
