package natsstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/lanes"
)

const (
	// most is the number of requests that share a batch of NATS, and mostNames bounds the names in them: a
	// batch has at most 1,000 messages, and an answer 1,024.
	most      = 64
	mostNames = 400
	// answerWait bounds the wait of a request for its answer, and longestWait the beginning of a watch.
	answerWait  = 500 * time.Millisecond
	longestWait = 10 * time.Second
	// lastWord is for how long a request after its time waits for the reason.
	lastWord = 5 * time.Millisecond
)

// request is a transaction of package casstore on its way.
type request struct {
	lanes.Request
	txn    casstore.Txn
	answer casstore.Answer
	err    error
}

func (r *request) end(answer casstore.Answer, err error) {
	r.answer, r.err = answer, err
	r.End()
}

// commit sends a transaction, and waits for its answer.
//
// Requests that wait at the same time share a batch, and the next batch waits for the answer of the
// leader: the leader refuses a condition on an entry that another transaction under way compares or writes, and all
// transactions that take locks compare the void of their process.
func (s *server) commit(ctx context.Context, txn casstore.Txn) (casstore.Answer, error) {
	r := &request{Request: lanes.Begin(ctx), txn: txn}
	err := s.lane.Do(r)
	if err == nil {
		return r.answer, r.err
	}
	if !errors.Is(err, driver.ErrNotReady) {
		select {
		case <-r.Done():
			return r.answer, r.err
		case <-time.After(lastWord):
		}
	}
	return casstore.Answer{}, err
}

// next splits the waiting requests. Those that share a batch write no entry that another one writes or
// compares, and no two compare it with two revisions.
func next(waiting []*request) (batch, left []*request) {
	compared, written, names := map[string]casstore.Revision{}, map[string]bool{}, 0
	for _, r := range waiting {
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
	return batch, left
}

// notSent says that nothing was executed.
func notSent(why error) error { return fmt.Errorf("%w: %w", driver.ErrNotReady, why) }
