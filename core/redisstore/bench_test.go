package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

func BenchmarkUncontended(b *testing.B) {
	l := newLocker(b, redistest.Shared(b).Client(b))
	b.ReportAllocs()
	for b.Loop() {
		lease, err := l.Lock(context.Background(), "k")
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkManyKeys256(b *testing.B) {
	l := newLocker(b, redistest.Shared(b).Client(b))
	b.ReportAllocs()
	each(b, 256, func(g int) {
		lease, err := l.Lock(context.Background(), fmt.Sprint("k", g))
		if err != nil {
			b.Error(err)
			return
		}
		_ = lease.Release(context.Background())
	})
}

// BenchmarkHotKey has many goroutines of one process work under one lock, and
// under a channel of one token for comparison.
func BenchmarkHotKey(b *testing.B) {
	for _, work := range []time.Duration{0, 100 * time.Microsecond} {
		for _, goroutines := range []int{128, 1000} {
			name := fmt.Sprintf("work=%v/goroutines=%d", work, goroutines)
			b.Run(name+"/lock", func(b *testing.B) {
				l := newLocker(b, redistest.Shared(b).Client(b), core.Watchdog(30*time.Second))
				b.ReportAllocs()
				each(b, goroutines, func(int) {
					lease, err := l.Lock(context.Background(), "k")
					if err != nil {
						b.Error(err)
						return
					}
					spin(work)
					_ = lease.Release(context.Background())
				})
			})
			b.Run(name+"/channel", func(b *testing.B) {
				token := make(chan struct{}, 1)
				b.ReportAllocs()
				each(b, goroutines, func(int) {
					token <- struct{}{}
					spin(work)
					<-token
				})
			})
		}
	}
}

// BenchmarkRenew10000 renews the leases of 10,000 locks that this process holds, in
// one call, as the watchdog does with leases that are due at the same time.
func BenchmarkRenew10000(b *testing.B) {
	const n = 10_000
	s := newStore(b, redistest.Shared(b).Client(b))
	ctx := context.Background()
	batch := make([]driver.Renewal, n)
	var wg sync.WaitGroup
	for i := range batch {
		batch[i] = driver.Renewal{Key: fmt.Sprint("k", i), Owner: fmt.Sprintf("0123456789abcdef0123456789abcdef:%d", i), TTL: time.Minute}
		wg.Go(func() {
			rep, err := s.Acquire(ctx, driver.AcquireRequest{Key: batch[i].Key, Owner: batch[i].Owner, TTL: batch[i].TTL})
			if err != nil || !rep.Granted {
				b.Error(rep, err)
			}
		})
	}
	wg.Wait()
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		s.Renew(ctx, batch, func(i int, _ bool, err error) {
			if err != nil {
				b.Error(i, err)
			}
		})
		cancel()
	}
}

// each spreads b.N calls over goroutines that are all there from the start.
func each(b *testing.B, goroutines int, f func(g int)) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	start := make(chan struct{})
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			<-start
			for left.Add(-1) >= 0 {
				f(g)
			}
		})
	}
	b.ResetTimer()
	close(start)
	wg.Wait()
}

// spin works for a while, as a section that computes does.
func spin(d time.Duration) {
	if d == 0 {
		return
	}
	begin := time.Now()
	for time.Since(begin) < d {
		continue
	}
}

// BenchmarkPairListed is a pair without contention, of a locker that keeps its entry and
// of one that does not. Both take turns, so that both meet the same machine. The first
// entry is written before the measurement; one more comes each 20 s.
func BenchmarkPairListed(b *testing.B) {
	rdb := redistest.Shared(b).Client(b)
	type side struct {
		name string
		l    *core.Locker
		took time.Duration
	}
	sides := []*side{{name: "listed"}, {name: "unlisted"}}
	for i, s := range sides {
		store, err := redisstore.New(rdb)
		if err != nil {
			b.Fatal(err)
		}
		defer store.Close()
		var opts []core.LockerOption
		if i == 1 {
			opts = append(opts, core.Unlisted())
		}
		if s.l, err = core.New(store, opts...); err != nil {
			b.Fatal(err)
		}
		defer s.l.Close(context.Background())
		lease, err := s.l.Lock(b.Context(), s.name)
		if err != nil {
			b.Fatal(err)
		}
		lease.Release(b.Context())
	}
	time.Sleep(1200 * time.Millisecond)
	const turn = 200
	turns := 0
	for b.Loop() {
		for i := range sides {
			s := sides[(i+turns)%2]
			began := time.Now()
			for range turn {
				lease, err := s.l.Lock(b.Context(), s.name)
				if err != nil {
					b.Fatal(err)
				}
				lease.Release(b.Context())
			}
			s.took += time.Since(began)
		}
		turns++
	}
	for _, s := range sides {
		b.ReportMetric(float64(s.took.Nanoseconds())/float64(turns*turn), "ns/"+s.name)
	}
	b.ReportMetric(100*float64(sides[0].took-sides[1].took)/float64(sides[1].took), "%-cost")
}
