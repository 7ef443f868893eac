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
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
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

func BenchmarkManyKeys256(b *testing.B) {
	l := common(b).process()
	each(b, 256, func(g int) error { return pass(context.Background(), l, fmt.Sprint("k", g)) })
}

func BenchmarkHotKey(b *testing.B) {
	for _, goroutines := range []int{128, 1000} {
		b.Run(fmt.Sprint("goroutines=", goroutines), func(b *testing.B) {
			l := common(b).process()
			each(b, goroutines, func(int) error { return pass(context.Background(), l, "k") })
		})
	}
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

// BenchmarkReadersAndWriters has a caller wait behind 40 others of four other processes,
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

// BenchmarkRenew10000 renews the leases of 10,000 locks that this process holds, in one
// call, as the watchdog does with leases that are due at the same time.
func BenchmarkRenew10000(b *testing.B) {
	w := common(b)
	s := w.store()
	batch := make([]driver.Renewal, 10_000)
	for i := range batch {
		batch[i] = driver.Renewal{Key: fmt.Sprint("k", i), Owner: fmt.Sprintf("0123456789abcdef0123456789abcdef:%d", i), TTL: w.Holds()}
		w.take(s, w.held(batch[i].Key, batch[i].Owner))
	}
	each(b, 1, func(int) (failed error) {
		s.Renew(context.Background(), batch, func(_ int, _ bool, err error) {
			if err != nil {
				failed = err
			}
		})
		return failed
	})
}

// BenchmarkRecords makes claims and commits, and replays of 4 KiB.
func BenchmarkRecords(b *testing.B) {
	w := common(b)
	s := w.store()
	ctx, response := context.Background(), make([]byte, 4<<10)
	var n atomic.Int64
	fresh := func(int) error {
		ask := w.claim(fmt.Sprint("fresh", n.Add(1)), "a")
		ask.Tombstone = false
		if _, err := s.Claim(ctx, ask); err != nil {
			return err
		}
		_, err := s.Commit(ctx, record.CommitRequest{
			ID: ask.ID, Token: "a", Fingerprint: ask.Fingerprint, Fingerprint1: ask.Fingerprint1, Generation: 1,
			Response: response, Retention: time.Hour, Deadline: w.deadline(),
		})
		return err
	}
	w.complete(s, "replay", string(response))
	replay := func(int) error {
		_, err := s.Claim(ctx, w.claim("replay", "b"))
		return err
	}
	for _, goroutines := range []int{1, 256} {
		b.Run(fmt.Sprint("fresh/goroutines=", goroutines), func(b *testing.B) { each(b, goroutines, fresh) })
		b.Run(fmt.Sprint("replay/goroutines=", goroutines), func(b *testing.B) { each(b, goroutines, replay) })
	}
}
