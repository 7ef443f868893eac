//go:build long && linux

package zkstore

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/internal/logtest"
)

func openServer(t *testing.T, addr string) *server {
	t.Helper()
	conn, err := Connect([]string{addr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return newServer(conn)
}

// mustCommit commits a transaction that must not fail.
func mustCommit(t *testing.T, s *server, txn casstore.Txn) casstore.Answer {
	t.Helper()
	answer, err := s.Commit(t.Context(), txn)
	if err != nil {
		t.Fatalf("%+v: %v", txn, err)
	}
	return answer
}

// tidyTwice deletes all nodes that are no entries now.
func tidyTwice(t *testing.T, s *server, name string) {
	t.Helper()
	r, err := s.rootOf(casstore.Txn{Read: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	for range 3 { // it learns the epoch, ends it, and ends it again
		if last, _, err = s.tidyRoot(t.Context(), r, last); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALateTransactionMeetsNoNodeThatWasCreatedAnew(t *testing.T) {
	addr := startServer(t)
	one, other, late := openServer(t, addr), openServer(t, addr), openServer(t, addr)
	put := casstore.Txn{Then: []casstore.Op{{Name: "t/k/lock", Value: "v"}}}
	remove := casstore.Txn{Then: []casstore.Op{{Name: "t/k/lock", Delete: true}}}
	mustCommit(t, late, casstore.Txn{Then: []casstore.Op{{Name: "t/x", Value: "v"}}}) // it knows the first epoch
	first := mustCommit(t, one, put).Written[0]
	mustCommit(t, one, remove)
	tidyTwice(t, one, "t")
	for _, name := range []string{"/t/k/lock", "/t/k"} {
		if there, _, err := one.conn.(*Conn).Exists(name); there || err != nil {
			t.Fatalf("%s is there after the tidying: %v, %v", name, there, err)
		}
	}
	again := mustCommit(t, one, put).Written[0]
	if again.Version != first.Version || again.Number <= first.Number {
		t.Fatalf("the node has the revision %+v after %+v: the test has gone blind", again, first)
	}
	for name, s := range map[string]*server{"of the first epoch": late, "that is new": other, "of this epoch": one} {
		answer := mustCommit(t, s, casstore.Txn{
			If: []casstore.Condition{{Name: "t/k/lock", Revision: first}}, Then: remove.Then, Else: []string{"t/k/lock"},
		})
		if answer.Done || answer.Read[0].Revision != again {
			t.Errorf("an adapter %s deletes the entry by the revision of an older one: %+v", name, answer)
		}
	}
	for _, s := range []*server{late, other, one} { // the entry's own revision still counts
		answer := mustCommit(t, s, casstore.Txn{If: []casstore.Condition{{Name: "t/k/lock", Revision: again}}, Read: []string{"t/k/lock"}})
		if !answer.Done {
			t.Errorf("the revision %+v of the entry is refused: %+v", again, answer)
		}
	}
}

func TestTheTidyingLeavesEntriesAndWhatHasChangedSince(t *testing.T) {
	s := openServer(t, startServer(t))
	for _, name := range []string{"t/a/lock", "t/b/lock", "t/b/w/x", "t/c"} {
		mustCommit(t, s, casstore.Txn{Then: []casstore.Op{{Name: name, Value: name}}})
	}
	for _, name := range []string{"t/a/lock", "t/b/lock"} {
		mustCommit(t, s, casstore.Txn{Then: []casstore.Op{{Name: name, Delete: true}}})
	}
	tidyTwice(t, s, "t")
	if _, err := s.conn.Create("/t/c/d", []byte(gone), 0, zk.WorldACL(zk.PermAll)); err != nil { // not old enough
		t.Fatal(err)
	}
	list := mustCommit(t, s, casstore.Txn{List: []casstore.Range{{Prefix: "t/"}}}).Lists[0]
	if len(list) != 2 || list[0].Value != "t/b/w/x" || list[1].Value != "t/c" {
		t.Errorf("%+v is there", list)
	}
	for name, want := range map[string]bool{"/t/a": false, "/t/b": true, "/t/b/lock": false, "/t/c/d": true, "/t/.epoch": true} {
		if there, _, err := s.conn.(*Conn).Exists(name); there != want || err != nil {
			t.Errorf("%s is there: %v, %v", name, there, err)
		}
	}
}

// A user who may not delete nodes has locks, and nodes that stay. An operator has to know.
func TestNodesThatStayAreLogged(t *testing.T) {
	conn := openServer(t, startServer(t)).conn.(*Conn)
	if err := conn.AddAuth("digest", []byte("bank:secret")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Create("/t", nil, 0, zk.AuthACL(zk.PermRead|zk.PermWrite|zk.PermCreate)); err != nil {
		t.Fatal(err)
	}
	var log logtest.Log
	s, err := New(conn, casstore.Prefix("t"), casstore.Logger(log.Logger()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	mustCommit(t, s.server, casstore.Txn{Then: []casstore.Op{{Name: "t/k", Value: "v"}}})
	mustCommit(t, s.server, casstore.Txn{Then: []casstore.Op{{Name: "t/k", Delete: true}}})
	last := map[string]int64{}
	for range 4 { // it learns the epoch, ends it, and then deletes
		s.tidyOnce(last)
	}
	for end := time.Now().Add(time.Minute); log.Count("level=WARN") == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond) // the store does not wait for the log
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "not authenticated") {
		t.Errorf("the log has %q", text)
	}
}

// packets counts the packets of a client.
type packets struct {
	net.Conn
	sent *atomic.Int64
}

func (p packets) Write(data []byte) (int, error) {
	p.sent.Add(1)
	return p.Conn.Write(data)
}

// A node that each transaction compares is written seldom, and epochs end meanwhile.
func TestANodeThatIsComparedIsReadOnceInAnEpoch(t *testing.T) {
	var sent atomic.Int64
	conn, err := Connect([]string{startServer(t)}, func(network, addr string, limit time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, limit)
		return packets{conn, &sent}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	for name, there := range map[string]bool{"it is an entry": true, "it is none": false} {
		t.Run(name, func(t *testing.T) {
			s := newServer(conn)
			void := casstore.Condition{Name: "t/void"}
			if there {
				void.Revision = mustCommit(t, s, casstore.Txn{Then: []casstore.Op{{Name: void.Name, Value: "v"}}}).Written[0]
			}
			pair := func() {
				lock := casstore.Condition{Name: "t/k/lock"}
				took := mustCommit(t, s, casstore.Txn{If: []casstore.Condition{lock, void}, Then: []casstore.Op{{Name: lock.Name, Value: "v"}}})
				if !took.Done {
					t.Fatal("the conditions do not hold")
				}
				lock.Revision = took.Written[0]
				mustCommit(t, s, casstore.Txn{If: []casstore.Condition{lock}, Then: []casstore.Op{{Name: lock.Name, Delete: true}}})
			}
			pair()
			r, err := s.rootOf(casstore.Txn{Read: []string{void.Name}})
			if err != nil {
				t.Fatal(err)
			}
			end := &tidying{server: s, root: r}
			if err := end.flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			pair()
			before := sent.Load()
			for range 5 {
				pair()
			}
			if n := sent.Load() - before; n != 10 {
				t.Errorf("5 pairs are %d requests", n)
			}
			mustCommit(t, s, casstore.Txn{Then: []casstore.Op{{Name: void.Name, Delete: true}}})
		})
	}
}

// Nodes may be deleted at any moment, and the contract is kept.
func TestTheContractIsKeptWhileNodesAreDeleted(t *testing.T) {
	addr := startServer(t)
	s := openServer(t, addr)
	ctx, cancel := context.WithCancel(t.Context())
	tidied, ended := 0, make(chan struct{})
	go func() {
		defer close(ended)
		r, _ := s.rootOf(casstore.Txn{Read: []string{"castest"}}) // it has one root
		last := int64(0)
		for ctx.Err() == nil {
			before := last
			last, _, _ = s.tidyRoot(ctx, r, last) // failed deletions are tried again
			if before != 0 && last > before {
				tidied++
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	castest.Run(t, func(t *testing.T) casstore.Server { return openServer(t, addr) })
	cancel()
	<-ended
	if tidied == 0 {
		t.Error("no nodes were deleted: the test has gone blind")
	}
}

// Callers leave two nodes for each key that they use once. The tidying must not wait for each
// of them in turn.
func TestManyNodesAreTidiedTogether(t *testing.T) {
	const keys = 1000
	addr := startServer(t)
	s := openServer(t, addr)
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			for i := range keys / 20 {
				name := "t/" + strconv.Itoa(n*keys+i) + "/lock"
				mustCommit(t, s, casstore.Txn{Then: []casstore.Op{{Name: name, Value: "v"}}})
				mustCommit(t, s, casstore.Txn{Then: []casstore.Op{{Name: name, Delete: true}}})
			}
		})
	}
	all.Wait()
	conn, err := Connect([]string{addr}, dialFar)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	distant := newServer(conn)
	begin := time.Now()
	tidyTwice(t, distant, "t")
	if took := time.Since(begin); took > 3*keys*way/4 {
		t.Errorf("%d keys were tidied in %v; one after the other they take %v", keys, took, 3*keys*way)
	}
	if left, _, err := s.conn.Children("/t"); err != nil || len(left) != 2 {
		t.Errorf("%d nodes stay, %v; want .epoch and .now", len(left), err)
	}
}
