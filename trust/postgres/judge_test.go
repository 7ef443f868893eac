//go:build integration && unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/interlock-go/interlock/core"
)

// judge sees who is in the sections under the locks of some keys, outside of the store.
type judge struct {
	sections          atomic.Int64
	overlaps, regress atomic.Int64

	mu     sync.Mutex
	inside map[string]*func() bool // whether the holder trusts its lease
	last   map[string]int64        // the last token
}

// section is the work of a holder under the lock of a key. A holder that does not trust its
// lease any more, since the machine has stood still, does nothing.
func (j *judge) section(key string, token int64, trusted func() bool) {
	j.mu.Lock()
	if !trusted() {
		j.mu.Unlock()
		return
	}
	if other := j.inside[key]; other != nil && (*other)() {
		j.overlaps.Add(1)
	}
	if j.last[key] >= token {
		j.regress.Add(1)
	}
	if j.inside == nil {
		j.inside, j.last = make(map[string]*func() bool), make(map[string]int64)
	}
	j.inside[key], j.last[key] = &trusted, token
	j.mu.Unlock()
	runtime.Gosched()
	j.sections.Add(1)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.inside[key] == &trusted {
		delete(j.inside, key)
	}
}

// more waits for so many more sections.
func (j *judge) more(tb testing.TB, what string, n int64) {
	tb.Helper()
	before := j.sections.Load()
	eventually(tb, what, func() bool { return j.sections.Load() >= before+n })
}

// verdict fails the test if two holders were in a section at once, or a token went back.
func (j *judge) verdict(tb testing.TB) {
	tb.Helper()
	n := j.sections.Load()
	tb.Logf("%d sections", n)
	if o, r := j.overlaps.Load(), j.regress.Load(); o != 0 || r != 0 {
		tb.Errorf("%d overlaps and %d tokens that went back in %d sections", o, r, n)
	}
}

// compete has goroutines of a locker enter sections of some keys until the context ends.
// Errors that say that the store did not answer are part of some tests; any other fails
// the test.
func (j *judge) compete(ctx context.Context, tb testing.TB, all *sync.WaitGroup, l *core.Locker, goroutines, keys int) {
	for g := range goroutines {
		all.Go(func() {
			for n := g; ctx.Err() == nil; n++ {
				key := fmt.Sprint("key", n%keys)
				lease, err := l.Lock(ctx, key)
				if err != nil {
					if ctx.Err() == nil && !errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrLost) {
						tb.Errorf("Lock: %v", err)
					}
					continue
				}
				j.section(key, lease.Token(), func() bool { return lease.Err() == nil })
				_ = lease.Release(ctx) // the reaper releases it otherwise, or the lease ends
			}
		})
	}
}
