package core_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

// carries is a context that has a request, and shows nothing of its context, as gin's.
type carries struct {
	context.Context
	Request *carried
}

func (c *carries) Value(key any) any {
	if key == "_gin-gonic/gin/contextkey" {
		return c
	}
	return c.Context.Value(key)
}

type carried struct{ ctx context.Context }

func (r *carried) Context() context.Context { return r.ctx }

// A caller that waits for the lock of its request waits for ever.
func TestALockThatTheContextHidesIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := core.New(memstore.New(), core.NestedWait(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.Background()) }()
		lease, err := l.LockAll(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		c := &carries{context.Background(), &carried{lease.Context()}}
		derived, cancel := context.WithCancel(c)
		defer cancel()
		other, err := l.Lock(derived, "other") // a separate lock is free
		if err != nil {
			t.Fatal(err)
		}
		for name, ctx := range map[string]context.Context{"itself": c, "derived": derived, "under another lock": other.Context()} {
			for call, lock := range map[string]func() error{
				"Lock":       func() error { _, err := l.Lock(ctx, "b"); return err },
				"TryLock":    func() error { _, err := l.TryLock(ctx, "b"); return err },
				"LockAll":    func() error { _, err := l.LockAll(ctx, []string{"b", "z"}); return err },
				"LockShared": func() error { _, err := l.LockShared(ctx, "b"); return err },
				"Permit":     func() error { _, err := l.Permit(ctx, "b", 2); return err },
				"Do":         func() error { return l.Do(ctx, "b", func(context.Context) error { return nil }) },
			} {
				if err := lock(); !errors.Is(err, core.ErrConfig) {
					t.Errorf("%s, %s: %v", name, call, err)
				}
			}
			if core.LeaseFromContext(ctx) == nil || core.Check(ctx) != nil || len(core.Fences(ctx)) < 2 {
				t.Errorf("%s: %v, %v, %v", name, core.LeaseFromContext(ctx), core.Check(ctx), core.Fences(ctx))
			}
		}

		// Another holder may wait for our lock: the wait is bounded, as it is where the
		// context shows the lease.
		theirs, err := l.Lock(t.Context(), "theirs")
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if _, err := l.Lock(c, "theirs"); !errors.Is(err, core.ErrHeld) || time.Since(begin) != time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}

		// After the release the lock is one like any other.
		for _, held := range []*core.Lease{other, theirs, lease} {
			if err := held.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		again, err := l.Lock(c, "b")
		if err != nil {
			t.Fatal(err)
		}
		_ = again.Release(t.Context())
	})
}

// named is a context with another value under that name.
type named struct {
	context.Context
	value any
}

func (n named) Value(key any) any {
	if key == "_gin-gonic/gin/contextkey" {
		return n.value
	}
	return n.Context.Value(key)
}

// A context without a request, or with something else under that name, hides nothing.
func TestAContextWithoutARequestHidesNothing(t *testing.T) {
	l, err := core.New(memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	for name, ctx := range map[string]context.Context{
		"none":            &carries{context.Background(), nil},
		"not a structure": named{t.Context(), 7},
		"no field":        named{t.Context(), &struct{ X int }{}},
		"another field":   named{t.Context(), &struct{ Request *int }{new(int)}},
	} {
		lease, err := l.Lock(ctx, "k")
		if err != nil || core.LeaseFromContext(ctx) != nil {
			t.Fatalf("%s: %v, %v", name, core.LeaseFromContext(ctx), err)
		}
		_ = lease.Release(t.Context())
	}
}
