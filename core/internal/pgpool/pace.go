package pgpool

import (
	"context"
	"database/sql"
	"sync"
	"time"
)

const (
	// freeDials is how many times a pool fails to connect before its next tries are spaced: more than
	// the connections that a store has.
	freeDials = 16
	// dialPause is the time between two later tries. A server that is back is noticed within it.
	dialPause = 20 * time.Millisecond
)

// pace spaces a pool's tries while the server is away: the server refuses connections, or a proxy accepts and
// closes them.
// Each request of each caller would connect anew.
type pace struct {
	failures int           // since a connection was made
	last     error         // of them
	next     time.Time     // when the next try may begin
	served   chan struct{} // closed when there is a connection: no try waits any longer
}

// paces are the pools without a connection.
var paces = struct {
	sync.Mutex
	of map[*sql.DB]*pace
}{of: map[*sql.DB]*pace{}}

// await returns when a pool may try to connect. If ctx ends before, it returns why the pool has no connection.
func await(ctx context.Context, db *sql.DB) error {
	paces.Lock()
	p := paces.of[db]
	if p == nil || p.failures < freeDials {
		paces.Unlock()
		return nil
	}
	now := time.Now()
	if p.next = p.next.Add(dialPause); p.next.Before(now) {
		p.next = now
	}
	wait, last := p.next.Sub(now), p.last
	paces.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.served:
	case <-ctx.Done():
		// Its place is another's, or places that no try takes would add up to a long wait.
		paces.Lock()
		p.next = p.next.Add(-dialPause)
		paces.Unlock()
		return last
	}
	return nil
}

// connected notes the outcome of a try. A pool that had no connection free in time has made no try.
func connected(ctx context.Context, db *sql.DB, err error) {
	paces.Lock()
	defer paces.Unlock()
	p := paces.of[db]
	switch {
	case err == nil && p != nil:
		close(p.served)
		delete(paces.of, db)
	case err == nil || ctx.Err() != nil:
	case p == nil:
		now := time.Now()
		for other, old := range paces.of { // pools that were closed
			if now.Sub(old.next) > time.Hour {
				delete(paces.of, other)
			}
		}
		paces.of[db] = &pace{failures: 1, last: err, next: now, served: make(chan struct{})}
	default:
		p.failures++
		p.last = err
	}
}
