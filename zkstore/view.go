package zkstore

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/interlock-go/interlock/core/casstore"
)

const (
	// together is the number of nodes of a list that are read at once.
	together = 100
	// remembers is the number of nodes that the adapter remembers.
	remembers = 10_000
)

// view is the result of several reads.
type view struct {
	nodes map[string]node
	lists [][]casstore.Entry
}

// entries are some nodes as entries.
func (v view) entries(names []string) []casstore.Entry {
	list := make([]casstore.Entry, len(names))
	for i, name := range names {
		list[i] = v.nodes[name].entry(name)
	}
	return list
}

// look reads entries and lists once. They need not be of one moment: if it read again until nothing has changed
// meanwhile, it would never end where others change a key all the time and a member is far away. known has nodes that
// need not be read.
func (s *server) look(ctx context.Context, names []string, known map[string]node, lists []casstore.Range) (v view, err error) {
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
	newest := int64(0)
	err = s.getAll(ctx, unknown, func(name string, n node) {
		v.nodes[name] = n
		newest = max(newest, n.number)
	})
	begun.Wait()
	for i := range lists {
		if err == nil {
			err = walks[i].read(ctx, newest)
		}
		v.lists = append(v.lists, walks[i].entries)
	}
	return v, err
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

	parts  []string // the names right below
	moment int64    // the number of a transaction that the member had executed when it gave them
	err    error
}

func (l *list) top() string { return strings.TrimSuffix(l.of.Prefix, "/") }

// begin reads the names right below.
func (l *list) begin(ctx context.Context) {
	var of node
	l.parts, of, l.err = l.children(ctx, l.top())
	l.moment = max(of.number, of.below)
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
		switch {
		case isUnder && n.children > 0:
			parts, _, err := l.children(ctx, own)
			if err == nil {
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
