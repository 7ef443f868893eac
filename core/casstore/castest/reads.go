package castest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
)

func (s *suite) readsOwnWrites() {
	s.done(nil, s.put("q/a", "1"), s.put("gone", "1"))
	answer := s.commit(casstore.Txn{
		Then: []casstore.Op{s.put("k", "2"), s.put("q/b", "2"), s.del("gone")},
		Read: []string{s.prefix + "k", s.prefix + "gone", s.prefix + "never-there"},
		List: []casstore.Range{{Prefix: s.prefix + "q/"}},
	})
	if e := answer.Read[0]; e.Value != "2" || e.Revision != answer.Written[0] {
		s.Errorf("wrote %+v, and read %+v", answer.Written[0], e)
	}
	if answer.Read[1].There() || answer.Read[2].There() {
		s.Errorf("read what is not there: %+v", answer.Read)
	}
	if got := names(answer.Lists[0]); !slices.Equal(got, []string{s.prefix + "q/a", s.prefix + "q/b"}) {
		s.Errorf("listed %q", got)
	}
	failed := s.commit(casstore.Txn{
		If: s.at("k", absent), Then: []casstore.Op{s.put("other", "3")}, Read: []string{s.prefix + "q/a"},
		List: []casstore.Range{{Prefix: s.prefix + "q/"}}, Else: []string{s.prefix + "other", s.prefix + "k"},
	})
	if failed.Done || failed.Read[0].There() || failed.Read[1].Value != "2" || failed.Read[1].Revision != answer.Written[0] {
		s.Errorf("after a condition that did not hold: %+v", failed)
	}
}

func names(entries []casstore.Entry) []string {
	list := make([]string, len(entries))
	for i, e := range entries {
		list[i] = e.Name
	}
	return list
}

func (s *suite) otherConnection() {
	other := s.open(s.T)
	for i := range 50 {
		want := fmt.Sprint(i)
		at := s.done(nil, s.put("k", want))
		answer, err := other.Commit(s.Context(), casstore.Txn{Read: []string{s.prefix + "k"}})
		if err != nil {
			s.Fatal(err)
		}
		if e := answer.Read[0]; e.Value != want || e.Revision != at {
			s.Fatalf("another connection reads %+v after %q was committed at %+v", e, want, at)
		}
	}
}

func (s *suite) lists() {
	for _, name := range []string{"l/c", "l/a", "l/b/d", "l/b", "l%", "l-", "l0", "m", "l"} {
		s.done(nil, s.put(name, name))
	}
	s.done(nil, s.put("l/gone", ""))
	s.done(nil, s.del("l/gone"))
	for _, part := range []struct {
		after string
		limit int
		want  []string
	}{
		{"", 0, []string{"l/a", "l/b", "l/b/d", "l/c"}},
		{"", 2, []string{"l/a", "l/b"}},
		{"l/b", 2, []string{"l/b/d", "l/c"}},
		{"l/c", 2, nil},
	} {
		r := casstore.Range{Prefix: s.prefix + "l/", Limit: part.limit}
		if part.after != "" {
			r.After = s.prefix + part.after
		}
		var want []string
		for _, name := range part.want {
			want = append(want, s.prefix+name)
		}
		list := s.commit(casstore.Txn{List: []casstore.Range{r}}).Lists[0]
		if got := names(list); !slices.Equal(got, want) {
			s.Errorf("%+v lists %q; want %q", r, got, want)
		}
		for _, e := range list {
			if s.prefix+e.Value != e.Name || !e.There() {
				s.Errorf("listed %+v", e)
			}
		}
	}
	if list := s.commit(casstore.Txn{List: []casstore.Range{{Prefix: s.prefix + "never/"}}}).Lists[0]; len(list) > 0 {
		s.Errorf("an empty range lists %+v", list)
	}
}

func (s *suite) lateReads() {
	other := s.open(s.T)
	late := casstore.Txn{Read: []string{s.prefix + "l"}, List: []casstore.Range{{Prefix: s.prefix + "l/", Limit: 500}}, Late: true}
	for i := range 50 {
		txn, by := casstore.Txn{Then: []casstore.Op{s.put("l", ""), s.put(fmt.Sprint("l/", i), "")}}, s.server
		if i%2 == 1 {
			by = other
		}
		written, err := by.Commit(s.Context(), txn)
		if err != nil {
			s.Fatal(err)
		}
		if i%2 == 1 { // after this the first has given an answer that is newer than the change
			s.commit(casstore.Txn{Read: []string{s.prefix + "l"}})
		}
		answer := s.commit(late)
		if at := answer.Read[0].Revision; at != written.Written[0] || len(answer.Lists[0]) != i+1 {
			s.Fatalf("a late answer has revision %+v and %d entries; want %+v and %d", at, len(answer.Lists[0]), written.Written[0], i+1)
		}
	}
}

// brief writes and deletes a brief entry, some times without a deletion between.
func (s *suite) brief() {
	other := s.open(s.T)
	for i := range 9 {
		op := s.put("deep/below/k", fmt.Sprint(i))
		op.Brief = true
		at := s.done(s.at("other", absent), op)
		if e := s.read("deep/below/k"); e.Value != op.Value || e.Revision != at {
			s.Errorf("wrote %q at %+v, and read %+v", op.Value, at, e)
		}
		if i%3 == 1 {
			continue
		}
		gone := s.del("deep/below/k")
		gone.Brief = true
		answer, err := other.Commit(s.Context(), casstore.Txn{If: s.at("deep/below/k", at), Then: []casstore.Op{gone}})
		if e := s.read("deep/below/k"); err != nil || !answer.Done || e.There() {
			s.Errorf("%+v is there after its deletion: %+v, %v", e, answer, err)
		}
	}
}

func (s *suite) versions() {
	last := s.done(nil, s.put("k", ""))
	for range 3 {
		now := s.done(nil, s.put("k", ""))
		if want := last.Version + 1; last.Version < 0 || now.Version != want && now.Version+last.Version != 0 {
			s.Errorf("version %d follows %d; want %d, or zero always", now.Version, last.Version, want)
		}
		last = now
	}
}

// listsAreLate lists entries that come meanwhile, each together with a change of an entry that counts them.
func (s *suite) listsAreLate() {
	s.done(nil, s.put("l", "0"))
	const comers, each = 3, 20
	var all sync.WaitGroup
	var come atomic.Int64
	for range comers {
		all.Go(func() {
			for range each {
				n := come.Add(1)
				if _, err := s.server.Commit(s.Context(), casstore.Txn{Then: []casstore.Op{s.put(fmt.Sprint("l/", n), ""), s.put("l", "")}}); err != nil {
					s.Errorf("Commit: %v", err)
				}
			}
		})
	}
	before := map[string]casstore.Entry{}
	for end := false; !end; {
		end = come.Load() == comers*each
		answer := s.commit(casstore.Txn{Read: []string{s.prefix + "l"}, List: []casstore.Range{{Prefix: s.prefix + "l/", Limit: 500}}})
		at, now := answer.Read[0].Revision.Number, map[string]casstore.Entry{}
		for _, e := range answer.Lists[0] {
			now[e.Name] = e
		}
		for name, e := range before { // nothing is deleted
			if now[name] != e {
				s.Errorf("%s was listed as %+v, and then as %+v", name, e, now[name])
			}
		}
		last := s.commit(casstore.Txn{List: []casstore.Range{{Prefix: s.prefix + "l/", Limit: 500}}}).Lists[0]
		for _, e := range last {
			if e.Revision.Number <= at && now[e.Name] != e {
				s.Errorf("%s is from revision %d, and not in a list with an entry of revision %d", e.Name, e.Revision.Number, at)
			}
		}
		before = now
	}
	all.Wait()
}

func (s *suite) texts() {
	for _, name := range []string{"%", "%00%FF", ":x", "~-_", strings.Repeat("%7B", 400), "a/b/c/d/e"} {
		for _, value := range []string{"", "v", "1 a%2Fb 30000 x 0 %", "ключ\n", strings.Repeat("w", 8_000)} {
			s.done(nil, s.put(name, value))
			if got := s.read(name).Value; got != value {
				s.Errorf("%q was written, %q is read under %q", value, got, name)
			}
		}
	}
}

func (s *suite) largeBatch() {
	txn := casstore.Txn{Then: []casstore.Op{s.put("beat", "1")}}
	for i := range 60 {
		key := fmt.Sprintf("k%d/", i)
		s.done(nil, s.put(key+"lock", key), s.put(key+"lock/1", ""))
		txn.Read = append(txn.Read, s.prefix+key+"lock")
		txn.List = append(txn.List, casstore.Range{Prefix: s.prefix + key + "lock/"})
	}
	answer := s.commit(txn)
	for i, e := range answer.Read {
		if e.Value != fmt.Sprintf("k%d/", i) || len(answer.Lists[i]) != 1 {
			s.Errorf("lock %d is read as %+v, its list as %+v", i, e, answer.Lists[i])
		}
	}
}

// watch watches a prefix until the test ends.
func (s *suite) watch(prefix string) (reports <-chan []casstore.Change, stop func()) {
	ch := make(chan []casstore.Change, 100)
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.server.Watch(ctx, s.prefix+prefix, func(changes []casstore.Change) { ch <- changes }); ctx.Err() == nil {
			s.Errorf("the watch failed: %v", err)
		}
	}()
	stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			s.Error("a watch goes on after its context has ended")
		}
	}
	s.Cleanup(stop)
	return ch, stop
}

// reported waits for a report, and returns it as text.
func (s *suite) reported(reports <-chan []casstore.Change) string {
	s.Helper()
	select {
	case changes := <-reports:
		var texts []string
		for _, c := range changes {
			name := strings.TrimPrefix(c.Name, s.prefix)
			switch {
			case c.Deleted:
				texts = append(texts, "-"+name)
			case !c.There():
				s.Errorf("a change has no revision: %+v", c)
			default:
				texts = append(texts, name+"="+c.Value)
			}
		}
		return strings.Join(texts, " ")
	case <-time.After(patience):
		s.Fatal("a watch does not report")
		return ""
	}
}

// expect waits for reports, one after the other.
func (s *suite) expect(reports <-chan []casstore.Change, want ...string) {
	s.Helper()
	for _, w := range want {
		if got := s.reported(reports); got != w {
			s.Fatalf("a watch reports %q; want %q", got, w)
		}
	}
}

func (s *suite) watches() {
	s.done(nil, s.put("w/a", "1"))
	s.done(nil, s.put("other", "1"))
	reports, _ := s.watch("w/")
	s.expect(reports, "w/a=1")
	at := s.done(nil, s.put("w/a", "2"))
	s.expect(reports, "w/a=2")
	s.done(nil, s.put("other", "2"))
	s.done(nil, s.put("w", "2"))
	s.done(nil, s.put("w/b", "3"))
	s.expect(reports, "w/b=3")
	s.done(s.at("w/a", at), s.del("w/a"))
	s.expect(reports, "-w/a")
	empty, _ := s.watch("nothing/")
	s.expect(empty, "")
	s.done(nil, s.put("nothing/x", "4"))
	s.expect(empty, "nothing/x=4")
}

func (s *suite) watchesName() {
	reports, _ := s.watch("b/30")
	s.expect(reports, "")
	s.done(nil, s.put("b/30", "1"))
	s.expect(reports, "b/30=1")
	s.done(nil, s.put("b/30", "1"))
	s.expect(reports, "b/30=1")
}

func (s *suite) watchesTransactions() {
	s.done(nil, s.put("w/lock", "1"))
	reports, _ := s.watch("w/")
	s.expect(reports, "w/lock=1")
	s.done(nil, s.put("w/x", "1"), s.del("w/lock"), s.put("elsewhere", "1"))
	s.expect(reports, "w/x=1 -w/lock")
}

// watchesDeletes makes changes faster than a server may report them. The last of them may be
// left out, too, so another entry tells the end.
func (s *suite) watchesDeletes() {
	const turns = 50
	reports, _ := s.watch("w/")
	s.expect(reports, "")
	go func() {
		var txns []casstore.Txn
		for i := range turns {
			txns = append(txns, casstore.Txn{Then: []casstore.Op{s.put("w/lock", fmt.Sprint(i))}}, casstore.Txn{Then: []casstore.Op{s.del("w/lock")}})
		}
		for _, txn := range append(txns, casstore.Txn{Then: []casstore.Op{s.put("w/end", "")}}) {
			if _, err := s.server.Commit(s.Context(), txn); err != nil && s.Context().Err() == nil {
				s.Errorf("Commit: %v", err)
			}
		}
	}()
	there, last := false, -1
	for ended := false; !ended; {
		for part := range strings.FieldsSeq(s.reported(reports)) {
			var n int
			switch _, err := fmt.Sscanf(part, "w/lock=%d", &n); {
			case part == "w/end=":
				ended = true
			case part == "-w/lock":
				there = false
			case err != nil || there || n <= last:
				s.Fatalf("after %d, there %v, a watch reports %q", last, there, part)
			default:
				there, last = true, n
			}
		}
	}
	if there {
		s.Errorf("a watch does not report that entry %d is gone", last)
	}
}

func (s *suite) watchEnds() {
	reports, stop := s.watch("w/")
	s.expect(reports, "")
	stop()
	s.done(nil, s.put("w/a", "1"))
	select {
	case got := <-reports:
		s.Errorf("a watch that has ended reports %+v", got)
	default:
	}
}
