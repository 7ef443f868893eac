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

// route brings requests to their servers. A store has two, with separate connections:
// one for the requests of callers, one for renewals.
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

// node returns the pipelines to the node of the Cluster that has the key.
func (w *route) node(lock string) (*pipelines, error) {
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

// unread reports whether finding a node of the Cluster may take further requests.
func (w *route) unread() bool { return !w.routed.Load() }

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

// quiet reports whether there is nothing to send and no goroutine.
func (q *pipelines) quiet() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue) == 0 && len(q.idle) == 0 && q.busy == 0
}

// close lets requests that come now fail; those under way end by themselves.
func (q *pipelines) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.timer != nil {
		q.timer.Stop()
	}
	for _, wake := range q.idle {
		wake <- nil
	}
	q.idle = nil
	queued := q.queue
	q.queue = nil
	for _, r := range queued {
		go r.tried(errShut)
	}
}

// retire has the connections closed when they are no longer used.
func (q *pipelines) retire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retired = true
	if q.busy == 0 {
		go q.disconnect()
	}
}

// disconnect closes the connections. Requests under way fail.
func (q *pipelines) disconnect() {
	q.mu.Lock()
	links := q.links
	q.mu.Unlock()
	for _, l := range links {
		_ = l.client.Close() // a closed one says so
	}
}

// redirect sends the request through the cluster client, which follows MOVED and
// ASK.
func (r *Request) redirect() {
	w := r.route // the request may be another's once it has ended
	w.following <- struct{}{}
	defer func() { <-w.following }()
	r.alone = true
	if r.behind != nil {
		r.pair()
	}
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if w.renews && !r.Deadline.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, r.Deadline)
	}
	defer cancel()
	cmd := r.script.evalWith(ctx, true, r.nkeys, r.args)
	err := w.cluster.Process(ctx, &noRetry{cmd})
	r.Val = cmd.Val()
	if fateOf(err) == elsewhere && err != nil {
		// Still on the move after all redirections.
		err = &movingError{err}
	}
	r.tried(err)
}

// movingError makes a redirection that led nowhere a server that is not ready.
type movingError struct{ error }

func (e *movingError) RedisError() {}

func (e *movingError) Error() string { return "TRYAGAIN " + e.error.Error() }
