package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

// Store keeps locks on etcd. It is a store for core.New. Make it with [New].
type Store struct {
	*casstore.Store
	client *clientv3.Client
}

// New makes a store on a client, which [Connect] makes, which may have a namespace, and which
// the store does not close. The options are in package casstore; casstore.Timeout is 250 ms by
// default. New sends nothing. It returns driver.ErrConfig if client is nil or an option cannot
// work. Close the store after the locker, and the client after the store.
//
// The lock of a process that has died is free for who has waited for the lease of the lock. A
// process that only tries, and ends before that, never gets it: see docs/consensus.md.
func New(client *clientv3.Client, opts ...casstore.Option) (*Store, error) {
	if client == nil {
		return nil, fmt.Errorf("%w: client is nil; etcdstore.Connect makes one", driver.ErrConfig)
	}
	store, err := casstore.New(Server(client), append([]casstore.Option{casstore.Timeout(answerWait)}, opts...)...)
	if err != nil {
		return nil, err
	}
	return &Store{Store: store, client: client}, nil
}

// Server makes the adapter alone, which [New] gives to casstore.New.
func Server(client *clientv3.Client) casstore.Server {
	s := &server{client: client}
	if ctx := client.Ctx(); ctx != nil { // nil: a client of a test
		s.dials, _ = ctx.Value(connected{}).(*dials)
	}
	s.queue = newQueue(s.send)
	s.stream.Store(&stream{})
	return s
}

// server is an etcd to package casstore.
type server struct {
	client *clientv3.Client
	dials  *dials // nil: Connect has not made the client
	queue  *queue
	stream atomic.Pointer[stream] // of the next watches
}

// Commit implements [casstore.Server].
func (s *server) Commit(ctx context.Context, txn casstore.Txn) (casstore.Answer, error) {
	answer, err := s.queue.commit(ctx, txn)
	if err != nil && ctx.Err() != nil && s.dials != nil {
		if why := s.dials.absent(); why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
	}
	return answer, err
}

// send sends some requests in one transaction, and gives each its answer. A request that etcd
// refuses must not fail the others: as nothing was executed, they are sent in two halves.
func (s *server) send(ctx context.Context, batch []*request) {
	answers, err := s.transact(clientv3.WithRequireLeader(ctx), batch)
	err = explain(err)
	if errors.Is(err, casstore.ErrRefused) && len(batch) > 1 {
		s.send(ctx, batch[:len(batch)/2])
		s.send(ctx, batch[len(batch)/2:])
		return
	}
	if full := errors.Is(err, casstore.ErrSettled); full || err == nil && batch[0].writes() {
		s.queue.apart.Store(full)
	}
	for i, r := range batch {
		if r.err = err; err == nil {
			r.answer = answers[i]
		}
		r.End()
	}
}

// transact sends a transaction. Requests that share it are transactions inside of it. etcd
// compares the conditions of all of them before it executes any: no request of a batch
// writes an entry that another one compares, see [queue].
func (s *server) transact(ctx context.Context, batch []*request) ([]casstore.Answer, error) {
	if len(batch) == 1 {
		cmps, then, otherwise := operations(batch[0].txn)
		response, err := s.client.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
		if err != nil {
			return nil, err
		}
		return []casstore.Answer{answer(batch[0].txn, response, response.Header.Revision)}, nil
	}
	ops := make([]clientv3.Op, len(batch))
	for i, r := range batch {
		ops[i] = clientv3.OpTxn(operations(r.txn))
	}
	response, err := s.client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, err
	}
	answers := make([]casstore.Answer, len(batch))
	for i, r := range batch {
		part := (*clientv3.TxnResponse)(response.Responses[i].GetResponseTxn())
		answers[i] = answer(r.txn, part, response.Header.Revision)
	}
	return answers, nil
}

// operations are the comparisons of etcd, and its operations if they hold, and if not.
func operations(txn casstore.Txn) (cmps []clientv3.Cmp, then, otherwise []clientv3.Op) {
	for _, c := range txn.If {
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(c.Name), "=", c.Revision.Number))
	}
	for _, op := range txn.Then {
		if op.Delete {
			then = append(then, clientv3.OpDelete(op.Name))
		} else {
			then = append(then, clientv3.OpPut(op.Name, op.Value))
		}
	}
	for _, name := range txn.Read {
		then = append(then, clientv3.OpGet(name))
	}
	for _, r := range txn.List {
		from, opts := r.Prefix, []clientv3.OpOption{clientv3.WithRange(clientv3.GetPrefixRangeEnd(r.Prefix))}
		if r.After != "" {
			from = r.After + "\x00"
		}
		if r.Limit > 0 {
			opts = append(opts, clientv3.WithLimit(int64(r.Limit)))
		}
		then = append(then, clientv3.OpGet(from, opts...))
	}
	for _, name := range txn.Else {
		otherwise = append(otherwise, clientv3.OpGet(name))
	}
	return cmps, then, otherwise
}

// answer is the result of a transaction, from its response.
func answer(txn casstore.Txn, response *clientv3.TxnResponse, revision int64) casstore.Answer {
	if !response.Succeeded {
		return casstore.Answer{Read: entries(txn.Else, response.Responses)}
	}
	a := casstore.Answer{Done: true, Written: make([]casstore.Revision, len(txn.Then))}
	for i, op := range txn.Then {
		if !op.Delete {
			a.Written[i].Number = revision
		}
	}
	reads := response.Responses[len(txn.Then):]
	a.Read = entries(txn.Read, reads)
	for i := range txn.List {
		var list []casstore.Entry
		for _, kv := range reads[len(txn.Read)+i].GetResponseRange().Kvs {
			list = append(list, entry(kv))
		}
		a.Lists = append(a.Lists, list)
	}
	return a
}

// entries are the contents of some names, in the order of the request.
func entries(names []string, responses []*etcdserverpb.ResponseOp) []casstore.Entry {
	list := make([]casstore.Entry, len(names))
	for i, name := range names {
		list[i].Name = name
		for _, kv := range responses[i].GetResponseRange().Kvs {
			list[i] = entry(kv)
		}
	}
	return list
}
