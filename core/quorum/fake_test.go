package quorum

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// fakeNode is a node in memory, by the clock of the test's bubble: it plays the scripts
// and the network.
type fakeNode struct {
	mu      sync.Mutex
	run     string
	mark    string
	locks   map[string]*fakeLock
	free    map[string][]string // who waits for a lock without an owner
	fences  map[string]fakeFence
	watched map[int]func(owner string, next driver.Waiters)
	freed   time.Time // when a lock was last given up
	n       int
	calls   []string

	latency time.Duration // each way
	setUp   time.Duration // of a connection
	down    bool          // refuses at once
	silent  bool          // never answers; the request is not executed
	deaf    bool          // never answers, but executes
	ahead   time.Duration // of its clock
	asleep  chan struct{} // closed when it wakes: then it executes what came meanwhile
}

type fakeLock struct {
	owner   string
	token   int64
	expires time.Time
	queue   []string
}

type fakeFence struct {
	token int64
	at    time.Time // zero: exact
	until time.Time // zero: for ever
}

// ioTimeout is after when a fake node's request is given up.
const ioTimeout = 500 * time.Millisecond

var errDown = fmt.Errorf("%w: refused", core.ErrUnavailable)

func newFakeNode() *fakeNode {
	return &fakeNode{
		run:   rand.Text(),
		locks: map[string]*fakeLock{}, free: map[string][]string{}, fences: map[string]fakeFence{}, watched: map[int]func(string, driver.Waiters){},
		latency: 100 * time.Microsecond,
	}
}

// vouch gives the node the mark of a node that has kept its votes.
func (f *fakeNode) vouch() {
	f.set(func(f *fakeNode) {
		m := newMark(f.run, longest)
		m.votes = true
		f.mark = m.text()
	})
}

// flush has the node lose its data while it runs.
func (f *fakeNode) flush() {
	f.set(func(f *fakeNode) {
		f.locks, f.free, f.fences, f.mark = map[string]*fakeLock{}, map[string][]string{}, map[string]fakeFence{}, ""
	})
}

// restart has the node start anew, without its data.
func (f *fakeNode) restart() {
	f.flush()
	f.set(func(f *fakeNode) { f.run = rand.Text() })
}

// set changes the node's condition.
func (f *fakeNode) set(change func(*fakeNode)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// sleep stops the node, as SIGSTOP does, until wake.
func (f *fakeNode) sleep() { f.set(func(f *fakeNode) { f.asleep = make(chan struct{}) }) }

func (f *fakeNode) wake() {
	f.set(func(f *fakeNode) {
		close(f.asleep)
		f.asleep = nil
	})
}

func (f *fakeNode) get(key string) *fakeLock {
	k := f.locks[key]
	if k != nil && !time.Now().Before(k.expires) {
		delete(f.locks, key)
		return nil
	}
	return k
}

// hold gives a lock on the node to an owner.
func (f *fakeNode) hold(key, owner string, token int64, ttl time.Duration) {
	f.set(func(f *fakeNode) {
		f.locks[key] = &fakeLock{owner: owner, token: token, expires: time.Now().Add(ttl)}
		f.fences[key] = fakeFence{token: token, at: time.Now()}
	})
}

func (f *fakeNode) holder(key string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := f.get(key); k != nil {
		return k.owner
	}
	return ""
}

// fence is the node's memory of the tokens of a key.
func (f *fakeNode) fence(key string) fakeFence {
	fence := f.fences[key]
	if !fence.until.IsZero() && !time.Now().Before(fence.until) {
		delete(f.fences, key)
		return fakeFence{}
	}
	return fence
}

// highest is the highest token of a key that the node has seen, or that its holder may
// have given out since.
func (f *fakeNode) highest(key string) int64 {
	fence := f.fence(key)
	if fence.at.IsZero() {
		return fence.token
	}
	return fence.token + time.Since(fence.at).Microseconds()*99/100
}

// carry takes a request there and back. It returns an error, and whether it was
// executed although there is one.
func (f *fakeNode) carry(what string, work func()) (executed bool, err error) {
	f.mu.Lock()
	f.calls = append(f.calls, what)
	latency, down, silent, asleep := f.latency, f.down, f.silent, f.asleep
	f.mu.Unlock()
	if down {
		return false, errDown
	}
	time.Sleep(latency)
	if asleep != nil {
		go func() {
			<-asleep
			f.set(func(*fakeNode) { work() })
		}()
		silent = true
	}
	if silent {
		time.Sleep(ioTimeout)
		return true, fmt.Errorf("%w: no answer", core.ErrUnavailable) // the caller cannot tell
	}
	f.mu.Lock()
	work()
	deaf := f.deaf
	f.mu.Unlock()
	if deaf {
		time.Sleep(ioTimeout)
		return true, fmt.Errorf("%w: no answer", core.ErrUnavailable)
	}
	time.Sleep(latency)
	return true, nil
}

func (f *fakeNode) count(what string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c == what {
			n++
		}
	}
	return n
}

func (f *fakeNode) Propose(p rediswire.Proposal, done func(rediswire.Vote, error)) {
	go func() {
		var v rediswire.Vote
		executed, err := f.carry("propose", func() { v = f.vote(p) })
		if err != nil {
			done(rediswire.Vote{Unknown: executed}, err)
			return
		}
		done(v, nil)
	}()
}

func (f *fakeNode) vote(p rediswire.Proposal) rediswire.Vote {
	now := time.Now()
	v := rediswire.Vote{Clock: now.Add(f.ahead).UnixMicro()}
	k := f.get(p.Key)
	switch {
	case p.Token > 0 && p.Mark != f.mark:
		v.Unmarked = true
	case p.Token > 0 && v.Clock > p.Ends:
		v.Ended = true
	case k == nil:
		highest := f.highest(p.Key)
		v.Token = highest
		if p.Token > highest {
			queue := f.free[p.Key]
			delete(f.free, p.Key)
			if i := slices.Index(queue, string(p.Waiter)); i >= 0 {
				queue = queue[i+1:]
			} else {
				queue = nil
			}
			f.locks[p.Key] = &fakeLock{owner: p.Owner, token: p.Token, expires: now.Add(p.TTL), queue: queue}
			f.fences[p.Key] = fakeFence{p.Token, now, now.Add(p.Keep)}
			v.Granted, v.Token = true, p.Token
		}
	case k.owner == p.Owner:
		if p.Token > k.token {
			k.token = p.Token
			f.fences[p.Key] = fakeFence{p.Token, now, now.Add(p.Keep)}
			if until := now.Add(p.TTL); until.After(k.expires) {
				k.expires = until
			}
		}
		v.Granted, v.Token = true, k.token
	default:
		if p.Waiter != "" && !strings.Contains(strings.Join(k.queue, ","), string(p.Waiter)) {
			k.queue = append(k.queue, string(p.Waiter))
		}
		v.Holder, v.TTL, v.Listed = k.owner, k.expires.Sub(now), p.Waiter != ""
	}
	return v
}

func (f *fakeNode) Withdraw(w rediswire.Withdrawal, done func(driver.Waiters, error)) {
	go func() {
		for {
			var result error
			var tell []func(string, driver.Waiters)
			var next driver.Waiters
			_, err := f.carry("withdraw", func() {
				k := f.get(w.Key)
				switch {
				case k == nil || k.owner != w.Owner:
					if w.Token > f.highest(w.Key) {
						raised := fakeFence{token: w.Token, until: time.Now().Add(w.Keep)}
						if !f.fence(w.Key).at.IsZero() {
							raised.at = time.Now()
						}
						f.fences[w.Key] = raised
					}
					result = driver.ErrNotOwner
				case w.Limit == 0 || k.token <= w.Limit:
					delete(f.locks, w.Key)
					if len(k.queue) > 0 {
						f.free[w.Key] = k.queue
					}
					f.freed = time.Now()
					last := max(k.token, w.Token, f.fence(w.Key).token)
					f.fences[w.Key] = fakeFence{token: last, until: time.Now().Add(w.Keep)}
					next = driver.Waiters(strings.Join(k.queue, ","))
					for _, wake := range f.watched {
						tell = append(tell, wake)
					}
				}
			})
			if err == nil && next != "" && !w.Quiet {
				for _, wake := range tell {
					wake(w.Owner, next)
				}
			}
			const pause = 10 * time.Millisecond
			switch {
			case err == nil:
				done(next, result)
				return
			case time.Now().Add(pause).After(w.Deadline):
				done("", err)
				return
			}
			time.Sleep(pause)
		}
	}()
}

func (f *fakeNode) Confirm(_ context.Context, batch []rediswire.Confirmation, done func(int, bool, error)) {
	results := make([]error, len(batch))
	_, err := f.carry("renew", func() {
		for i, r := range batch {
			k := f.get(r.Key)
			if k == nil || k.owner != r.Owner {
				results[i] = driver.ErrNotOwner
				continue
			}
			k.token = max(k.token, r.Ballot)
			if until := time.Now().Add(r.TTL); until.After(k.expires) {
				k.expires = until
			}
		}
	})
	for i := range batch {
		if err != nil {
			done(i, false, err)
		} else {
			done(i, false, results[i])
		}
	}
}

func (f *fakeNode) Watch(_ string, since time.Time, wake func(owner string, next driver.Waiters)) func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.freed.Before(since) {
		go wake("", "") // it may have missed that
	}
	f.n++
	n := f.n
	f.watched[n] = wake
	return func() { f.set(func(f *fakeNode) { delete(f.watched, n) }) }
}

func (f *fakeNode) Mark(_ context.Context, from, to string) error {
	_, err := f.carry("mark", func() {
		if f.mark == from {
			f.mark = to
		}
	})
	return err
}

func (f *fakeNode) Meet(context.Context) error              { return nil }
func (f *fakeNode) Check(context.Context) ([]string, error) { return nil, nil }
func (f *fakeNode) Close() error                            { return nil }

// fakeWire is the way of a store to a node: each new run of the node introduces itself,
// on a connection that is new.
type fakeWire struct {
	*fakeNode
	store *Store
	index int

	mu  sync.Mutex
	run string
}

func (w *fakeWire) Propose(p rediswire.Proposal, done func(rediswire.Vote, error)) {
	if d := w.setUp(); d > 0 {
		go func() {
			time.Sleep(d)
			w.connect()
			w.fakeNode.Propose(p, done)
		}()
		return
	}
	w.connect()
	w.fakeNode.Propose(p, done)
}

// setUp is how long a connection takes, if there is none.
func (w *fakeWire) setUp() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fakeNode.mu.Lock()
	defer w.fakeNode.mu.Unlock()
	if w.run == w.fakeNode.run {
		return 0
	}
	return w.fakeNode.setUp
}

func (w *fakeWire) Confirm(ctx context.Context, batch []rediswire.Confirmation, done func(int, bool, error)) {
	w.connect()
	w.fakeNode.Confirm(ctx, batch, done)
}

func (w *fakeWire) Meet(context.Context) error {
	id := rediswire.Identity{Asked: time.Now()}
	_, err := w.carry("meet", func() { w.tell(&id) })
	if err == nil {
		err = w.store.met(w.index, id)
	}
	return err
}

// connect introduces a run of the node that is new. It takes no time, and has taken setUp.
func (w *fakeWire) connect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(func(f *fakeNode) {
		if f.run != w.run && !f.down && !f.silent && f.asleep == nil {
			id := rediswire.Identity{Asked: time.Now()}
			if f.setUp > 0 {
				id.Asked = id.Asked.Add(-2 * f.latency)
			}
			f.tell(&id)
			_ = w.store.met(w.index, id) // of a store that takes any
			w.run = f.run
		}
	})
}

// tell fills in the node's answer about itself. Called with its mutex held.
func (f *fakeNode) tell(id *rediswire.Identity) {
	id.RunID, id.Mark, id.Clock = f.run, f.mark, time.Now().Add(f.ahead).UnixMicro()
}

// fakes makes some nodes that have kept their votes, and stores on them as several processes have them.
func fakes(n int) []*fakeNode {
	nodes := make([]*fakeNode, n)
	for i := range nodes {
		nodes[i] = newFakeNode()
		nodes[i].vouch()
	}
	return nodes
}

// newcomer makes a store that has not met its nodes.
func newcomer(tb testing.TB, nodes []*fakeNode) *Store {
	tb.Helper()
	names := make([]string, len(nodes))
	for i := range names {
		names[i] = fmt.Sprint("node", i)
	}
	s := newStore(names, &settings{log: logs.To(slog.New(slog.DiscardHandler)), maxTTL: longest})
	for i, f := range nodes {
		s.nodes[i].server = &fakeWire{fakeNode: f, store: s, index: i}
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// storeOn makes a store that has met its nodes.
func storeOn(tb testing.TB, nodes []*fakeNode) *Store {
	tb.Helper()
	s := newcomer(tb, nodes)
	for _, n := range s.nodes {
		n.server.(*fakeWire).connect()
	}
	return s
}

const (
	lease   = 10 * time.Second
	longest = time.Minute // that any process takes
)

func ask(owner string) driver.AcquireRequest {
	return driver.AcquireRequest{Key: "k", Owner: owner, TTL: lease, Waiter: driver.Waiter("w-" + owner), Late: func(driver.Reply, error) {}}
}

// acquire fails the test on an error.
func acquire(t *testing.T, s *Store, owner string) driver.Reply {
	t.Helper()
	rep, err := s.Acquire(t.Context(), ask(owner))
	if err != nil {
		t.Fatalf("Acquire for %s: %v", owner, err)
	}
	return rep
}

func free(t *testing.T, s *Store, owner string, token int64) {
	t.Helper()
	_, err := s.Release(t.Context(), driver.ReleaseRequest{
		Key: "k", Owner: owner, Token: token, TTL: lease, Deadline: time.Now().Add(time.Second),
	})
	if err != nil {
		t.Errorf("Release for %s: %v", owner, err)
	}
}

// wantFree waits until no owner holds k on the nodes.
func wantFree(t *testing.T, nodes []*fakeNode, within time.Duration) {
	t.Helper()
	time.Sleep(within)
	for i, f := range nodes {
		if owner := f.holder("k"); owner != "" {
			t.Errorf("node %d is still held by %s", i, owner)
		}
	}
}

// bubble runs a test in fake time, with n nodes.
func bubble(t *testing.T, n int, f func(t *testing.T, nodes []*fakeNode)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, fakes(n))
		time.Sleep(2 * lease) // messages on the way arrive
	})
}
