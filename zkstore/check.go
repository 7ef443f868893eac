package zkstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/driver"
)

// Check asks ZooKeeper about its members and its numbers. It returns a sorted list of
// unsafe conditions, each a sentence, or an empty list. Unsafe are fewer than three
// members that vote, an even number of them, a server that is older than 3.5, and a
// number of elections that leaves little room for fencing tokens. Without a right, a
// sentence begins with [driver.NotKnown]. The error matches driver.ErrUnavailable if ZooKeeper does not answer.
// Clocks do not matter.
func (s *Store) Check(ctx context.Context) ([]string, error) {
	var found []string
	members, err := s.server.voters(ctx)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		found = append(found, "the members are not in /zookeeper/config: the store needs ZooKeeper 3.5 or newer")
	case errors.Is(err, zk.ErrNoAuth):
		found = append(found, driver.NotKnown+"the members, since the user may not read /zookeeper/config")
	case err != nil:
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	case members < 3:
		found = append(found, fmt.Sprintf("%d members vote: with fewer than 3, no lock is granted while one is down", max(members, 1)))
	case members%2 == 0:
		found = append(found, fmt.Sprintf("%d members vote: one more than %d, and no more of them may fail", members, members-1))
	}
	if newest := s.server.newest.Load(); newest > highest/2 {
		found = append(found, fmt.Sprintf("a leader was elected %d times: after %d the store grants no lock", newest>>32, int64(highest)>>32))
	}
	slices.Sort(found)
	return found, nil
}

// voters counts the members that vote.
func (s *server) voters(ctx context.Context) (int, error) {
	data, err := call(ctx, s, func() ([]byte, error) {
		data, stat, err := s.conn.Get("/zookeeper/config")
		if err == nil {
			s.saw(stat.Mzxid)
		}
		return data, err
	})
	voters := 0
	for line := range strings.SplitSeq(string(data), "\n") {
		if strings.HasPrefix(line, "server.") && strings.Contains(line, ":participant") {
			voters++
		}
	}
	return voters, err
}
