package zkstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/internal/logtest"
)

func TestTheAdapterKeepsTheContractOnAFake(t *testing.T) {
	f := newFake()
	castest.Run(t, func(t *testing.T) casstore.Server {
		t.Helper()
		return newServer(f.connect(t, 0))
	})
}

// watch watches a prefix until the test ends.
func watch(t *testing.T, s *server, prefix string) <-chan []casstore.Change {
	t.Helper()
	reports := make(chan []casstore.Change, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Watch(ctx, prefix, func(changes []casstore.Change) { reports <- changes }); ctx.Err() == nil {
			t.Errorf("the watch has failed: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return reports
}

// withEntries makes a fake ZooKeeper with some entries below a name.
func withEntries(below string, n int) *fake {
	f := newFake()
	f.nodes["/r"], f.nodes["/r/.epoch"], f.nodes["/r/.now"] = &fakeNode{acl: zk.WorldACL(zk.PermAll)}, &fakeNode{}, &fakeNode{}
	f.nodes["/"+below] = &fakeNode{stat: zk.Stat{NumChildren: int32(n)}}
	for i := range n {
		f.nodes[fmt.Sprintf("/%s/%d", below, i)] = &fakeNode{data: there, stat: zk.Stat{Mzxid: 1}}
	}
	f.zxid = 2
	return f
}

// A wait for two channels of each node ended the process at 32,768 nodes, and one wake-up took 0.8 s before.
func TestAWatchOfManyNodesReadsTheChangedOnesAlone(t *testing.T) {
	const many = 40_000
	f := withEntries("r/w", many)
	c := f.connect(t, 0)
	reports := watch(t, newServer(c), "r/w/")
	if n := len(<-reports); n != many {
		t.Fatalf("the first report has %d entries; want %d", n, many)
	}
	other := newServer(f.connect(t, 0))
	for i, op := range []casstore.Op{{Name: "r/w/7", Value: "new"}, {Name: "r/w/come", Value: "new"}, {Name: "r/w/8", Delete: true}} {
		before := c.count("read")
		if _, err := other.Commit(t.Context(), casstore.Txn{Then: []casstore.Op{op}}); err != nil {
			t.Fatal(err)
		}
		if got := <-reports; len(got) != 1 || got[0].Name != op.Name || got[0].Value != op.Value || got[0].Deleted != op.Delete {
			t.Errorf("change %d is reported as %+v; want %+v alone", i, got, op)
		}
		if n := c.count("read") - before; n > 3 {
			t.Errorf("change %d of %d nodes took %d requests; want 3 at most", i, many, n)
		}
	}
}

// A new session read its calls one after the other: with 1,040 of them it was deaf for 19 s.
func TestAWatchReadsManyNodesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, begin := withEntries("r/w", 1040), time.Now()
		<-watch(t, newServer(f.connect(t, 5*time.Millisecond)), "r/w/")
		if took := time.Since(begin); took > 200*time.Millisecond {
			t.Errorf("1,040 nodes are read after %v, with 10 ms for each request; want 200 ms at most", took)
		}
	})
}

// hot changes two entries all the time until stop is called.
func hot(t *testing.T, s *server, names ...string) (stop func()) {
	t.Helper()
	var end atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !end.Load() {
			for _, name := range names {
				if _, err := s.Commit(t.Context(), casstore.Txn{Then: []casstore.Op{{Name: name, Value: "v"}}}); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(time.Millisecond)
		}
	}()
	return func() { end.Store(true); <-ended }
}

// A reading ended only when two were equal. So a process far away never had an answer about a key that others
// change all the time.
func TestAReadingEndsWhileOthersChangeTheKey(t *testing.T) {
	for name, txn := range map[string]casstore.Txn{
		"a look": {Read: []string{"r/k/lock", "r/k/line"}, List: []casstore.Range{{Prefix: "r/k/line/"}}},
		"after a condition that does not hold": {
			If:   []casstore.Condition{{Name: "r/k/lock"}},
			Then: []casstore.Op{{Name: "r/k/lock", Value: "mine"}}, Else: []string{"r/k/lock", "r/k/line"},
		},
		"after a sign of life": {Then: []casstore.Op{{Name: "r/beat", Value: "v"}}, Read: []string{"r/k/lock", "r/k/line"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const way = 15 * time.Millisecond
				f := withEntries("r/k", 0)
				stop := hot(t, newServer(f.connect(t, 0)), "r/k/lock", "r/k/line", "r/k/line/a")
				defer stop()
				far := newServer(f.connect(t, way))
				for range 20 {
					ctx, cancel := context.WithTimeout(t.Context(), 20*way)
					begin := time.Now()
					answer, err := far.Commit(ctx, txn)
					if err != nil || len(answer.Read) != 2 {
						t.Errorf("%v after %v; want an answer while others change the key", err, time.Since(begin))
					}
					cancel()
					time.Sleep(time.Millisecond)
				}
			})
		})
	}
}

// A process 30 ms away had no lock that a near one uses, and lost the locks that it held.
func TestAProcessFarAwayHasALockThatANearOneUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var log logtest.Log
		locker := func(way time.Duration) *core.Locker {
			store, err := casstore.New(newServer(f.connect(t, way)), casstore.Logger(log.Logger()))
			if err != nil {
				t.Fatal(err)
			}
			l, err := core.New(store, core.Unlisted())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = l.Close(context.Background()), store.Close() })
			return l
		}
		near, far := locker(100*time.Microsecond), locker(15*time.Millisecond)
		end := time.Now().Add(10 * time.Second)
		use := func(l *core.Locker) (n int) {
			for time.Now().Before(end) {
				if err := l.Do(t.Context(), "k", func(context.Context) error {
					time.Sleep(2 * time.Millisecond)
					return nil
				}); err != nil {
					t.Errorf("lock %d: %v", n, err)
				}
				n++
			}
			return n
		}
		nears := make(chan int)
		go func() { nears <- use(near) }()
		got := use(far)
		other := <-nears
		t.Logf("%d locks of %d", got, got+other)
		if got < 20 {
			t.Errorf("the process 30 ms away had %d locks, and the near one %d; want 20 at least", got, other)
		}
		if text := log.String(); text != "" { // it lost its place in line again and again, before it knew how far away it is
			t.Errorf("the log has %q; want that each request ends in time", text)
		}
	})
}
