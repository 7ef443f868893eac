package etcdstore

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/internal/lanes"
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
)

// request is a transaction of package casstore on its way.
type request struct {
	lanes.Request
	txn casstore.Txn

	answer casstore.Answer
	err    error
}

// queue sends requests. Requests that wait at the same time share a transaction of etcd.
type queue struct {
	lanes lanes.Lanes[*request]
	apart atomic.Bool // requests that write and requests that read share no transaction
}

func newQueue(send func(ctx context.Context, batch []*request)) *queue {
	q := &queue{}
	q.lanes.Under, q.lanes.Next = under, q.next
	q.lanes.Send = func(ctx context.Context, batch []*request, _ func()) { send(ctx, batch) }
	return q
}

// commit sends a transaction, and waits for its answer.
func (q *queue) commit(ctx context.Context, txn casstore.Txn) (casstore.Answer, error) {
	r := &request{Request: lanes.Begin(ctx), txn: txn}
	if err := q.lanes.Do(r); err != nil {
		return casstore.Answer{}, err
	}
	return r.answer, r.err
}

// writes reports whether a request writes a value.
func (r *request) writes() bool {
	return slices.ContainsFunc(r.txn.Then, func(op casstore.Op) bool { return !op.Delete })
}

// next splits the waiting requests. Those that share a transaction write no
// entry that another one writes or compares. Etcd without space refuses writes, and still deletes.
func (q *queue) next(waiting []*request) (batch, left []*request) {
	written, named := map[string]bool{}, map[string]bool{}
	largest := 0
	for i, r := range waiting {
		if len(batch) == most {
			left = append(left, waiting[i:]...)
			break
		}
		if len(batch) > 0 && (len(batch)+1+max(largest, r.ops()) > mostOps || q.apart.Load() && r.writes() != batch[0].writes()) ||
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
	return batch, left
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
