package otellock_test

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
)

// fakeStore is a core.Store in memory. Its hook sees each request ("acquire",
// "renew", "release"), may sleep on it, and fails those it returns an error for
// without executing them.
type fakeStore struct {
	mu    sync.Mutex
	hook  hook
	locks map[string]fakeLock
	last  int64
	watch map[string]map[int]func(driver.Signal)
	next  int
}

type hook func(ctx context.Context, op, key string) error

type fakeLock struct {
	owner   string
	token   int64
	expires time.Time
}

func newFake() *fakeStore {
	return &fakeStore{locks: map[string]fakeLock{}, watch: map[string]map[int]func(driver.Signal){}}
}

// on sets the hook; nil is none.
func (s *fakeStore) on(h hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = h
}

func (s *fakeStore) enter(ctx context.Context, op, key string) error {
	s.mu.Lock()
	h := s.hook
	s.mu.Unlock()
	if h == nil {
		return nil
	}
	return h(ctx, op, key)
}

// put gives a lock to somebody else, or with a TTL of zero takes it away.
func (s *fakeStore) put(key string, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locks[key] = fakeLock{"another", 1, time.Now().Add(ttl)}
}

func (s *fakeStore) holder(key string) (fakeLock, bool) {
	k, ok := s.locks[key]
	return k, ok && time.Now().Before(k.expires)
}

func (s *fakeStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	sent := time.Now()
	if err := s.enter(ctx, "acquire", req.Key); err != nil {
		return driver.Reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.holder(req.Key)
	if ok && k.owner != req.Owner {
		return driver.Reply{Holder: k.owner, TTL: time.Until(k.expires), Sent: sent}, nil
	}
	if !ok {
		s.last = max(s.last+1, sent.UnixMicro())
		k = fakeLock{req.Owner, s.last, sent.Add(req.TTL)}
		s.locks[req.Key] = k
	}
	return driver.Reply{Granted: true, Token: k.token, Sent: sent}, nil
}

func (s *fakeStore) Renew(ctx context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	for i, r := range batch {
		err := s.enter(ctx, "renew", r.Key)
		s.mu.Lock()
		if k, ok := s.holder(r.Key); err == nil && (!ok || k.owner != r.Owner) {
			err = core.ErrNotOwner
		} else if err == nil {
			k.expires = time.Now().Add(r.TTL)
			s.locks[r.Key] = k
		}
		s.mu.Unlock()
		done(i, false, err)
	}
}

func (s *fakeStore) Release(ctx context.Context, req driver.ReleaseRequest) error {
	if err := s.enter(ctx, "release", req.Key); err != nil {
		return err
	}
	s.mu.Lock()
	k, ok := s.holder(req.Key)
	if !ok || k.owner != req.Owner {
		s.mu.Unlock()
		return core.ErrNotOwner
	}
	delete(s.locks, req.Key)
	s.last = max(s.last, req.Token)
	var wake []func(driver.Signal)
	for _, w := range s.watch[req.Key] {
		wake = append(wake, w)
	}
	s.mu.Unlock()
	for _, w := range wake {
		w(driver.Signal{})
	}
	return nil
}

func (s *fakeStore) Watch(key string, _ time.Time, wake func(driver.Signal)) func() {
	s.mu.Lock()
	s.next++
	id := s.next
	if s.watch[key] == nil {
		s.watch[key] = map[int]func(driver.Signal){}
	}
	s.watch[key][id] = wake
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watch[key], id)
	}
}
