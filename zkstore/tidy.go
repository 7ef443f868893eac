package zkstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	// idle is for how long a node must have been no entry before it is deleted, at least;
	// nothing but the size of the tree rests on it.
	idle = 30 * time.Minute
	// atOnce is how many nodes are deleted in one transaction, which ends the epoch.
	atOnce = 500
)

// tidy deletes nodes that are no entries any more. Of all stores of a root one does so at
// a time: the one that ends the epoch.
func (s *Store) tidy() {
	last := map[string]int64{}
	for {
		timer := time.NewTimer(idle/2 + rand.N(idle))
		select {
		case <-timer.C:
			s.tidyOnce(last)
		case <-s.done.Done():
			timer.Stop()
			return
		}
	}
}

// tidyOnce deletes the nodes that have been no entries since the last time, when the epochs
// were these. What fails is done the next time.
func (s *Store) tidyOnce(last map[string]int64) {
	for _, r := range s.server.opened() {
		var err error
		last[r.name], err = s.server.tidyRoot(s.done, r, last[r.name])
		if err != nil && s.done.Err() == nil && !errors.Is(err, errOther) {
			s.Warn("nodes of deleted entries could not be deleted, and stay", err)
		}
	}
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
// the epoch that it leaves.
func (s *server) tidyRoot(ctx context.Context, r *root, last int64) (int64, error) {
	r.forget()
	at, _, err := s.open(ctx, r)
	if err != nil || at.number != last {
		return at.number, err
	}
	t := &tidying{server: s, root: r, before: last}
	if err = t.flush(ctx); err == nil {
		err = t.walk(ctx, r.name)
	}
	if err == nil {
		err = t.flush(ctx)
	}
	if err != nil {
		return 0, err
	}
	at, _, err = s.open(ctx, r)
	return at.number, err
}

// tidying is a walk over a root.
type tidying struct {
	*server
	root   *root
	before int64
	old    []step
}

// walk collects the nodes below a name that can go, the deepest first.
func (t *tidying) walk(ctx context.Context, name string) error {
	parts, _, err := t.children(ctx, name)
	if err != nil {
		return err
	}
	for _, part := range parts {
		own := name + "/" + part
		n, err := t.get(ctx, own)
		if err != nil {
			return err
		}
		if n.children > 0 {
			if err := t.walk(ctx, own); err != nil {
				return err
			}
		}
		if n.there && !n.live && n.number <= t.before && n.below <= t.before {
			t.old = append(t.old, step{own, &zk.DeleteRequest{Path: path(own), Version: n.version}, -1})
		}
		if len(t.old) >= atOnce {
			if err := t.flush(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush deletes what was collected, and ends the epoch in the same transaction. What has
// changed since it was read is left out.
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
