package fleet

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// scanCount is how many keys one SCAN looks at: a server is kept from other requests
// for some microseconds only.
const scanCount = 100

// Locks goes through the locks that are held, in no order, whose keys fit a pattern: an
// asterisk stands for any text, a question mark for one byte, all else for itself. The
// empty pattern fits all keys.
//
// It reads with SCAN on each master in turn, not faster than [Rate], and keeps only what
// it is at. A lock that is held all the time is returned at least once. A lock that was
// taken or released meanwhile may be returned, and a lock may be returned twice (SCAN says
// so, and a Cluster that moves slots). An error ends the iteration.
func (f *Fleet) Locks(ctx context.Context, pattern string) iter.Seq2[Lock, error] {
	begin, all := literal(pattern)
	return func(yield func(Lock, error) bool) {
		known := directory{fleet: f}
		for names, err := range f.scan(ctx, f.wire.LockPattern(begin)) {
			if err != nil {
				yield(Lock{}, err)
				return
			}
			var keys []string
			for _, name := range names {
				if key, ok := f.wire.KeyOf(name); ok && (all || fits(pattern, key)) {
					keys = append(keys, key)
				}
			}
			// Few at a time: a server carries out all of a pipeline before it looks
			// at other connections.
			for some := range slices.Chunk(keys, readAtATime) {
				locks, err := f.read(ctx, some, &known)
				if err != nil {
					yield(Lock{}, err)
					return
				}
				for _, l := range locks {
					if l.Held > 0 && !yield(l, nil) {
						return
					}
				}
			}
		}
	}
}

// Lockers goes through the lockers that have an entry, as [Fleet.Locks] goes through the
// locks.
func (f *Fleet) Lockers(ctx context.Context) iter.Seq2[Locker, error] {
	return func(yield func(Locker, error) bool) {
		known := directory{fleet: f}
		for names, err := range f.scan(ctx, f.wire.LockerPattern()) {
			if err != nil {
				yield(Locker{}, err)
				return
			}
			var ids []string
			for _, name := range names {
				if id, ok := f.wire.LockerOf(name); ok {
					ids = append(ids, id)
				}
			}
			for some := range slices.Chunk(ids, readAtATime) {
				known.trim()
				if err := known.learn(ctx, some); err != nil {
					yield(Locker{}, err)
					return
				}
				for _, id := range some {
					if l := known.locker(id); l.Listed && !yield(l, nil) {
						return
					}
				}
			}
		}
	}
}

// scan goes through the names of hashes that fit a pattern, page by page.
func (f *Fleet) scan(ctx context.Context, pattern string) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		masters, err := f.masters(ctx)
		if err != nil {
			yield(nil, rediswire.Wrap(err))
			return
		}
		pause := time.Duration(scanCount) * time.Second / time.Duration(f.rate)
		next := time.Now()
		for _, master := range masters {
			for cursor := uint64(0); ; {
				if err := until(ctx, next); err != nil {
					yield(nil, err)
					return
				}
				next = time.Now().Add(pause)
				var page []string
				page, cursor, err = master.ScanType(ctx, cursor, pattern, scanCount, "hash").Result()
				if err != nil {
					yield(nil, rediswire.Wrap(err))
					return
				}
				slices.Sort(page)
				if page = slices.Compact(page); len(page) > 0 && !yield(page, nil) {
					return
				}
				if cursor == 0 {
					break
				}
			}
		}
	}
}

// until waits for a time, or returns what ended ctx.
func until(ctx context.Context, at time.Time) error {
	pause := time.Until(at)
	if pause <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// masters returns a client for each master, in the order of their addresses.
func (f *Fleet) masters(ctx context.Context) ([]*redis.Client, error) {
	switch c := f.rdb.(type) {
	case *redis.Client:
		return []*redis.Client{c}, nil
	case *redis.ClusterClient:
		var mu sync.Mutex
		var all []*redis.Client
		err := c.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, node)
			return nil
		})
		slices.SortFunc(all, func(a, b *redis.Client) int { return cmp.Compare(a.Options().Addr, b.Options().Addr) })
		return all, err
	}
	return nil, nil // New takes no other client
}
