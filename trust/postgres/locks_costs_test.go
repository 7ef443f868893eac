//go:build integration && unix

package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
)

// counts counts the statements of a process, except for looks at the size of the table.
func counts(t *testing.T, n *atomic.Int64) *wire {
	t.Helper()
	return &wire{sending: func(text []byte) error {
		if isStatement(text) && text[0] != 'X' && !bytes.Contains(text, []byte("pg_relation_size")) {
			n.Add(1)
		}
		return nil
	}}
}

// kinds are the ways to hold a lock alone that a pair of statements is for.
var kinds = map[string]driver.AcquireRequest{
	"exclusive": {}, "shared": {Kind: driver.Shared}, "permits": {Kind: driver.Permit, AtMost: 3}, "waiting": {Waiter: "w~a"},
	"attentive": {Owner: "!"},
}

// A lone caller guesses each row rightly, from the first request on.
func TestAPairOfEachKindIsTwoStatements(t *testing.T) {
	t.Parallel()
	for name, ask := range kinds {
		s, sent := counting(t)
		for n := range 3 {
			before := sent.Load()
			pair(t, s, "k "+name, fmt.Sprint("o:", n), ask)
			if took := sent.Load() - before; took != 2 {
				t.Errorf("%s: lock and release %d took %d statements; expected are 2", name, n+1, took)
			}
		}
	}
}

// Sixteen callers with a key each share statements.
//
//nolint:paralleltest // it sets the number of processors
func TestCallersOfEachKindShareStatements(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const callers, pairs = 16, 20
	for name, ask := range kinds {
		s, sent := counting(t)
		var all sync.WaitGroup
		for g := range callers {
			all.Go(func() {
				for i := range pairs {
					pair(t, s, fmt.Sprint("k", g), fmt.Sprint("o:", i), ask)
				}
			})
		}
		all.Wait()
		each := float64(sent.Load()) / (callers * pairs)
		t.Logf("%s: %.2f statements a pair", name, each)
		if each > 0.55 {
			t.Errorf("%s: a pair takes %.2f statements; expected are at most 0.55", name, each)
		}
	}
}

// pair takes a lock and releases it.
func pair(t *testing.T, s driver.Store, key, owner string, ask driver.AcquireRequest) {
	t.Helper()
	ask.Key, ask.Owner, ask.TTL = key, owner+ask.Owner, time.Hour
	if rep, err := s.Acquire(t.Context(), ask); err != nil || !rep.Granted {
		t.Errorf("%s: %+v, %v; expected is a grant", key, rep, err)
	}
	release := driver.ReleaseRequest{Key: key, Owner: ask.Owner, Kind: ask.Kind, AtMost: ask.AtMost, TTL: time.Hour, Deadline: soon(t)}
	if _, err := s.Release(t.Context(), release); err != nil {
		t.Errorf("%s: %v; expected is a release", key, err)
	}
}

// turns has processes with one caller each take turns on one key. A section ends when all others wait in the list.
type turns struct {
	mu     sync.Mutex
	listed map[*listing]bool
	all    sync.Cond
}

// listing is a store that says when its locker is in a list.
type listing struct {
	*pgstore.Store
	turns *turns
}

func (l *listing) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	rep, err := l.Store.Acquire(ctx, ask)
	if err == nil && rep.Listed {
		l.turns.mu.Lock()
		defer l.turns.mu.Unlock()
		l.turns.listed[l] = true
		l.turns.all.Broadcast()
	}
	return rep, err
}

// section is the section of a process, which ends with a call of f.
func (c *turns) section(ctx context.Context, l *listing, others int, f func()) {
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all.Broadcast()
	})()
	c.mu.Lock()
	defer c.mu.Unlock()
	for delete(c.listed, l); len(c.listed) < others && ctx.Err() == nil; {
		c.all.Wait()
	}
	f()
}

// A hand-over between processes is a release and its announcement, and the releasing caller enters the list again. The
// release meets a row that this caller has changed, and is sent twice. A process that looks asks for the
// lock when it has seen that it was called: mostly at its first look. A stall of the machine makes some grants dearer.
func TestAHotKeyTakesFewStatements(t *testing.T) {
	for name, most := range map[string]int64{"hearing": 4, "looking": 6} {
		t.Run(name, func(t *testing.T) {
			const processes, grants = 4, 100
			_, dsn := tables(t)
			c := &turns{listed: map[*listing]bool{}}
			c.all.L = &c.mu
			var sent atomic.Int64
			var taken []int64 // statements until each release
			var all sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for range processes {
				store := &listing{newStore(t, counts(t, &sent).through(t, dsn), waits[name](dsn)...), c}
				l := newLocker(t, store, core.Watchdog(time.Minute))
				all.Go(func() {
					for {
						lease, err := l.Lock(ctx, "hot")
						if err != nil {
							return
						}
						c.section(ctx, store, processes-1, func() {
							if taken = append(taken, sent.Load()); len(taken) > grants {
								cancel()
							}
						})
						_ = lease.Release(context.Background())
					}
				})
			}
			all.Wait()
			for i := range grants {
				taken[i] = taken[i+1] - taken[i]
			}
			each := taken[:grants]
			slices.Sort(each)
			t.Logf("statements a grant: the least %d, the median %d, the most %d", each[0], each[grants/2], each[grants-1])
			if n := each[grants/2]; n > most {
				t.Errorf("a grant takes %d statements; expected are at most %d", n, most)
			}
		})
	}
}
