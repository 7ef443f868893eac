package quorum

import (
	"context"
	"time"
)

// lookTimeout bounds a look at a node, which may have to connect first.
const lookTimeout = 5 * time.Second

// start has the nodes looked after from the first use of the store on.
func (s *Store) start() {
	s.started.Do(func() {
		for _, n := range s.nodes {
			s.work.Go(n.keep)
		}
	})
}

// keep looks at the node from time to time, and when it was found to have no vote, so that
// it gets its vote again also while no caller asks for locks.
func (n *node) keep() {
	timer := time.NewTimer(n.store.admission.every())
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-n.stale:
		case <-n.store.work.Life().Done():
			return
		}
		timer.Reset(n.look())
	}
}

// refresh has the node looked at now.
func (n *node) refresh() {
	select {
	case n.stale <- struct{}{}:
	default:
	}
}

// look asks the node for its mark, and writes the next one when it is time. It returns
// when to look again.
func (n *node) look() (next time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	members := n.store.admission
	for {
		if err := n.server.Meet(ctx); err != nil {
			break // the elections notice, and say so
		}
		if off := n.store.off(n); off != 0 && n.clocks.Count(time.Now()) > 0 {
			members.log.Warn("interlock: "+wrongClock(off), "node", n.name)
		}
		from, to, next := members.due(n.index, time.Now())
		if to == "" {
			return next
		}
		if err := n.server.Mark(ctx, from, to); err != nil {
			members.unmarked(n.index, err)
			break
		}
	}
	return members.every()
}
