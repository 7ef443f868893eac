package rediswire

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// tidyAfter is how long after a new node of a Cluster was met those are looked for
// that are no longer masters. By then their last requests have ended.
const tidyAfter = 5 * time.Second

// route brings requests to their servers. A store has two, each with connections of
// its own: one for the requests of callers, one for renewals.
type route struct {
	store *Store
	// The connections: either of the two.
	single   *redis.Client
	cluster  *redis.ClusterClient
	topology *topology // how the Cluster's is asked for
	// renews says that the requests are renewals. Those end with their callers'
	// deadlines, and the replicas are asked about them only if that was wanted.
	renews   bool
	ack      ack
	most     int // pipelines to one server that are under way
	patience time.Duration

	direct    *pipelines    // of single
	following chan struct{} // a place for each redirection under way
	routed    atomic.Bool   // the Cluster's topology has been read once

	mu      sync.Mutex
	nodes   map[string]*pipelines // of the Cluster, by address
	tidying bool                  // nodes will be looked through in a while
}

// overSingle makes the route to a single server.
func (w *route) overSingle(c *redis.Client) {
	w.single, w.direct = c, w.newPipelines(c)
}

// overCluster makes the route to the nodes of a Cluster.
func (w *route) overCluster(c *redis.ClusterClient) {
	w.cluster, w.nodes = c, make(map[string]*pipelines)
	w.topology = &topology{client: c, ctx: w.store.dialer.ctx}
}

func (w *route) newPipelines(c *redis.Client) *pipelines {
	return &pipelines{
		client: c, ack: w.ack, keyspace: w.store.keyspace, most: w.most, patience: w.patience, bounded: w.renews,
		closed: w.store.shut.Load(),
	}
}

// to returns the pipelines to the server that has the key.
func (w *route) to(lock string) (*pipelines, error) {
	if w.direct != nil {
		return w.direct, nil
	}
	node, err := w.cluster.MasterForKey(context.Background(), lock)
	if err != nil {
		return nil, err
	}
	w.routed.Store(true)
	addr := node.Options().Addr
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.nodes[addr]
	if q == nil || q.client != node { // new, or forgotten and found again by go-redis
		if q != nil {
			q.retire()
		}
		q = w.newPipelines(node)
		w.nodes[addr] = q
		if len(w.nodes) > 1 && !w.tidying {
			w.tidying = true
			time.AfterFunc(tidyAfter, w.tidy)
		}
	}
	return q, nil
}

// unread reports whether finding a server may take requests of its own.
func (w *route) unread() bool { return w.cluster != nil && !w.routed.Load() }

// tidy forgets the pipelines to nodes of a Cluster that are no longer masters: where
// addresses change, as in Kubernetes, they would pile up.
func (w *route) tidy() {
	masters, err := mastersOf(w.cluster)(w.store.dialer.ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tidying = false
	if err != nil {
		return // the next new node has it tried again
	}
	for addr, q := range w.nodes {
		if !slices.Contains(masters, addr) && q.quiet() {
			delete(w.nodes, addr)
			q.retire()
		}
	}
}

// stop lets requests that come now fail.
func (w *route) stop() {
	for _, q := range w.all() {
		q.close()
	}
}

// all returns the pipelines to all servers.
func (w *route) all() (all []*pipelines) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.direct != nil {
		all = append(all, w.direct)
	}
	for _, q := range w.nodes {
		all = append(all, q)
	}
	return all
}

// close closes the connections.
func (w *route) close() error {
	for _, q := range w.all() {
		q.disconnect()
	}
	if w.cluster != nil {
		return w.cluster.Close()
	}
	return w.single.Close()
}

// reconsider takes an error after which another server may be the master. READONLY
// is the answer of a server that has become a replica, and NOREPLICAS of a master that
// was cut off from its replicas. On a Cluster the topology tells where to go
// instead. Elsewhere the address may lead to another server by now, so that all
// connections are made anew, subscriptions too.
func (s *Store) reconsider(err error) {
	if s.clustered() {
		s.reload()
		return
	}
	if text := err.Error(); IsReply(err) && (strings.HasPrefix(text, "READONLY ") || strings.HasPrefix(text, "NOREPLICAS ")) {
		s.dialer.sever()
	}
}

// clustered reports whether the store leads to a Cluster.
func (s *Store) clustered() bool { return s.requests.cluster != nil }
