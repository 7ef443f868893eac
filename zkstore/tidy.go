package zkstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	// idle is for how long a node must have been no entry before it is deleted, at least;
	// nothing but the size of the tree rests on it.
	idle = 30 * time.Minute
	// many is after how many deleted nodes, or entries that this process has deleted, the next tidying comes soon, and busy
	// when.
	many = 2000
	busy = 2 * time.Minute
	// atOnce is the number of nodes that one transaction deletes, which ends the epoch.
	atOnce = 500
)

// tidy deletes nodes that are no entries any more. Of all stores of a root only one does so
// at a time: the store that ends the epoch.
func (s *Store) tidy() {
	last, due := map[string]int64{}, time.Now().Add(idle/2+rand.N(idle))
	for {
		timer := time.NewTimer(busy/2 + rand.N(busy))
		select {
		case <-timer.C:
		case <-s.done.Done():
			timer.Stop()
			return
		}
		if time.Now().Before(due) && s.server.left.Load() < many {
			continue
		}
		most := s.tidyOnce(last)
		if most > 0 {
			s.server.left.Store(0)
		}
		if due = time.Now(); most < many {
			due = due.Add(idle/2 + rand.N(idle))
		}
	}
}

// tidyOnce deletes the nodes that have been no entries since the last time, when the epochs
// were these. Failed deletions are done the next time. It returns how many nodes it has
// deleted below one root at most.
func (s *Store) tidyOnce(last map[string]int64) (most int) {
	for _, r := range s.server.opened() {
		now, deleted, err := s.server.tidyRoot(s.done, r, last[r.name])
		last[r.name], most = now, max(most, deleted)
		if err != nil && s.done.Err() == nil && !errors.Is(err, errOther) {
			s.Warn("nodes of deleted entries could not be deleted, and stay", err)
		}
	}
	return most
}

// errOther says that another process has ended the epoch.
var errOther = errors.New("zkstore: another process tidies")

// opened are the roots that were used.
func (s *server) opened() []*root {
	s.rooting.Lock()
	defer s.rooting.Unlock()
	var list []*root
	for _, r := range s.roots {
		list = append(list, r)
	}
	return list
}

// tidyRoot ends the epoch that began with the number last, and deletes the nodes that have
// been no entries since then, unless another store has ended it. It returns the number of
// the epoch that it leaves, and how many nodes it has deleted.
func (s *server) tidyRoot(ctx context.Context, r *root, last int64) (now int64, deleted int, err error) {
	r.forget()
	at, _, err := s.open(ctx, r)
	if err != nil || at.number != last {
		return at.number, 0, err
	}
	t := &tidying{server: s, root: r, before: last}
	if err = t.flush(ctx); err != nil {
		return 0, 0, err
	}
	names, err := t.below(ctx, []string{r.name}, map[string]node{r.name: {children: 1}})
	if err == nil {
		err = t.walk(ctx, names)
	}
	if err == nil {
		err = t.flush(ctx)
	}
	if err != nil {
		return 0, t.deleted, err
	}
	at, _, err = s.open(ctx, r)
	return at.number, t.deleted, err
}

// tidying is a walk over a root.
type tidying struct {
	*server
	root    *root
	before  int64
	old     []step
	deleted int
}

// walk collects some nodes that can go, and before them the nodes below them. It reads as
// many nodes at once as lists do, so that callers do not leave nodes faster than they go.
func (t *tidying) walk(ctx context.Context, names []string) error {
	for some := range slices.Chunk(names, together) {
		read := map[string]node{}
		if err := t.getAll(ctx, some, func(name string, n node) { read[name] = n }); err != nil {
			return err
		}
		below, err := t.below(ctx, some, read)
		if err == nil {
			err = t.walk(ctx, below)
		}
		if err != nil {
			return err
		}
		for _, own := range some {
			if n := read[own]; n.there && !n.live && n.number <= t.before && n.below <= t.before {
				t.old = append(t.old, step{own, &zk.DeleteRequest{Path: path(own), Version: n.version}, -1})
			}
		}
		if len(t.old) >= atOnce {
			if err := t.flush(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// below are the names of the nodes below some nodes.
func (t *tidying) below(ctx context.Context, names []string, read map[string]node) ([]string, error) {
	var mu sync.Mutex
	var list []string
	var failed error
	var all sync.WaitGroup
	for _, name := range names {
		if read[name].children == 0 {
			continue
		}
		all.Go(func() {
			parts, _, err := t.children(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
			for _, part := range parts {
				list = append(list, name+"/"+part)
			}
		})
	}
	all.Wait()
	return list, failed
}

// flush deletes the collected nodes, and ends the epoch in the same transaction. It leaves
// out nodes that have changed since they were read.
func (t *tidying) flush(ctx context.Context) error {
	for {
		at, _, err := t.open(ctx, t.root)
		if err != nil {
			return err
		}
		o := t.multi(ctx, t.root, at.version, plan{steps: append([]step{t.root.end(at)}, t.old...)})
		t.root.forget()
		switch {
		case o.err == nil:
			t.deleted += len(t.old)
			t.old = nil
			return nil
		case !mistaken(o.err):
			return o.err
		case o.wrong.name == t.root.name:
			return errOther
		}
		t.old = slices.DeleteFunc(t.old, func(s step) bool { return s.name == o.wrong.name })
	}
}
