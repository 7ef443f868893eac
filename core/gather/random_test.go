package gather_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/testkit"
)

var errRefused = errors.New("the section refuses")

// deed is an item: the n-th that its process brings for its key.
type deed struct {
	process, key string
	n            int
	bad          bool
}

// ledger has the items that were carried out.
type ledger struct {
	t    *testing.T
	mu   sync.Mutex
	done map[deed]int
	last map[string]int
	in   map[string]bool // a section of the key is in its critical part
}

// enter checks that no other section of a key runs. The section has ended, or lost its lock, when it
// calls the function leave.
func (l *ledger) enter(key string) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in[key] {
		l.t.Errorf("two sections of %q at the same time", key)
	}
	l.in[key] = true
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.in[key] = false
	})
}

// post carries out the items that are not bad.
func (l *ledger) post(batch []deed) (results []int, errs gather.Errors) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range batch {
		if d.bad {
			results, errs = append(results, 0), append(errs, errRefused)
			continue
		}
		l.done[d]++
		at := d.process + d.key
		if d.n <= l.last[at] {
			l.t.Errorf("%+v was carried out after the %dth of its process and key; want the order of the calls", d, l.last[at])
		}
		l.last[at] = d.n
		results, errs = append(results, d.n), append(errs, nil)
	}
	return results, errs
}

// check compares the outcome that a caller got with the ledger.
func (l *ledger) check(d deed, res int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.done[d]
	switch {
	case n > 1:
		l.t.Errorf("%+v was carried out %d times", d, n)
	case err == nil && (n != 1 || res != d.n):
		l.t.Errorf("%+v: result %d, carried out %d times; want %d and once", d, res, n, d.n)
	case err != nil && !errors.Is(err, gather.ErrUnknown) && n != 0:
		l.t.Errorf("%+v: %v, but it was carried out; want an error that matches ErrUnknown", d, err)
	}
}

// Callers come, leave and wait for a bounded time, in two processes; sections fail, panic and lose
// their locks. Each caller learns what became of its item.
func TestEachItemIsCarriedOutOnceOrItsCallerLearnsThatItIsUnknown(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { play(t, rand.New(rand.NewPCG(seed, 65))) })
		})
	}
}

func play(t *testing.T, r *rand.Rand) {
	testkit.LogTo(t)
	store := memstore.New()
	book := &ledger{t: t, done: map[deed]int{}, last: map[string]int{}, in: map[string]bool{}}
	opts := []gather.Option{core.Wait(time.Duration(20+r.IntN(100)) * time.Millisecond), core.Watchdog(50 * time.Millisecond), gather.Most(1 + r.IntN(9))}
	if r.IntN(3) == 0 {
		opts = append(opts, gather.Linger(time.Duration(1+r.IntN(5))*time.Millisecond))
	}
	var rolls sync.Mutex
	roll := func(n int) int {
		rolls.Lock()
		defer rolls.Unlock()
		return r.IntN(n)
	}
	section := func(ctx context.Context, key string, batch []deed) ([]int, error) {
		leave := book.enter(key)
		defer leave()
		fate := roll(20)
		time.Sleep(time.Duration(roll(8000)) * time.Microsecond)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case fate == 0:
			return nil, errRefused
		case fate == 1:
			panic("before")
		}
		results, errs := book.post(batch)
		switch fate {
		case 2:
			panic("after")
		case 3:
			return results[1:], nil
		case 4:
			leave()
			store.Take(key, time.Millisecond) // as a failover that loses the lock
			time.Sleep(60 * time.Millisecond)
		}
		return results, errs
	}
	groups := map[string]*gather.Group[deed, int]{}
	for _, process := range []string{"p", "q"} {
		groups[process] = gather.New(testkit.LockerOn(t, store), section, opts...)
	}
	var callers sync.WaitGroup
	for n := 1; n <= 200; n++ {
		d := deed{[]string{"p", "q"}[roll(2)], []string{"k", "l"}[roll(2)], n, roll(10) == 0}
		patience := time.Duration(roll(60_000)) * time.Microsecond
		callers.Go(func() {
			defer func() {
				if recover() != nil {
					book.check(d, 0, gather.ErrUnknown)
				}
			}()
			ctx, leave := context.WithTimeout(t.Context(), patience)
			defer leave()
			res, err := groups[d.process].Do(ctx, d.key, d)
			book.check(d, res, err)
		})
		synctest.Wait() // it has brought its item
		time.Sleep(time.Duration(roll(3000)) * time.Microsecond)
	}
	callers.Wait()
}
