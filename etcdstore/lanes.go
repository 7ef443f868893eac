package etcdstore

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

const (
	// most is the number of requests that share a transaction: of values below 16 KB they stay below
	// the 1.5 MB that etcd takes.
	most = 64
	// mostOps is the maximum number of operations of a transaction (--max-txn-ops). A transaction that has
	// others inside may have as many, counting those and the operations of the largest one.
	mostOps = 128
	// under is the maximum number of concurrent transactions: a request that comes while
	// there are as many waits, and shares the next one.
	under = 4
	// answerWait bounds the wait of a request for its answer: a request to the old leader
	// during an election has to be sent again.
	answerWait = 250 * time.Millisecond
	// longestWait bounds a transaction if all its callers wait without a bound.
	longestWait = 10 * time.Second
)

// request is a transaction of package casstore on its way.
type request struct {
	ctx  context.Context
	txn  casstore.Txn
	done chan struct{} // closed when there is an answer

	answer casstore.Answer
	err    error
}

// lanes send requests. Requests that wait at the same time share a transaction of etcd.
type lanes struct {
	send func(ctx context.Context, batch []*request)

	mu      sync.Mutex
	waiting []*request
	busy    int  // lanes that send
	apart   bool // requests that write and requests that read share no transaction
}

// commit sends a transaction, and waits for its answer.
func (l *lanes) commit(ctx context.Context, txn casstore.Txn) (casstore.Answer, error) {
	if ctx.Err() != nil {
		return casstore.Answer{}, fmt.Errorf("%w: %w", driver.ErrNotReady, context.Cause(ctx))
	}
	r := &request{ctx: ctx, txn: txn, done: make(chan struct{})}
	l.mu.Lock()
	l.waiting = append(l.waiting, r)
	if l.busy < under {
		l.busy++
		go l.serve()
	}
	l.mu.Unlock()
	select {
	case <-r.done:
		return r.answer, r.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if w == r {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			return casstore.Answer{}, fmt.Errorf("%w: %w", driver.ErrNotReady, context.Cause(ctx))
		}
	}
	return casstore.Answer{}, context.Cause(ctx)
}

// serve sends waiting requests, until none waits. Callers that are ready to run go first, among them
// those with an answer to the last transaction: a request that comes a moment later would
// wait for the next transaction, or need a separate one.
func (l *lanes) serve() {
	for {
		runtime.Gosched()
		runtime.Gosched() // after one, another processor can go on here before any of the callers
		l.mu.Lock()
		batch := l.next()
		if len(batch) == 0 {
			l.busy--
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.sendAll(batch)
	}
}

// sendAll sends a batch. The transaction ends when the last of its callers has left.
func (l *lanes) sendAll(batch []*request) {
	ctx, cancel := context.WithTimeout(context.Background(), longestWait)
	defer cancel()
	var callers atomic.Int64
	callers.Store(int64(len(batch)))
	for _, r := range batch {
		defer context.AfterFunc(r.ctx, func() {
			if callers.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	l.send(ctx, batch)
}

// separate sets whether requests that write share transactions with others: etcd without
// space refuses writes, and still deletes.
func (l *lanes) separate(apart bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.apart = apart
}

// writes reports whether a request writes a value.
func (r *request) writes() bool {
	return slices.ContainsFunc(r.txn.Then, func(op casstore.Op) bool { return !op.Delete })
}

// next takes requests that can share a transaction out of the waiting ones: none writes an
// entry that another one writes or compares. Called with the mutex held.
func (l *lanes) next() []*request {
	var batch, left []*request
	written, named := map[string]bool{}, map[string]bool{}
	largest := 0
	for i, r := range l.waiting {
		if len(batch) == most {
			left = append(left, l.waiting[i:]...)
			break
		}
		if len(batch) > 0 && (len(batch)+1+max(largest, r.ops()) > mostOps || l.apart && r.writes() != batch[0].writes()) ||
			r.conflicts(written, named) {
			left = append(left, r)
			continue
		}
		largest = max(largest, r.ops())
		for _, c := range r.txn.If {
			named[c.Name] = true
		}
		for _, op := range r.txn.Then {
			written[op.Name], named[op.Name] = true, true
		}
		batch = append(batch, r)
	}
	l.waiting = left
	return batch
}

// ops is the number of operations that etcd counts.
func (r *request) ops() int {
	return max(len(r.txn.If), len(r.txn.Then)+len(r.txn.Read)+len(r.txn.List), len(r.txn.Else))
}

// conflicts reports whether a request writes a named entry, or compares a written one.
func (r *request) conflicts(written, named map[string]bool) bool {
	for _, c := range r.txn.If {
		if written[c.Name] {
			return true
		}
	}
	for _, op := range r.txn.Then {
		if named[op.Name] {
			return true
		}
	}
	return false
}
