package worker_test

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/internal/worker"
)

func TestFunctionsAreCalledInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q worker.Queue
		var got, want []int
		for i := range 100 {
			want = append(want, i)
			q.Put(func() {
				time.Sleep(time.Duration(100-i) * time.Millisecond)
				got = append(got, i)
			})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(got, want) {
			t.Errorf("called in the order %v", got)
		}
	})
}

func TestAFunctionThatBlocksKeepsNoCallerAndOverflowIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := worker.Queue{Most: 10, Workers: 2}
		block := make(chan struct{})
		var called atomic.Int32
		for range 2 {
			q.Put(func() { <-block })
		}
		begin := time.Now()
		for range 15 {
			q.Await(func() { called.Add(1) }, time.Second)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("15 callers waited for %v; want one second for the first, and no wait for those behind it", took)
		}
		if n := q.Dropped(); n != 5 {
			t.Errorf("%d functions were dropped; want the 5 beyond the bound", n)
		}
		close(block)
		synctest.Wait()
		if n := called.Load(); n != 10 {
			t.Errorf("%d functions were called; want the 10 that waited", n)
		}
		begin = time.Now()
		q.Await(func() { time.Sleep(time.Millisecond) }, time.Second)
		if took := time.Since(begin); took != time.Millisecond {
			t.Errorf("a caller waited for %v after the queue had recovered; want the time of its function", took)
		}
	})
}

func TestAPanicOrTheEndOfAGoroutineStopsNoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q worker.Queue
		var called atomic.Int32
		for _, end := range []func(){func() { panic("a handler") }, runtime.Goexit, func() {}} {
			f := func() { called.Add(1); end() }
			for range 3 {
				q.Await(f, time.Second)
				q.Put(f)
			}
		}
		synctest.Wait()
		if called.Load() != 18 || q.Dropped() != 12 {
			t.Errorf("%d functions were called, and %d count as dropped; want 18 and 12", called.Load(), q.Dropped())
		}
	})
}
