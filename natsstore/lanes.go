package natsstore

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
	// most is the number of requests that share a batch of NATS, and mostNames bounds the names in them: a
	// batch has at most 1,000 messages, and an answer 1,024.
	most      = 64
	mostNames = 400
	// answerWait bounds the wait of a request for its answer, and longestWait the time of a batch if its callers
	// wait without a bound.
	answerWait  = 500 * time.Millisecond
	longestWait = 10 * time.Second
	// lastWord is for how long a request after its time waits for the reason.
	lastWord = 5 * time.Millisecond
)

// request is a transaction of package casstore on its way.
type request struct {
	ctx    context.Context
	txn    casstore.Txn
	done   chan struct{} // closed when there is an answer
	answer casstore.Answer
	err    error
}

func (r *request) end(answer casstore.Answer, err error) {
	r.answer, r.err = answer, err
	close(r.done)
}

// lane sends requests. Requests that wait at the same time share a batch, and the next batch waits for the answer of the
// leader: the leader refuses a condition on an entry that another transaction under way compares or writes, and all
// transactions that take locks compare the void of their process.
type lane struct {
	send func(ctx context.Context, batch []*request, answered func())

	mu      sync.Mutex
	waiting []*request
	busy    bool
}

// commit sends a transaction, and waits for its answer.
func (l *lane) commit(ctx context.Context, txn casstore.Txn) (casstore.Answer, error) {
	r := &request{ctx: ctx, txn: txn, done: make(chan struct{})}
	l.mu.Lock()
	if l.waiting = append(l.waiting, r); !l.busy {
		l.busy = true
		go l.serve()
	}
	l.mu.Unlock()
	select {
	case <-r.done:
		return r.answer, r.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, r)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i >= 0 {
		return casstore.Answer{}, notSent(context.Cause(ctx))
	}
	select {
	case <-r.done:
		return r.answer, r.err
	case <-time.After(lastWord):
		return casstore.Answer{}, context.Cause(ctx)
	}
}

// serve sends waiting requests, until none waits.
func (l *lane) serve() {
	for {
		runtime.Gosched() // callers that are ready to run go first
		runtime.Gosched()
		l.mu.Lock()
		batch := l.next()
		l.busy = len(batch) > 0
		l.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		answered, once := make(chan struct{}), sync.Once{}
		go func() {
			defer once.Do(func() { close(answered) })
			l.sendAll(batch, func() { once.Do(func() { close(answered) }) })
		}()
		<-answered
	}
}

// sendAll sends a batch. It ends when the last of its callers has left.
func (l *lane) sendAll(batch []*request, answered func()) {
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
	l.send(ctx, batch, answered)
}

// next takes requests that can share a batch out of the waiting ones: none writes an entry that another one writes or
// compares, and no two compare it with two revisions. Called with the mutex held.
func (l *lane) next() (batch []*request) {
	var left []*request
	compared, written, names := map[string]casstore.Revision{}, map[string]bool{}, 0
	for _, r := range l.waiting {
		size := len(r.txn.If) + 2*len(r.txn.Then) + len(r.txn.Read) + len(r.txn.List) + len(r.txn.Else)
		collides := slices.ContainsFunc(r.txn.If, func(c casstore.Condition) bool {
			at, ok := compared[c.Name]
			return ok && at != c.Revision || written[c.Name]
		}) || slices.ContainsFunc(r.txn.Then, func(op casstore.Op) bool {
			_, ok := compared[op.Name]
			return ok || written[op.Name]
		})
		if len(batch) == most || len(batch) > 0 && names+size > mostNames || collides {
			left = append(left, r)
			continue
		}
		batch, names = append(batch, r), names+size
		for _, c := range r.txn.If {
			compared[c.Name] = c.Revision
		}
		for _, op := range r.txn.Then {
			written[op.Name] = true
		}
	}
	l.waiting = left
	return batch
}

// notSent says that nothing was executed.
func notSent(why error) error { return fmt.Errorf("%w: %w", driver.ErrNotReady, why) }
