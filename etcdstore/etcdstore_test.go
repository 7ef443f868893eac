package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/lanes"
)

func TestNewRefusesWhatCannotWork(t *testing.T) {
	if _, err := New(nil); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("%v; want ErrConfig", err)
	}
}

func TestErrorsSayWhetherATransactionMayBeExecuted(t *testing.T) {
	for err, want := range map[error]error{
		rpctypes.ErrGRPCNoLeader:                   driver.ErrNotReady,
		rpctypes.ErrGRPCRequestTooManyRequests:     driver.ErrNotReady,
		rpctypes.ErrGRPCInvalidAuthToken:           driver.ErrNotReady,
		rpctypes.ErrGRPCAuthOldRevision:            driver.ErrNotReady,
		rpctypes.ErrGRPCPermissionDenied:           casstore.ErrRefused,
		rpctypes.ErrGRPCUserEmpty:                  casstore.ErrRefused,
		rpctypes.ErrGRPCAuthFailed:                 casstore.ErrRefused,
		rpctypes.ErrGRPCRequestTooLarge:            casstore.ErrRefused,
		rpctypes.ErrGRPCTooManyOps:                 casstore.ErrRefused,
		rpctypes.ErrGRPCDuplicateKey:               casstore.ErrRefused,
		rpctypes.ErrGRPCEmptyKey:                   casstore.ErrRefused,
		rpctypes.ErrGRPCCorrupt:                    casstore.ErrRefused,
		rpctypes.ErrGRPCNoSpace:                    casstore.ErrSettled, // etcd may have executed it
		rpctypes.ErrGRPCTimeout:                    nil,
		rpctypes.ErrGRPCTimeoutDueToLeaderFail:     nil,
		rpctypes.ErrGRPCTimeoutDueToConnectionLost: nil,
		rpctypes.ErrGRPCLeaderChanged:              nil,
		rpctypes.ErrGRPCStopped:                    nil,
		status.Error(codes.Unavailable, "EOF"):     nil,
		context.DeadlineExceeded:                   nil,
	} {
		got := explain(err)
		if got == nil || !errors.Is(got, err) {
			t.Errorf("%v is explained as %v", err, got)
		}
		for _, kind := range []error{driver.ErrNotReady, casstore.ErrRefused, casstore.ErrSettled} {
			if errors.Is(got, kind) != errors.Is(want, kind) {
				t.Errorf("%v: %v; want %v", err, got, want)
			}
		}
	}
	if explain(nil) != nil {
		t.Error("no error is explained")
	}
}

// sender is an etcd that answers on a signal of the test.
type sender struct {
	mu      sync.Mutex
	batches [][]*request
}

func (s *sender) send(_ context.Context, batch []*request) {
	s.mu.Lock()
	s.batches = append(s.batches, batch)
	s.mu.Unlock()
	time.Sleep(time.Second)
	for _, r := range batch {
		r.End()
	}
}

func writes(name string) casstore.Txn {
	return casstore.Txn{If: []casstore.Condition{{Name: name}}, Then: []casstore.Op{{Name: name}}}
}

func TestRequestsThatWaitTogetherShareATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sender{}
		l := newQueue(s.send)
		var all sync.WaitGroup
		for i := range under + 3*most {
			all.Go(func() {
				if _, err := l.commit(t.Context(), writes(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		sizes := map[int]int{}
		for _, batch := range s.batches {
			sizes[len(batch)]++
		}
		if len(s.batches) != under+3 || sizes[1] != under || sizes[most] != 3 {
			t.Errorf("the requests went as %v", sizes)
		}
	})
}

// Callers that had their answers together ask together again. If the first of them took a
// transaction for its request alone, the others would wait for its answer.
//
//nolint:paralleltest // it sets the number of processors
func TestCallersThatHadTheirAnswersTogetherShareTheNextTransaction(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		const callers, each = 16, 20
		s := &sender{}
		l := newQueue(s.send)
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for range each {
					if _, err := l.commit(t.Context(), writes(fmt.Sprint(i))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if n := len(s.batches); n > 2*each {
			t.Errorf("%d callers needed %d transactions for %d requests each; want at most %d", callers, n, each, 2*each)
		}
	})
}

// etcd adds what a transaction has inside to the operations of the largest of it.
func TestATransactionHasNoMoreOperationsThanEtcdTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sender{}
		l := newQueue(s.send)
		renewal := func(i int) casstore.Txn { // of 60 leases
			txn := casstore.Txn{Then: []casstore.Op{{Name: fmt.Sprint("beat", i)}}}
			for range 60 {
				txn.Read, txn.List = append(txn.Read, "lock"), append(txn.List, casstore.Range{Prefix: "lock/"})
			}
			return txn
		}
		var all sync.WaitGroup
		for i := range 5 * most {
			txn := writes(fmt.Sprint(i))
			if i%most == 0 {
				txn = renewal(i)
			}
			all.Go(func() { _, _ = l.commit(t.Context(), txn) })
			synctest.Wait()
		}
		all.Wait()
		n := 0
		for _, batch := range s.batches {
			n += len(batch)
			for _, r := range batch {
				if ops := len(r.txn.Then) + len(r.txn.Read) + len(r.txn.List); len(batch) > 1 && len(batch)+ops > 128 {
					t.Errorf("%d requests, and one of them has %d operations", len(batch), ops)
				}
			}
		}
		if n != 5*most {
			t.Errorf("%d of %d requests were sent", n, 5*most)
		}
	})
}

// etcd compares all conditions of a transaction before it executes any part of it.
func TestNoRequestSharesATransactionWithWhatItCompares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sender{}
		l := newQueue(s.send)
		beat := casstore.Txn{Then: []casstore.Op{{Name: "beat"}}, Read: []string{"lock"}}
		takeOver := casstore.Txn{
			If: []casstore.Condition{{Name: "lock"}, {Name: "beat"}}, Then: []casstore.Op{{Name: "lock"}},
		}
		compares := casstore.Txn{If: []casstore.Condition{{Name: "beat"}}, Then: []casstore.Op{{Name: "other"}}}
		var all sync.WaitGroup
		for _, txn := range []casstore.Txn{
			writes("a"), writes("b"), writes("c"), writes("d"), // these keep all lanes busy
			beat, beat, takeOver, compares, {Read: []string{"lock"}},
		} {
			all.Go(func() { _, _ = l.commit(t.Context(), txn) })
			synctest.Wait()
		}
		all.Wait()
		for _, batch := range s.batches {
			for i, one := range batch {
				for _, other := range batch[i+1:] {
					for _, pair := range [][2]casstore.Txn{{one.txn, other.txn}, {other.txn, one.txn}} {
						for _, op := range pair[0].Then {
							for _, c := range pair[1].If {
								if op.Name == c.Name {
									t.Errorf("%s is written and compared in one transaction", op.Name)
								}
							}
							for _, c := range pair[1].Then {
								if op.Name == c.Name {
									t.Errorf("%s is written twice in one transaction", op.Name)
								}
							}
						}
					}
				}
			}
		}
		if n := len(s.batches); n != 4+3 {
			t.Errorf("%d transactions", n)
		}
	})
}

func TestATransactionEndsWithTheLastOfItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []time.Duration
		l := newQueue(func(ctx context.Context, batch []*request) {
			begin := time.Now()
			<-ctx.Done()
			took = append(took, time.Since(begin))
			for _, r := range batch {
				r.End()
			}
		})
		l.lanes.Under = 1
		var all sync.WaitGroup
		for i := range 3 { // the first one is sent alone, the others wait for it
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			all.Go(func() { _, _ = l.commit(ctx, writes(fmt.Sprint(i))) })
			synctest.Wait()
			time.AfterFunc(time.Duration(i+1)*time.Second, cancel) // its caller leaves, as at the end of a store
		}
		all.Wait()
		synctest.Wait()
		if !slices.Equal(took, []time.Duration{time.Second, 2 * time.Second}) {
			t.Errorf("the transactions took %v", took)
		}
	})
}

func TestARequestWhoseCallerHasLeftIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sender{}
		l := newQueue(s.send)
		var all sync.WaitGroup
		for i := range under {
			all.Go(func() { _, _ = l.commit(t.Context(), writes(fmt.Sprint(i))) })
			synctest.Wait() // each has a separate transaction
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := l.commit(ctx, writes("late")); !errors.Is(err, driver.ErrNotReady) {
			t.Errorf("%v; want ErrNotReady", err)
		}
		all.Wait()
		if n := len(s.batches); n != under {
			t.Errorf("%d transactions; want %d", n, under)
		}
	})
}

// etcd without space refuses writes. A release only deletes.
func TestWithoutSpaceARequestThatOnlyDeletesGoesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sender{}
		l := newQueue(s.send)
		l.apart.Store(true)
		var all sync.WaitGroup
		for i := range under + 20 {
			txn := writes(fmt.Sprint(i))
			txn.Then[0].Delete = i%2 == 0
			all.Go(func() { _, _ = l.commit(t.Context(), txn) })
			synctest.Wait()
		}
		all.Wait()
		for _, batch := range s.batches {
			for _, r := range batch {
				if r.writes() != batch[0].writes() {
					t.Error("a transaction has requests that write and requests that only delete; want them apart")
				}
			}
		}
		if n := len(s.batches); n != under+2 {
			t.Errorf("%d transactions; want %d: what is alike shares one", n, under+2)
		}
	})
}

// policed is an etcd that refuses transactions on one key.
type policed struct {
	clientv3.KV
	transactions int
}

func (p *policed) Txn(context.Context) clientv3.Txn { return &policedTxn{of: p} }

type policedTxn struct {
	of      *policed
	refused bool
	parts   int
}

func (p *policedTxn) If(...clientv3.Cmp) clientv3.Txn  { return p }
func (p *policedTxn) Else(...clientv3.Op) clientv3.Txn { return p }

func (p *policedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	p.parts = len(ops)
	for _, op := range ops {
		_, then, _ := op.Txn()
		for _, one := range append(then, op) {
			p.refused = p.refused || string(one.KeyBytes()) == "forbidden"
		}
	}
	return p
}

func (p *policedTxn) Commit() (*clientv3.TxnResponse, error) {
	p.of.transactions++
	if p.refused {
		return nil, rpctypes.ErrPermissionDenied
	}
	part := &etcdserverpb.TxnResponse{Succeeded: true, Responses: []*etcdserverpb.ResponseOp{{}}}
	answer := &clientv3.TxnResponse{Header: &etcdserverpb.ResponseHeader{Revision: 7}, Succeeded: true}
	for range p.parts {
		answer.Responses = append(answer.Responses, &etcdserverpb.ResponseOp{
			Response: &etcdserverpb.ResponseOp_ResponseTxn{ResponseTxn: part},
		})
	}
	return answer, nil
}

func TestARequestThatIsRefusedFailsAlone(t *testing.T) {
	etcd := &policed{}
	s := Server(&clientv3.Client{KV: etcd}).(*server)
	var batch []*request
	for i := range most {
		name := fmt.Sprint(i)
		if i == 20 {
			name = "forbidden"
		}
		batch = append(batch, &request{Request: lanes.Begin(t.Context()), txn: writes(name)})
	}
	s.send(t.Context(), batch)
	for i, r := range batch {
		<-r.Done()
		if refused := errors.Is(r.err, casstore.ErrRefused); refused != (i == 20) || !refused && (r.err != nil || !r.answer.Done) {
			t.Errorf("request %d: %+v, %v", i, r.answer, r.err)
		}
	}
	if etcd.transactions > 2*7 {
		t.Errorf("%d transactions for %d requests; want two for each halving at most", etcd.transactions, most)
	}
}
