package castest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/driver"
)

// Memory is a [casstore.Server] in the memory of one process, for tests. Commit panics for a transaction that the
// contract does not allow. It reads the time
// with [time.Now], and so works inside a bubble of testing/synctest. Make it with
// [NewMemory]. It is safe for concurrent use, and has nothing to close.
type Memory struct {
	mu       sync.Mutex
	number   int64
	entries  map[string]casstore.Entry
	watchers map[*watcher]struct{}
	commits  int
}

// watcher is a watch of a [Memory]. The mutex of the Memory guards its pending reports.
type watcher struct {
	prefix  string
	reports [][]casstore.Change
	more    chan struct{} // has room for one
}

// NewMemory makes a server that has no entries.
func NewMemory() *Memory {
	return &Memory{entries: map[string]casstore.Entry{}, watchers: map[*watcher]struct{}{}}
}

// Commits returns how many transactions were executed.
func (m *Memory) Commits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commits
}

// Entries returns all entries in the order of their names.
func (m *Memory) Entries() []casstore.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.list(casstore.Range{})
}

func (m *Memory) copied() map[string]casstore.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.entries)
}

// Commit implements [casstore.Server].
func (m *Memory) Commit(_ context.Context, txn casstore.Txn) (casstore.Answer, error) {
	keepsBounds(txn)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.commits++
	check(txn)
	answer := casstore.Answer{Done: true}
	for _, c := range txn.If {
		answer.Done = answer.Done && c.Revision.Is(m.entries[c.Name].Revision)
	}
	reads := txn.Else
	if answer.Done {
		answer.Written = m.write(txn.Then)
		reads = txn.Read
		for _, r := range txn.List {
			answer.Lists = append(answer.Lists, m.list(r))
		}
	}
	for _, name := range reads {
		e := m.entries[name]
		e.Name = name
		answer.Read = append(answer.Read, e)
	}
	return answer, nil
}

// check panics if an entry has no name: servers refuse such a transaction.
func check(txn casstore.Txn) {
	named := !slices.Contains(txn.Read, "") && !slices.Contains(txn.Else, "")
	for _, c := range txn.If {
		named = named && c.Name != ""
	}
	for _, op := range txn.Then {
		named = named && op.Name != ""
	}
	if !named {
		panic(fmt.Sprintf("castest: a transaction has an entry without a name, which servers refuse: %+v", txn))
	}
}

// write executes operations, and has them reported. Called with the mutex held.
func (m *Memory) write(ops []casstore.Op) []casstore.Revision {
	m.number++
	written := make([]casstore.Revision, len(ops))
	var changes []casstore.Change
	for i, op := range ops {
		_, there := m.entries[op.Name]
		switch {
		case !op.Delete:
			written[i] = casstore.Revision{Number: m.number, Version: m.entries[op.Name].Revision.Version + 1}
			e := casstore.Entry{Name: op.Name, Value: op.Value, Revision: written[i]}
			m.entries[op.Name] = e
			changes = append(changes, casstore.Change{Entry: e})
		case there:
			delete(m.entries, op.Name)
			changes = append(changes, casstore.Change{Entry: casstore.Entry{Name: op.Name}, Deleted: true})
		}
	}
	for w := range m.watchers {
		if some := w.concerned(changes); len(some) > 0 {
			w.add(some)
		}
	}
	return written
}

// list returns a range. Called with the mutex held.
func (m *Memory) list(r casstore.Range) []casstore.Entry {
	var list []casstore.Entry
	for _, name := range slices.Sorted(maps.Keys(m.entries)) {
		if strings.HasPrefix(name, r.Prefix) && name > r.After && (r.Limit == 0 || len(list) < r.Limit) {
			list = append(list, m.entries[name])
		}
	}
	return list
}

// concerned returns the changes that the watch is about.
func (w *watcher) concerned(changes []casstore.Change) []casstore.Change {
	var some []casstore.Change
	for _, c := range changes {
		if strings.HasPrefix(c.Name, w.prefix) {
			some = append(some, c)
		}
	}
	return some
}

// add adds a report. Called with the mutex of the Memory held.
func (w *watcher) add(changes []casstore.Change) {
	w.reports = append(w.reports, changes)
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// Watch implements [casstore.Server].
func (m *Memory) Watch(ctx context.Context, prefix string, report func([]casstore.Change)) error {
	w := &watcher{prefix: prefix, more: make(chan struct{}, 1)}
	m.mu.Lock()
	first := []casstore.Change{}
	for _, e := range m.list(casstore.Range{Prefix: prefix}) {
		first = append(first, casstore.Change{Entry: e})
	}
	w.add(first)
	m.watchers[w] = struct{}{}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, w)
	}()
	for {
		select {
		case <-w.more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		m.mu.Lock()
		reports := w.reports
		w.reports = nil
		m.mu.Unlock()
		for _, changes := range reports {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			report(changes)
		}
	}
}

// Fault is what happens on the way between a process and the server. The zero value is
// nothing.
type Fault struct {
	// Before is how long a transaction takes to reach the server, After how long its
	// answer takes to come back. The caller of Commit may have left before either.
	Before, After time.Duration
	// Lost says that the transaction never reaches the server, Unanswered that its answer
	// never comes back: the caller waits until its context ends.
	Lost, Unanswered bool
	// Broken says that the caller gets an error at once. Of a watch, it fails.
	Broken bool
	// Unsent says that the transaction is not sent, and that its caller gets an error that
	// matches driver.ErrNotReady at once.
	Unsent bool
	// Settled says that the answer is an error that matches casstore.ErrSettled. The server
	// has executed the transaction, unless it is Lost.
	Settled bool
}

// Link is the way of one process to a [Memory]: a [casstore.Server] with faults.
type Link struct {
	// Server is at its end.
	Server *Memory
	// Meet returns what happens to a transaction, or to a report of a watch: a report takes
	// Before longer, and the later ones wait for it. It is called from many goroutines.
	Meet func(txn *casstore.Txn) Fault
	// Lags says that the answer to a transaction that may be late ([casstore.Txn.Late]) is as late as it may be.
	Lags bool
	// Apart says that the entries of an answer are of different moments: every second one is read when the answer comes back,
	// and so are the lists.
	Apart bool

	mu      sync.Mutex
	last    *Memory // as it was when it executed a transaction of this process last; nil: it never has
	answers int
}

// errNoSpace is what a caller gets for [Fault.Settled].
var errNoSpace = errors.New("castest: no space")

// errBroken is what a caller gets for [Fault.Broken].
var errBroken = errors.New("castest: the connection is broken")

// Commit implements [casstore.Server].
func (l *Link) Commit(ctx context.Context, txn casstore.Txn) (casstore.Answer, error) {
	fault := l.Meet(&txn)
	if fault.Unsent {
		return casstore.Answer{}, fmt.Errorf("%w: %w", driver.ErrNotReady, errBroken)
	}
	if fault.Settled {
		return l.settle(ctx, txn, fault)
	}
	answers := make(chan casstore.Answer, 1)
	arrive := func() {
		answer := l.execute(txn)
		if !fault.Unanswered {
			after(fault.After, func() { answers <- l.apart(txn, answer) })
		}
	}
	if !fault.Lost {
		after(fault.Before, arrive)
	}
	if fault.Broken {
		return casstore.Answer{}, errBroken
	}
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
		return casstore.Answer{}, context.Cause(ctx)
	}
}

// execute executes a transaction on the server, or on the server as it was.
func (l *Link) execute(txn casstore.Txn) casstore.Answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	server := l.Server
	if l.Lags && txn.Late && l.last != nil {
		server = l.last
	}
	answer, _ := server.Commit(context.Background(), txn) // it never fails
	if l.Lags && server == l.Server {
		l.last = &Memory{entries: server.copied()}
	}
	return answer
}

// apart reads parts of an answer again, if they are to be of different moments.
func (l *Link) apart(txn casstore.Txn, answer casstore.Answer) casstore.Answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.Apart || l.Lags && txn.Late {
		return answer
	}
	names := txn.Else
	if answer.Done {
		names = txn.Read
	}
	now, _ := l.Server.Commit(context.Background(), casstore.Txn{Read: names, List: txn.List}) // it never fails
	l.answers++
	for i := range answer.Read {
		if (i+l.answers)%2 == 0 {
			answer.Read[i] = now.Read[i]
		}
	}
	if answer.Done {
		answer.Lists = now.Lists
	}
	if l.Lags {
		l.last = &Memory{entries: l.Server.copied()}
	}
	return answer
}

// settle has a transaction executed, unless it is lost, and answers without saying so.
func (l *Link) settle(ctx context.Context, txn casstore.Txn, fault Fault) (casstore.Answer, error) {
	if !fault.Lost {
		l.execute(txn)
	}
	select {
	case <-time.After(fault.Before + fault.After):
		return casstore.Answer{}, fmt.Errorf("%w: %w", casstore.ErrSettled, errNoSpace)
	case <-ctx.Done():
		return casstore.Answer{}, context.Cause(ctx)
	}
}

// after calls f after some time, at once if that is none. A timer that is still set at the
// end of a test does not disturb a bubble.
func after(d time.Duration, f func()) {
	if d <= 0 {
		f()
		return
	}
	time.AfterFunc(d, f)
}

// Watch implements [casstore.Server].
func (l *Link) Watch(ctx context.Context, prefix string, report func([]casstore.Change)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return l.Server.Watch(ctx, prefix, func(changes []casstore.Change) {
		fault := l.Meet(nil)
		if fault.Broken {
			cancel(errBroken)
			return
		}
		select {
		case <-time.After(fault.Before):
			report(changes)
		case <-ctx.Done():
		}
	})
}
