package zkstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

// wire is a ZooKeeper that takes a second for each transaction, and finds some paths
// mistaken.
type wire struct {
	mistaken map[string]bool
	refused  map[string]bool

	mu      sync.Mutex
	batches [][]any
}

func (w *wire) send(_ context.Context, ops []any) ([]zk.MultiResponse, error) {
	w.mu.Lock()
	w.batches = append(w.batches, ops)
	number := int64(len(w.batches))
	w.mu.Unlock()
	time.Sleep(time.Second)
	results := make([]zk.MultiResponse, len(ops))
	for i, op := range ops {
		if set, ok := op.(*zk.SetDataRequest); ok {
			if results[i].Stat = (&zk.Stat{Mzxid: number, Version: set.Version + 1}); w.mistaken[set.Path] {
				results[i].Error = zk.ErrBadVersion
				return results, zk.ErrBadVersion
			}
			if w.refused[set.Path] {
				results[i].Error = zk.ErrNoAuth
				return results, explain(zk.ErrNoAuth)
			}
		}
		if check, ok := op.(*zk.CheckVersionRequest); ok && w.mistaken[check.Path] {
			results[i].Error = zk.ErrBadVersion
			return results, zk.ErrBadVersion
		}
	}
	return results, nil
}

// sizes counts the batches by the number of their operations, the first one apart.
func (w *wire) sizes() map[int]int {
	sizes := map[int]int{}
	for _, ops := range w.batches {
		sizes[len(ops)-1]++
	}
	return sizes
}

func sets(name string, version int32) []step {
	return []step{{name, &zk.SetDataRequest{Path: path(name), Version: version}, 0}}
}

// sendAlike starts a request for each list of steps, one after the other.
func sendAlike(t *testing.T, l *queue, epochs []int32, all [][]step) []outcome {
	t.Helper()
	r := &root{name: "r"}
	outcomes := make([]outcome, len(all))
	var wg sync.WaitGroup
	for i, steps := range all {
		wg.Go(func() { outcomes[i] = l.multi(t.Context(), r, epochs[i%len(epochs)], plan{steps: steps}) })
		synctest.Wait()
	}
	wg.Wait()
	return outcomes
}

func TestRequestsThatWaitTogetherShareATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		l := newQueue(w.send)
		var all [][]step
		for i := range 100 {
			all = append(all, sets(fmt.Sprint("r/", i), int32(i)))
		}
		for i, o := range sendAlike(t, l, []int32{1}, all) {
			if o.err != nil || len(o.results) != 1 || o.results[0].Stat.Version != int32(i)+1 || o.number != o.results[0].Stat.Mzxid {
				t.Errorf("request %d: %+v", i, o)
			}
		}
		if sizes := w.sizes(); len(w.batches) != under+3 || sizes[1] != under || sizes[most] != 3 {
			t.Errorf("100 requests went as %v", sizes)
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
		w := &wire{}
		l, r := newQueue(w.send), &root{name: "r"}
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for range each {
					if o := l.multi(t.Context(), r, 1, plan{steps: sets(fmt.Sprint("r/", i), 1)}); o.err != nil {
						t.Error(o.err)
					}
				}
			})
		}
		all.Wait()
		if n := len(w.batches); n > 2*each {
			t.Errorf("%d callers needed %d transactions for %d requests each; want at most %d", callers, n, each, 2*each)
		}
	})
}

func TestAMistakenRequestFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{mistaken: map[string]bool{"/r/6": true, "/r/9": true}}
		l := newQueue(w.send)
		var all [][]step
		for i := range 12 {
			all = append(all, append(sets(fmt.Sprint("r/", 100+i), 1), sets(fmt.Sprint("r/", i), 1)...))
		}
		for i, o := range sendAlike(t, l, []int32{1}, all) {
			if wrong := i == 6 || i == 9; wrong != errors.Is(o.err, zk.ErrBadVersion) || wrong && o.wrong.name != fmt.Sprint("r/", i) {
				t.Errorf("request %d: %+v", i, o)
			}
		}
		if n := len(w.batches); n != under+3 {
			t.Errorf("%d transactions; want %d that are executed, and 2 that are not", n, under+1)
		}
	})
}

// The user may not write one node.
func TestARequestThatIsRefusedFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newQueue((&wire{refused: map[string]bool{"/r/7": true}}).send)
		var all [][]step
		for i := range 12 {
			all = append(all, sets(fmt.Sprint("r/", i), 1))
		}
		for i, o := range sendAlike(t, l, []int32{1}, all) {
			if refused := i == 7; refused != errors.Is(o.err, casstore.ErrRefused) || !refused && o.err != nil {
				t.Errorf("request %d: %v", i, o.err)
			}
		}
	})
}

// All acquires of a process compare its void.
func TestRequestsThatCompareTheSameShareATransaction(t *testing.T) {
	for name, mistaken := range map[string]bool{"as it was": false, "changed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &wire{mistaken: map[string]bool{"/void": mistaken}}
				l := newQueue(w.send)
				r := &root{name: "r"}
				var all sync.WaitGroup
				for i := range under + 10 {
					p := plan{steps: sets(fmt.Sprint("r/", i), 1)}
					switch {
					case i == under+9:
						p.checks = []check{{"void", 8}} // it goes alone
					case i >= under && i%2 == 0:
						p.checks = []check{{"void", 7}}
					}
					all.Go(func() {
						o := l.multi(t.Context(), r, 1, p)
						if wrong := mistaken && len(p.checks) > 0; wrong != errors.Is(o.err, zk.ErrBadVersion) || wrong && o.wrong.name != "void" {
							t.Errorf("request %d: %+v", i, o)
						}
					})
					synctest.Wait()
				}
				all.Wait()
				want := map[int]int{1: under, 10: 1, 2: 1} // nine requests and the conditions of five of them; one request
				if mistaken {
					want[4] = 1 // the others again
				}
				if sizes := w.sizes(); !maps.Equal(sizes, want) {
					t.Errorf("the requests went as %v; want %v", sizes, want)
				}
			})
		})
	}
}

func TestNoRequestSharesATransactionWithOneOfItsNodesOrOfAnotherEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		l := newQueue(w.send)
		var all [][]step
		for i := range under {
			all = append(all, sets(fmt.Sprint("busy", i), 1))
		}
		all = append(all, sets("a", 1), sets("a", 2), sets("b", 1), nil)
		sendAlike(t, l, []int32{1}, all)
		if sizes := w.sizes(); sizes[1] != under+1 || sizes[2] != 1 {
			t.Errorf("requests of one node went as %v", sizes)
		}
		w.batches = nil
		all = nil
		for i := range under + 4 {
			all = append(all, sets(fmt.Sprint(i), 1))
		}
		sendAlike(t, l, []int32{1, 2}, all)
		if sizes := w.sizes(); sizes[1] != under || sizes[2] != 2 {
			t.Errorf("requests of two epochs went as %v", sizes)
		}
	})
}

// If no write of a transaction returns a number, the transaction also writes a node of the
// adapter.
func TestEachTransactionTellsItsNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		l := newQueue(w.send)
		creates := []step{{"a", &zk.CreateRequest{Path: "/a"}, 0}}
		for _, o := range sendAlike(t, l, []int32{1}, [][]step{nil, creates}) {
			if o.err != nil || o.number == 0 {
				t.Errorf("%+v", o)
			}
		}
	})
}

func TestATransactionEndsWithTheLastOfItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []time.Duration
		l := newQueue(func(ctx context.Context, _ []any) ([]zk.MultiResponse, error) {
			begin := time.Now()
			<-ctx.Done()
			took = append(took, time.Since(begin))
			return nil, ctx.Err()
		})
		l.lanes.Under = 1
		r := &root{name: "r"}
		var all sync.WaitGroup
		for i := range 3 { // the first one is sent alone, the others wait for it
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			all.Go(func() { l.multi(ctx, r, 1, plan{steps: sets(fmt.Sprint(i), 1)}) })
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
		w := &wire{}
		l := newQueue(w.send)
		r := &root{name: "r"}
		var all sync.WaitGroup
		for i := range under {
			all.Go(func() { l.multi(t.Context(), r, 1, plan{steps: sets(fmt.Sprint(i), 1)}) })
			synctest.Wait() // none shares a transaction
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if o := l.multi(ctx, r, 1, plan{steps: sets("late", 1)}); !errors.Is(o.err, driver.ErrNotReady) {
			t.Errorf("%v; want ErrNotReady", o.err)
		}
		all.Wait()
		if n := len(w.batches); n != under {
			t.Errorf("%d transactions; want %d", n, under)
		}
	})
}
