package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// wrongClock says how far a node's clock is from the clock in the middle.
func wrongClock(off time.Duration) string {
	where := "ahead of"
	if off < 0 {
		where = "behind"
	}
	return fmt.Sprintf("its clock is %v %s the clock in the middle of the nodes: tokens follow the nodes' clocks", off.Abs(), where)
}

// Check asks all nodes at once for their identity and their settings. It returns a sorted
// list of sentences, one for each unsafe fact; the list is empty if all is well. The list
// has nodes that do not answer, nodes without a vote (after a restart, or because they are
// the same server as another node), nodes with a clock more than a second off the other
// nodes' clocks, nodes for which a process with another [MaxTTL] has vouched, and what
// Check of a redisstore.Store finds on each node. The error is [driver.ErrConfig] if two
// nodes are one server, and [driver.ErrUnavailable] if fewer than a majority answered.
// Check is safe for concurrent use.
func (s *Store) Check(ctx context.Context) ([]string, error) {
	s.start() // nodes that have no vote get it after a while
	var mu sync.Mutex
	var found []string
	answered := 0
	var wg sync.WaitGroup
	for _, n := range s.nodes {
		wg.Go(func() {
			err := n.server.Meet(ctx)
			var list []string
			if err == nil {
				list, err = n.server.Check(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			found = append(found, list...)
			if err != nil {
				found = append(found, fmt.Sprintf("%s: %v", n.name, err))
				return
			}
			answered++
		})
	}
	wg.Wait()
	var twins error
	now := time.Now()
	for i, n := range s.nodes {
		if err := s.admission.leftOut(i, now); err != nil {
			found = append(found, fmt.Sprintf("%s: %v", n.name, err))
			if errors.Is(err, driver.ErrConfig) {
				twins = errors.Join(twins, fmt.Errorf("%s: %w", n.name, err))
			}
		}
		if off := s.off(n); off != 0 {
			found = append(found, fmt.Sprintf("%s: %s", n.name, wrongClock(off)))
		}
		if there := s.admission.differs(i); there > 0 {
			found = append(found, fmt.Sprintf("%s: a process with MaxTTL %v has let it vote, and here MaxTTL is %v; "+
				"all processes need the same", n.name, there, s.maxTTL))
		}
	}
	slices.Sort(found)
	switch {
	case twins != nil:
		return found, twins
	case answered < s.majority:
		return found, because(driver.ErrUnavailable, "%d of %d nodes answered, %d are needed",
			answered, len(s.nodes), s.majority)
	}
	return found, nil
}
