// Package castest is the contract of a [casstore.Server] as a test suite. The author of an
// adapter runs it in a test of that adapter:
//
//	func TestContract(t *testing.T) {
//		castest.Run(t, func(t *testing.T) casstore.Server { return open(t) })
//	}
//
// It shows that a server answers as casstore expects. It cannot show what happens when a
// member dies, when the leader changes, or when an answer does not come: that needs tests
// of the adapter's own. Then core/driver/drivertest is run on casstore.New with the
// adapter.
//
// [Memory] is a server for tests of what stands above, and [Link] the faults of a network.
//
// # An adapter, from an empty directory
//
// Look for four things in the manual and in the source of the server: a change of several entries at once, on condition
// that others are as they were; a number that grows with each change, over all entries; a read that a member which lags
// does not answer alone; and a report of changes that says when it has missed some. Where one is absent, others can
// replace it: ZooKeeper compares no numbers, so zkstore compares versions, and keeps deleted nodes. NATS compares
// nothing that it does not write, so natsstore writes a message that carries the condition.
//
//  1. Write Commit for one operation without conditions, and Read. Begin with the test above and -run
//     'Contract/server/(without|names)'. Encode names so that no two become the same, and a prefix becomes a range.
//  2. Add conditions, several operations, Else and lists, until all parts without a watch pass.
//  3. Write Watch: read all entries, then report later changes. Return an error when the connection, or the member, is
//     gone: the store begins a new watch, which reads again.
//  4. Return each error as it is at first: the store takes it for an unknown outcome, which is always safe. Then look in
//     the source of the server for errors that come before it executes anything, and map these to
//     driver.ErrNotReady or [casstore.ErrRefused]. After a request was sent, no error of the network is among them.
//  5. Run drivertest.Run on casstore.New with the adapter.
//  6. Stop, kill and cut off members and clients while processes take locks, and compare the holds. trust/consensus does
//     so with etcd, ZooKeeper and NATS, each as three processes.
//
// Requests that wait at the same time can share a request to the server: see lanes.go of etcdstore.
package castest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
)

// patience bounds how long a test waits for what must happen.
const patience = 15 * time.Second

// Run tests a server. It calls open once or more often for each part of the contract, from
// several goroutines; each call returns a new connection to one and the same server, and
// closes it in t.Cleanup. Every part uses separate names.
func Run(t *testing.T, open func(t *testing.T) casstore.Server) {
	t.Helper()
	t.Run("server", func(t *testing.T) {
		for _, part := range contract {
			t.Run(part.name, func(t *testing.T) {
				t.Parallel()
				var id [8]byte
				rand.Read(id[:]) // never fails (crypto/rand, Go 1.24)
				part.test(&suite{T: t, server: open(t), open: open, prefix: "castest/" + hex.EncodeToString(id[:]) + "/"})
			})
		}
	})
}

// contract lists the parts.
var contract = []struct {
	name string
	test func(s *suite)
}{
	{"a condition compares the revision", (*suite).comparesRevisions},
	{"a condition can compare the number alone", (*suite).comparesNumbers},
	{"a transaction is executed as a whole or not at all", (*suite).wholeOrNot},
	{"without a condition operations are executed", (*suite).unconditional},
	{"a condition can be about what is not written", (*suite).comparesOthers},
	{"to create and delete in turn repeats no revision", (*suite).noRevisionTwice},
	{"revisions grow over all names", (*suite).revisionsGrow},
	{"one of many gets an absent entry", (*suite).oneOfMany},
	{"no change is lost", (*suite).noneLost},
	{"reads come after the operations", (*suite).readsOwnWrites},
	{"another connection sees what was committed", (*suite).otherConnection},
	{"lists are whole, ordered, and bounded", (*suite).lists},
	{"a late answer is not older than one before", (*suite).lateReads},
	{"a brief entry is written and deleted", (*suite).brief},
	{"versions follow each other", (*suite).versions},
	{"a list is not older than what is read with it", (*suite).listsAreLate},
	{"names and values come back as they were", (*suite).texts},
	{"a batch of renewals is one transaction", (*suite).largeBatch},
	{"an ended context ends the wait", (*suite).endedContext},
	{"a watch reports what there is, and then each change", (*suite).watches},
	{"a watch of a name is about that name", (*suite).watchesName},
	{"a watch reports a transaction at once", (*suite).watchesTransactions},
	{"a watch reports that an entry was there between", (*suite).watchesDeletes},
	{"a watch ends with its context", (*suite).watchEnds},
}

// suite is one part of the contract on one server.
type suite struct {
	*testing.T
	server casstore.Server
	open   func(t *testing.T) casstore.Server
	prefix string
}

// commit commits a transaction, which must not fail.
func (s *suite) commit(txn casstore.Txn) casstore.Answer {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	answer, err := s.server.Commit(ctx, txn)
	if err != nil {
		s.Fatalf("Commit(%+v): %v", txn, err)
	}
	want := [3]int{len(txn.Else)} // entries, lists, revisions
	if answer.Done {
		want = [3]int{len(txn.Read), len(txn.List), len(txn.Then)}
	}
	if got := [3]int{len(answer.Read), len(answer.Lists), len(answer.Written)}; got != want {
		s.Fatalf("Commit(%+v) answers %+v", txn, answer)
	}
	return answer
}

// at is the condition that an entry has a revision.
func (s *suite) at(name string, at casstore.Revision) []casstore.Condition {
	return []casstore.Condition{{Name: s.prefix + name, Revision: at}}
}

// comparesNumbers knows the number of an entry by another entry.
func (s *suite) comparesNumbers() {
	s.done(nil, s.put("a", "0"))
	number := func(ops ...casstore.Op) casstore.Revision {
		return casstore.Revision{Number: s.done(nil, ops...).Number, Version: casstore.AnyVersion}
	}
	first := number(s.put("b", "1"), s.put("a", "1"))
	second := number(s.put("b", "2"), s.put("a", "2"))
	if answer := s.commit(casstore.Txn{If: s.at("a", first), Then: []casstore.Op{s.put("a", "3")}}); answer.Done {
		s.Error("a condition on an earlier number holds")
	}
	s.done(s.at("a", second), s.put("a", "4"))
	if answer := s.commit(casstore.Txn{If: s.at("a", second), Then: []casstore.Op{s.put("a", "5")}}); answer.Done {
		s.Error("a condition on a number holds a second time")
	}
	third := number(s.put("b", "3"), s.del("a"))
	if answer := s.commit(casstore.Txn{If: s.at("a", third), Then: []casstore.Op{s.put("a", "6")}}); answer.Done {
		s.Error("a condition on a number holds for an entry that is not there")
	}
}

func (s *suite) put(name, value string) casstore.Op {
	return casstore.Op{Name: s.prefix + name, Value: value}
}

func (s *suite) del(name string) casstore.Op {
	return casstore.Op{Name: s.prefix + name, Delete: true}
}

// done commits a transaction, requires that its conditions hold, and returns the
// revision of its first operation.
func (s *suite) done(conditions []casstore.Condition, ops ...casstore.Op) casstore.Revision {
	s.Helper()
	answer := s.commit(casstore.Txn{If: conditions, Then: ops})
	if !answer.Done {
		s.Fatalf("the conditions %+v do not hold", conditions)
	}
	if got := answer.Written[0]; (got == casstore.Revision{}) != ops[0].Delete || got.Number >= 1<<46 || got.Number < 0 {
		s.Fatalf("%+v has the revision %+v", ops[0], got)
	}
	return answer.Written[0]
}

// refused commits a transaction, and requires that its conditions do not hold.
func (s *suite) refused(conditions []casstore.Condition, ops ...casstore.Op) {
	s.Helper()
	if answer := s.commit(casstore.Txn{If: conditions, Then: ops}); answer.Done || len(answer.Written) > 0 {
		s.Fatalf("the conditions %+v hold: %+v", conditions, answer)
	}
}

// read returns an entry.
func (s *suite) read(name string) casstore.Entry {
	s.Helper()
	e := s.commit(casstore.Txn{Read: []string{s.prefix + name}}).Read[0]
	if e.Name != s.prefix+name || !e.There() && e.Value != "" {
		s.Fatalf("reading %s: %+v", s.prefix+name, e)
	}
	return e
}

var absent casstore.Revision

func (s *suite) comparesRevisions() {
	first := s.done(s.at("k", absent), s.put("k", "a"))
	s.refused(s.at("k", absent), s.put("k", "b"))
	if e := s.read("k"); e.Value != "a" || e.Revision != first {
		s.Errorf("read %+v after writing a at %+v", e, first)
	}
	second := s.done(s.at("k", first), s.put("k", "b"))
	s.refused(s.at("k", first), s.put("k", "c"))
	s.refused(s.at("k", first), s.del("k"))
	if second == first {
		s.Errorf("two writes have the revision %+v", first)
	}
	s.done(s.at("k", second), s.put("k", "b")) // of the same value, and a change
	s.refused(s.at("k", second), s.del("k"))
	s.done(s.at("k", s.read("k").Revision), s.del("k"))
	if e := s.read("k"); e.There() {
		s.Errorf("%+v is there after it was deleted", e)
	}
	s.refused(s.at("k", second), s.put("k", "d"))
	s.done(s.at("k", absent), s.put("k", ""))
	if e := s.read("k"); !e.There() || e.Value != "" {
		s.Errorf("an empty value is read as %+v", e)
	}
}

func (s *suite) wholeOrNot() {
	a := s.done(nil, s.put("a", "1"))
	both := append(s.at("a", a), s.at("b", absent)...)
	s.done(both, s.put("a", "2"), s.put("b", "2"), s.put("d/e", "2"), s.del("c"))
	a = s.read("a").Revision
	s.refused(append(s.at("a", a), s.at("b", absent)...), s.put("a", "3"), s.put("b", "3"), s.put("c", "3"), s.del("d/e"))
	for name, want := range map[string]string{"a": "2", "b": "2", "c": "", "d/e": "2"} {
		if got := s.read(name).Value; got != want {
			s.Errorf("%s is %q; want %q", name, got, want)
		}
	}
}

func (s *suite) unconditional() {
	s.done(nil, s.put("k", "1"))
	s.done(nil, s.put("k", "2"), s.del("never-there"))
	if got := s.read("k").Value; got != "2" {
		s.Errorf("read %q; want 2", got)
	}
	s.done(nil, s.del("k"))
	s.done(nil, s.del("k"))
	if answer := s.commit(casstore.Txn{}); !answer.Done {
		s.Error("a transaction of nothing does not succeed")
	}
}

func (s *suite) comparesOthers() {
	beat := s.done(nil, s.put("beat", "1"))
	s.done(append(s.at("beat", beat), s.at("void", absent)...), s.put("lock", "1"))
	s.done(nil, s.put("beat", "2"))
	s.refused(s.at("beat", beat), s.put("lock", "2"))
	s.done(nil, s.put("void", "1"))
	s.refused(s.at("void", absent), s.put("lock", "2"))
	s.done(nil, s.del("void"))
	s.done(s.at("void", absent), s.put("lock", "2"))
}

func (s *suite) noRevisionTwice() {
	seen := map[casstore.Revision]bool{}
	for range 20 {
		at := s.done(s.at("k", absent), s.put("k", "same"))
		if seen[at] {
			s.Fatalf("the revision %+v comes twice", at)
		}
		seen[at] = true
		s.done(s.at("k", at), s.del("k"))
		for old := range seen {
			s.refused(s.at("k", old), s.put("k", "late"))
		}
	}
	s.done(nil, s.put("k", "same"))
	for old := range seen {
		s.refused(s.at("k", old), s.del("k"))
	}
}

func (s *suite) revisionsGrow() {
	last := int64(0)
	for i := range 20 {
		name := fmt.Sprint("k", i%3)
		at := s.done(nil, s.put(name, "v"), s.put("other", "v"))
		if at.Number <= last {
			s.Fatalf("revision %d follows %d", at.Number, last)
		}
		if e := s.read("other"); e.Revision.Number != at.Number {
			s.Fatalf("one transaction wrote the revisions %d and %d", at.Number, e.Revision.Number)
		}
		last = at.Number
		if i%4 == 0 {
			s.done(nil, s.del(name))
		}
	}
}

func (s *suite) oneOfMany() {
	var mu sync.Mutex
	var winners []casstore.Revision
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			txn := casstore.Txn{If: s.at("k", absent), Then: []casstore.Op{s.put("k", fmt.Sprint(i))}}
			answer, err := s.server.Commit(s.Context(), txn)
			if err != nil {
				s.Errorf("Commit: %v", err)
			}
			if answer.Done {
				mu.Lock()
				defer mu.Unlock()
				winners = append(winners, answer.Written[0])
			}
		})
	}
	all.Wait()
	if len(winners) != 1 || s.read("k").Revision != winners[0] {
		s.Errorf("%d of 32 created the entry: %+v", len(winners), winners)
	}
}

func (s *suite) noneLost() {
	const each = 10
	servers := []casstore.Server{s.server, s.open(s.T)}
	var all sync.WaitGroup
	for _, server := range servers {
		all.Go(func() {
			for done := 0; done < each; {
				read, err := server.Commit(s.Context(), casstore.Txn{Read: []string{s.prefix + "n"}})
				if err != nil {
					s.Errorf("Commit: %v", err)
					return
				}
				e := read.Read[0]
				answer, err := server.Commit(s.Context(), casstore.Txn{
					If:   []casstore.Condition{{Name: e.Name, Revision: e.Revision}},
					Then: []casstore.Op{{Name: e.Name, Value: e.Value + "x"}},
				})
				if err != nil {
					s.Errorf("Commit: %v", err)
					return
				}
				if answer.Done {
					done++
				}
			}
		})
	}
	all.Wait()
	if got := len(s.read("n").Value); got != each*len(servers) {
		s.Errorf("%d changes of %d are there", got, each*len(servers))
	}
}

func (s *suite) endedContext() {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	begin := time.Now()
	_, err := s.server.Commit(ctx, casstore.Txn{Then: []casstore.Op{s.put("k", "v")}})
	if took := time.Since(begin); took > patience/3 {
		s.Errorf("Commit with an ended context took %v, and returned %v", took, err)
	}
}
