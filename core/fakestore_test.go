package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
)

// fakeStore is a Store in memory, by the clock of the test's bubble. A hook
// decides what happens to each request on its way.
type fakeStore struct {
	mu    sync.Mutex
	locks map[string]*fakeLock
	last  map[string]int64
	watch map[string][]*func(driver.Signal)
	calls []call
	hook  func(call) fault
	sure  bool          // a watch began before anything could happen
	back  time.Duration // how far its clock is behind when it mints tokens
}

type fakeLock struct {
	owner   string
	token   int64
	expires time.Time
	queue   []string
}

// call is one request that reached the store's front door.
type call struct {
	op, key, owner string
	ttl            time.Duration
}

// fault is what happens to a request.
type fault struct {
	before  time.Duration // it takes this long to get there
	after   time.Duration // and its reply this long to come back
	err     error         // returned instead of the reply
	unsent  bool          // with err: not executed
	unknown bool          // with err: reported as ambiguous
}

func newFake() *fakeStore {
	return &fakeStore{
		locks: map[string]*fakeLock{}, last: map[string]int64{}, watch: map[string][]*func(driver.Signal){},
	}
}

// onCall sets the hook.
func (s *fakeStore) onCall(hook func(call) fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

func (s *fakeStore) enter(c call) fault {
	s.mu.Lock()
	s.calls = append(s.calls, c)
	hook := s.hook
	s.mu.Unlock()
	if hook == nil {
		return fault{}
	}
	return hook(c)
}

// count is how many requests of a kind there were; op "" is all.
func (s *fakeStore) count(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if op == "" || c.op == op {
			n++
		}
	}
	return n
}

// seen returns the requests so far.
func (s *fakeStore) seen() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// forget begins counting anew.
func (s *fakeStore) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
}

// setBack sets the clock by which tokens are minted back.
func (s *fakeStore) setBack(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = d
}

// holder is who holds a lock, or "".
func (s *fakeStore) holder(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.get(key); k != nil {
		return k.owner
	}
	return ""
}

// steal gives a lock to somebody else, as after a failover.
func (s *fakeStore) steal(key, owner string, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locks[key] = &fakeLock{owner: owner, token: 1, expires: time.Now().Add(ttl)}
}

func (s *fakeStore) remove(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locks, key)
}

func (s *fakeStore) get(key string) *fakeLock {
	k := s.locks[key]
	if k != nil && !time.Now().Before(k.expires) {
		delete(s.locks, key)
		return nil
	}
	return k
}

func (s *fakeStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	sent := time.Now()
	f := s.enter(call{"acquire", req.Key, req.Owner, req.TTL})
	type outcome struct {
		rep driver.Reply
		err error
	}
	var mu sync.Mutex
	left := false
	done := make(chan outcome, 1)
	work := func() {
		time.Sleep(f.before)
		var o outcome
		if !f.unsent {
			o.rep = s.acquire(req)
		}
		time.Sleep(f.after)
		o.rep.Sent = sent
		if f.err != nil {
			o = outcome{driver.Reply{Sent: sent, Ambiguous: f.unknown}, f.err}
		}
		mu.Lock()
		gone := left
		if !gone {
			done <- o
		}
		mu.Unlock()
		if gone {
			req.Late(o.rep, o.err)
		}
	}
	if f == (fault{}) {
		work()
		o := <-done
		return o.rep, o.err
	}
	go work()
	var late <-chan time.Time
	if !req.Deadline.IsZero() {
		late = time.After(time.Until(req.Deadline))
	}
	select {
	case o := <-done:
		return o.rep, o.err
	case <-ctx.Done():
	case <-late:
	}
	mu.Lock()
	defer mu.Unlock()
	select {
	case o := <-done:
		return o.rep, o.err
	default:
		left = true
		return driver.Reply{}, fmt.Errorf("%w: %w", driver.ErrPending, context.Cause(ctx))
	}
}

func (s *fakeStore) acquire(req driver.AcquireRequest) driver.Reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.get(req.Key); k != nil {
		if k.owner == req.Owner {
			return driver.Reply{Granted: true, Token: k.token}
		}
		if req.Waiter != "" && !slices.Contains(k.queue, req.Waiter) {
			k.queue = append(k.queue, req.Waiter)
		}
		return driver.Reply{Holder: k.owner, TTL: time.Until(k.expires), Listed: req.Waiter != ""}
	}
	token := max(s.last[req.Key]+1, time.Now().Add(-s.back).UnixMicro())
	s.last[req.Key] = token
	k := &fakeLock{owner: req.Owner, token: token, expires: time.Now().Add(req.TTL)}
	if req.Rest != "" {
		k.queue = strings.Split(req.Rest, ",")
	}
	s.locks[req.Key] = k
	return driver.Reply{Granted: true, Token: token}
}

func (s *fakeStore) Renew(ctx context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	var wg sync.WaitGroup
	for i, r := range batch {
		f := s.enter(call{"renew", r.Key, r.Owner, r.TTL})
		wg.Go(func() {
			select {
			case <-time.After(f.before):
			case <-ctx.Done():
				done(i, false, fmt.Errorf("%w: %w", core.ErrUnavailable, ctx.Err()))
				return
			}
			contended, err := false, f.err
			if !f.unsent {
				var e error
				contended, e = s.renew(r)
				err = errors.Join(err, e)
			}
			select {
			case <-time.After(f.after):
			case <-ctx.Done():
				err = fmt.Errorf("%w: %w", core.ErrUnavailable, ctx.Err())
			}
			done(i, contended, err)
		})
	}
	wg.Wait()
}

func (s *fakeStore) renew(r driver.Renewal) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.get(r.Key)
	if k == nil || k.owner != r.Owner {
		return false, driver.ErrNotOwner
	}
	if until := time.Now().Add(r.TTL); until.After(k.expires) {
		k.expires = until
	}
	return len(k.queue) > 0, nil
}

func (s *fakeStore) Release(_ context.Context, req driver.ReleaseRequest) (waiting string, err error) {
	f := s.enter(call{"release", req.Key, req.Owner, 0})
	time.Sleep(f.before)
	if f.unsent {
		return "", f.err
	}
	waiting, err = s.release(req)
	time.Sleep(f.after)
	if f.err != nil {
		return "", f.err
	}
	return waiting, err
}

func (s *fakeStore) release(req driver.ReleaseRequest) (waiting string, err error) {
	s.mu.Lock()
	k := s.get(req.Key)
	if k == nil || k.owner != req.Owner {
		s.mu.Unlock()
		return "", driver.ErrNotOwner
	}
	delete(s.locks, req.Key)
	s.last[req.Key] = max(s.last[req.Key], req.Token)
	if req.Waiter != "" && !slices.Contains(k.queue, req.Waiter) {
		k.queue = append(k.queue, req.Waiter)
	}
	wake := slices.Clone(s.watch[req.Key])
	next := strings.Join(k.queue, ",")
	s.mu.Unlock()
	if next != "" {
		for _, w := range wake {
			(*w)(driver.Signal{Next: next})
		}
	}
	if next == req.Waiter {
		next = ""
	}
	return next, nil
}

func (s *fakeStore) Watch(key string, _ time.Time, wake func(driver.Signal)) func() {
	s.mu.Lock()
	w := &wake
	s.watch[key] = append(s.watch[key], w)
	sure := s.sure
	s.mu.Unlock()
	if !sure {
		wake(driver.Signal{}) // it cannot tell what happened before
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watch[key] = slices.DeleteFunc(s.watch[key], func(x *func(driver.Signal)) bool { return x == w })
	}
}

// newLocker makes a locker on a store and closes it at the end of the test.
func newLocker(tb testing.TB, store core.Store, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	l, err := core.New(store, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			tb.Errorf("Close: %v", err)
		}
		if n := core.Entries(l); n != 0 {
			tb.Errorf("%d queue entries are left after Close", n)
		}
	})
	return l
}

// owners are those of the requests of a kind, in order.
func (s *fakeStore) owners(op string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, c := range s.calls {
		if c.op == op {
			all = append(all, c.owner)
		}
	}
	return all
}
