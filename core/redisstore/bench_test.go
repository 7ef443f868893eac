//go:build integration

package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
)

// each spreads b.N calls over goroutines that are all there from the start.
func each(b *testing.B, goroutines int, do func(g int) error) {
	b.Helper()
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	start := make(chan struct{})
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			<-start
			for left.Add(-1) >= 0 {
				if err := do(g); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	b.ResetTimer()
	close(start)
	all.Wait()
}

func BenchmarkUncontended(b *testing.B) {
	l := common(b).process()
	each(b, 1, func(int) error { return pass(context.Background(), l, "k") })
}

func BenchmarkShared(b *testing.B) {
	for _, goroutines := range []int{1, 16, 256} {
		b.Run(fmt.Sprint("goroutines=", goroutines), func(b *testing.B) {
			w := common(b)
			l := w.process()
			first := w.lock(l, "k", core.Shared())
			each(b, goroutines, func(int) error { return pass(context.Background(), l, "k", core.Shared()) })
			w.release(first)
		})
	}
}

func BenchmarkPermit(b *testing.B) {
	for _, n := range []int{1, 10, 1000} {
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			l := common(b).process()
			each(b, 64, func(int) error { return pass(context.Background(), l, "k", core.Permits(n)) })
		})
	}
}

// BenchmarkReadersAndWriters has a caller wait after 40 others of four other processes,
// who come again at once and hold the lock for 1 ms each.
func BenchmarkReadersAndWriters(b *testing.B) {
	for name, kinds := range map[string][2][]core.Option{
		"a writer among readers": {nil, {core.Shared()}},
		"a reader among writers": {{core.Shared()}, nil},
	} {
		b.Run(name, func(b *testing.B) {
			w := common(b)
			ctx, cancel := context.WithCancel(b.Context())
			var all sync.WaitGroup
			for range 4 {
				l := w.process()
				for range 10 {
					all.Go(func() {
						for ctx.Err() == nil {
							lease, err := l.Lock(ctx, "k", kinds[1]...)
							if err != nil {
								return
							}
							<-time.After(time.Millisecond)
							w.release(lease)
						}
					})
				}
			}
			one := w.process()
			var waits []time.Duration
			for b.Loop() {
				begin := time.Now()
				if err := pass(context.Background(), one, "k", kinds[0]...); err != nil {
					b.Fatal(err)
				}
				waits = append(waits, time.Since(begin))
			}
			cancel()
			all.Wait()
			slices.Sort(waits)
			b.ReportMetric(float64(waits[len(waits)/2].Milliseconds()), "ms-median")
			b.ReportMetric(float64(waits[len(waits)-1].Milliseconds()), "ms-most")
		})
	}
}
