package zkstore

import (
	"context"
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/internal/lanes"
)

const (
	// most is the number of requests that share a transaction.
	most = 32
	// under is the maximum number of concurrent transactions: a request that comes while
	// there are as many waits, and shares the next one.
	under = 4
)

// request is a list of operations on its way.
type request struct {
	lanes.Request
	root  *root
	epoch int32
	plan

	outcome
}

// outcome is the outcome of a request. After an error that is [mistaken], wrong is the
// mistake; it has the name of the root if the epoch has ended.
type outcome struct {
	results []zk.MultiResponse // of the steps
	number  int64              // of the transaction
	wrong   step
	err     error
}

// queue sends requests; requests that wait together go in one transaction of ZooKeeper.
type queue struct {
	lanes lanes.Lanes[*request]
	send  func(ctx context.Context, ops []any) ([]zk.MultiResponse, error)
}

func newQueue(send func(ctx context.Context, ops []any) ([]zk.MultiResponse, error)) *queue {
	q := &queue{send: send}
	q.lanes.Under, q.lanes.Next, q.lanes.Send = under, next, q.sendAll
	return q
}

// multi executes the operations of a request as one change, if the epoch still lasts.
func (q *queue) multi(ctx context.Context, root *root, epoch int32, p plan) outcome {
	r := &request{Request: lanes.Begin(ctx), root: root, epoch: epoch, plan: p}
	if err := q.lanes.Do(r); err != nil {
		return outcome{err: err}
	}
	return r.outcome
}

// next splits the waiting requests. Those that share a transaction are of one epoch, and none
// writes a node that another one writes or compares.
func next(waiting []*request) (batch, left []*request) {
	written, checked := map[string]bool{}, map[string]int32{}
	for i, r := range waiting {
		if len(batch) == most {
			left = append(left, waiting[i:]...)
			break
		}
		if len(batch) > 0 && (r.root != batch[0].root || r.epoch != batch[0].epoch) || r.conflicts(written, checked) {
			left = append(left, r)
			continue
		}
		for _, s := range r.steps {
			written[s.name] = true
		}
		for _, c := range r.checks {
			checked[c.name] = c.version
		}
		batch = append(batch, r)
	}
	return batch, left
}

// conflicts reports whether a request writes a node that is written or compared, or compares
// a node that is written, or compared with another version.
func (p plan) conflicts(written map[string]bool, checked map[string]int32) bool {
	return slices.ContainsFunc(p.steps, func(s step) bool {
		_, also := checked[s.name]
		return also || written[s.name]
	}) || slices.ContainsFunc(p.checks, func(c check) bool {
		version, also := checked[c.name]
		return written[c.name] || also && version != c.version
	})
}

// sendAll sends a batch. ZooKeeper executes all of it or nothing, and says which operation
// was mistaken or refused: the others are sent again.
func (q *queue) sendAll(ctx context.Context, batch []*request, _ func()) {
	for len(batch) > 0 {
		batch = q.sendOnce(ctx, batch)
	}
}

// sendOnce sends a batch once, and returns the requests that are to be sent again.
func (q *queue) sendOnce(ctx context.Context, batch []*request) (again []*request) {
	at := batch[0]
	steps := []step{{at.root.name, &zk.CheckVersionRequest{Path: at.root.epochPath(), Version: at.epoch}, -1}}
	tells := false
	checked := map[check]bool{}
	for _, r := range batch {
		for _, c := range r.checks {
			if !checked[c] {
				checked[c] = true
				steps = append(steps, step{c.name, &zk.CheckVersionRequest{Path: path(c.name), Version: c.version}, -1})
			}
		}
	}
	first := len(steps) // of the steps of requests
	for _, r := range batch {
		for _, s := range r.steps {
			_, sets := s.op.(*zk.SetDataRequest)
			tells = tells || sets
		}
		steps = append(steps, r.steps...)
	}
	if !tells { // its answer has no number then
		steps = append(steps, step{at.root.name, &zk.SetDataRequest{Path: at.root.nowPath(), Data: []byte(gone), Version: -1}, -1})
	}
	ops := make([]any, len(steps))
	for i, s := range steps {
		ops[i] = s.op
	}
	results, err := q.send(ctx, ops)
	if mistaken(err) || errors.Is(err, casstore.ErrRefused) {
		if wrong := slices.IndexFunc(results, func(one zk.MultiResponse) bool { return one.Error != nil }); wrong > 0 && wrong < len(steps) {
			return fail(batch, steps[wrong], err)
		}
		fail(batch, steps[0], err) // the epoch has ended, or all are refused
		return nil
	}
	number := int64(0)
	for _, one := range results {
		if one.Stat != nil {
			number = one.Stat.Mzxid
		}
	}
	for _, r := range batch {
		if r.err = err; err == nil {
			r.results, r.number = results[first:first+len(r.steps)], number
			first += len(r.steps)
		}
		r.End()
	}
	return nil
}

// fail tells the requests that have a step, or compare its node, that it was mistaken. It
// returns the others.
func fail(batch []*request, wrong step, err error) (others []*request) {
	for _, r := range batch {
		if wrong.name != r.root.name && !r.has(wrong.name) {
			others = append(others, r)
			continue
		}
		r.wrong, r.err = wrong, err
		r.End()
	}
	return others
}

// has reports whether a plan has a node.
func (p plan) has(name string) bool {
	return slices.ContainsFunc(p.steps, func(s step) bool { return s.name == name }) ||
		slices.ContainsFunc(p.checks, func(c check) bool { return c.name == name })
}
