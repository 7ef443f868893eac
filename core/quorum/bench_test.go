//go:build long

package quorum_test

import (
	"strconv"
	"testing"
)

// BenchmarkLock is an uncontended lock and its release on five servers, one after
// the other and by many goroutines.
func BenchmarkLock(b *testing.B) {
	g := newGroup(b, 5)
	l := g.locker(b)
	release(b, lock(b, l, "warm"))
	b.Run("serial", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			lease, err := l.Lock(b.Context(), "k")
			if err != nil {
				b.Fatal(err)
			}
			_ = lease.Release(b.Context())
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(32)
		n := make(chan int, 1)
		n <- 0
		b.RunParallel(func(pb *testing.PB) {
			i := <-n
			n <- i + 1
			key := strconv.Itoa(i)
			for pb.Next() {
				lease, err := l.Lock(b.Context(), key)
				if err != nil {
					b.Error(err)
					return
				}
				_ = lease.Release(b.Context())
			}
		})
	})
}
