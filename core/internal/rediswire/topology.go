package rediswire

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// reloadEvery bounds how often the topology of a Cluster is asked for.
	reloadEvery = 100 * time.Millisecond
	// reloadWithin bounds a reload. go-redis asks one node after the other, and each
	// that hangs takes the store's timeout.
	reloadWithin = 5 * time.Second
)

// topology has a client for a Cluster ask for the topology again, while requests go on,
// one reload at a time. go-redis's own ReloadState does not say when it is over, and
// may wait for 200 ms before it asks.
type topology struct {
	client *redis.ClusterClient
	ctx    context.Context // ends when the store is closed

	mu      sync.Mutex
	wanted  bool // one more reload, which is to begin after now
	running bool
	of      time.Time // when the last reload that has ended began
}

// reload has the topology asked for, by a reload that begins after the call: a reload
// that is under way may have its answer from before the change that the caller noticed.
func (t *topology) reload() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted = true
	if !t.running {
		t.running = true
		go t.run()
	}
}

// run reloads the topology until no caller wants it any more.
func (t *topology) run() {
	for t.begin() {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.ctx, reloadWithin)
		_, _ = mastersOf(t.client)(ctx) // without an answer the topology stays as it is
		cancel()
		t.mu.Lock()
		t.of = began
		t.mu.Unlock()
		select {
		case <-t.ctx.Done():
		case <-time.After(time.Until(began.Add(reloadEvery))):
		}
	}
}

// begin reports whether a reload is wanted, which then begins.
func (t *topology) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = t.wanted && t.ctx.Err() == nil
	t.wanted = false
	return t.running
}

// since reports whether a reload has ended that began after a time.
func (t *topology) since(when time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of.After(when)
}

// reload has the Cluster's topology asked for again, after an error that a change of
// it may have caused.
func (s *Store) reload() {
	if !s.clustered() || s.shut.Load() {
		return
	}
	s.requests.topology.reload()
	s.renewals.topology.reload()
}

// awaitsTopology reports whether a request that had no answer from its node is sent
// again, however often it was: it has not gone yet by a topology that was read after
// its first failure, which may name another node. Where the machine is busy or a node
// hangs, a reload takes longer than maxTries tries that are refused at once.
func (r *Request) awaitsTopology() bool {
	if r.route.cluster == nil {
		return false
	}
	if r.failed.IsZero() {
		r.failed, r.stale = time.Now(), true
	}
	return r.stale && time.Since(r.failed) < reloadWithin
}
