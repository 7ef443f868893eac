package zkstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// most is how many requests share a transaction.
	most = 32
	// under is how many transactions are under way at most: a request that comes while
	// there are as many waits, and shares the next one.
	under = 4
	// answerWait bounds a transaction all of whose callers wait without a bound.
	answerWait = 10 * time.Second
)

// request is a list of operations on its way.
type request struct {
	ctx   context.Context
	root  *root
	epoch int32
	steps []step
	done  chan struct{} // closed when there is an outcome

	outcome
}

// outcome is what has become of a request. After an error that is [mistaken], wrong is the
// place of the step that was mistaken; -1 if the epoch has ended.
type outcome struct {
	results []zk.MultiResponse
	number  int64 // of the transaction
	wrong   int
	err     error
}

// lanes send requests; requests that wait together go in one transaction of ZooKeeper.
type lanes struct {
	send func(ctx context.Context, ops []any) ([]zk.MultiResponse, error)

	mu      sync.Mutex
	waiting []*request
	busy    int // lanes that send
}

// multi executes the operations of a request as one change, if the epoch still lasts.
func (l *lanes) multi(ctx context.Context, root *root, epoch int32, steps []step) outcome {
	r := &request{ctx: ctx, root: root, epoch: epoch, steps: steps, done: make(chan struct{})}
	l.mu.Lock()
	l.waiting = append(l.waiting, r)
	if l.busy < under {
		l.busy++
		go l.serve() //nolint:contextcheck // a transaction has several callers, and lasts for the last of them
	}
	l.mu.Unlock()
	select {
	case <-r.done:
		return r.outcome
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, r); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		return outcome{err: fmt.Errorf("%w: %w", driver.ErrNotReady, context.Cause(ctx))}
	}
	return outcome{err: context.Cause(ctx)}
}

// serve sends what waits, until nothing does.
func (l *lanes) serve() {
	for {
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

// next takes requests out of those that wait that can share a transaction: of one epoch, and
// without a node in common. Called with the mutex held.
func (l *lanes) next() []*request {
	var batch, left []*request
	named := map[string]bool{}
	for i, r := range l.waiting {
		if len(batch) == most {
			left = append(left, l.waiting[i:]...)
			break
		}
		if len(batch) > 0 && (r.root != batch[0].root || r.epoch != batch[0].epoch) ||
			slices.ContainsFunc(r.steps, func(s step) bool { return named[s.name] }) {
			left = append(left, r)
			continue
		}
		for _, s := range r.steps {
			named[s.name] = true
		}
		batch = append(batch, r)
	}
	l.waiting = left
	return batch
}

// sendAll sends a batch. ZooKeeper executes all of it or nothing, and says which operation
// was mistaken: the others are sent again. The transaction ends when the last of its callers
// leaves.
func (l *lanes) sendAll(batch []*request) {
	var end time.Time
	for _, r := range batch {
		deadline, ok := r.ctx.Deadline()
		if !ok {
			deadline = time.Now().Add(answerWait)
		}
		if deadline.After(end) {
			end = deadline
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	for len(batch) > 0 {
		batch = l.sendOnce(ctx, batch)
	}
}

// sendOnce sends a batch once, and returns the requests that are to be sent again.
func (l *lanes) sendOnce(ctx context.Context, batch []*request) (again []*request) {
	at := batch[0]
	ops := []any{&zk.CheckVersionRequest{Path: at.root.epochPath(), Version: at.epoch}}
	tells := false
	var of []*request // of the operations after the first one
	for _, r := range batch {
		for _, s := range r.steps {
			_, sets := s.op.(*zk.SetDataRequest)
			tells = tells || sets
			ops, of = append(ops, s.op), append(of, r)
		}
	}
	if !tells { // its answer has no number then
		ops = append(ops, &zk.SetDataRequest{Path: at.root.nowPath(), Data: []byte(gone), Version: -1})
	}
	results, err := l.send(ctx, ops)
	wrong, number := -1, int64(0)
	for i, one := range results {
		if one.Error != nil {
			wrong = i - 1
			break
		}
		if one.Stat != nil {
			number = one.Stat.Mzxid
		}
	}
	if mistaken(err) && wrong >= 0 && wrong < len(of) {
		r := of[wrong]
		r.wrong, r.err = wrong-slices.Index(of, r), err
		close(r.done)
		return slices.DeleteFunc(batch, func(o *request) bool { return o == r })
	}
	for _, r := range batch {
		if r.wrong, r.err = -1, err; err == nil {
			first := 1 + max(slices.Index(of, r), 0)
			r.results, r.number = results[first:first+len(r.steps)], number
		}
		close(r.done)
	}
	return nil
}
