package redisstore

import (
	"context"
	"slices"
	"strings"
	"time"
)

// tidyAfter is how long after a new node of a Cluster was met those are looked for
// that are no longer masters. By then their last requests have ended.
const tidyAfter = 5 * time.Second

// lanesFor returns the lanes to the server that has the key.
func (s *Store) lanesFor(lock string) (*lanes, error) {
	if s.direct != nil {
		return s.direct, nil
	}
	node, err := s.cluster.MasterForKey(context.Background(), lock)
	if err != nil {
		return nil, err
	}
	s.routed.Store(true)
	addr := node.Options().Addr
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.nodes[addr]
	if q == nil || q.client != node { // new, or forgotten and found again by go-redis
		q = &lanes{client: node, ack: s.ack, together: &s.together, closed: s.shut.Load()}
		s.nodes[addr] = q
		if len(s.nodes) > 1 && !s.tidying {
			s.tidying = true
			time.AfterFunc(tidyAfter, s.tidy)
		}
	}
	return q, nil
}

// tidy forgets the lanes to nodes of a Cluster that are no longer masters: those of
// a Cluster whose addresses change, as in Kubernetes, would pile up.
func (s *Store) tidy() {
	masters, err := mastersOf(s.cluster)(s.dialer.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tidying = false
	if err != nil {
		return // the next new node has it tried again
	}
	for addr, q := range s.nodes {
		if !slices.Contains(masters, addr) && q.quiet() {
			delete(s.nodes, addr)
		}
	}
}

// reconsider takes an error after which another server may be the master. READONLY
// is the answer of one that has become a replica, and NOREPLICAS that of one that
// was cut off from its replicas. On a Cluster the topology tells where to go
// instead. Elsewhere the address may lead to another server by now, so that all
// connections are made anew, subscriptions too.
func (s *Store) reconsider(err error) {
	if s.cluster != nil {
		s.reload()
		return
	}
	if text := err.Error(); isReply(err) && (strings.HasPrefix(text, "READONLY ") || strings.HasPrefix(text, "NOREPLICAS ")) {
		s.dialer.sever()
	}
}
