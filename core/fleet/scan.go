package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// scanCount is how many keys one SCAN looks at: a server is kept from other requests
// for some microseconds only.
const scanCount = 100

// ErrIncomplete says that some masters of a Cluster, or some locks of another store, were not read. All
// others were returned before. The error wraps the cause.
var ErrIncomplete = errors.New("interlock: a list is incomplete")

// Locks goes through the held or kept locks with keys that fit a pattern, in no order: an
// asterisk stands for any text, a question mark for one byte, all else for itself. The empty
// pattern fits all keys.
//
// It reads with SCAN on each master in turn, not faster than [Rate], and keeps only the
// present batch. A lock that is held all the time is returned at least once. A lock that was
// taken or released meanwhile may be returned, and a lock may be returned twice (SCAN says
// so, and a Cluster that moves slots). An error ends the iteration. If a master of a Cluster
// does not answer, the locks of the others are returned first, and [ErrIncomplete] then.
func (f *Fleet) Locks(ctx context.Context, pattern string) iter.Seq2[Lock, error] {
	if exactly(pattern) {
		return f.oneLock(ctx, pattern)
	}
	begin, all := literal(pattern)
	return func(yield func(Lock, error) bool) {
		known := directory{fleet: f}
		err := f.scan(ctx, f.wire.LockPattern(begin), position{}, func(names []string, _ position) (bool, error) {
			var keys []string
			for _, name := range names {
				if key, ok := f.wire.KeyOf(name); ok && (all || fits(pattern, key)) {
					keys = append(keys, key)
				}
			}
			// Few at a time: a server carries out all of a pipeline before it looks
			// at other connections.
			for some := range slices.Chunk(keys, readAtATime) {
				locks, now, err := f.read(ctx, some)
				if err != nil {
					return true, err
				}
				named := make([]*Lock, len(locks))
				for i := range locks {
					named[i] = &locks[i]
				}
				known.name(ctx, now, named)
				for _, l := range locks {
					if !l.Free() && !yield(l, nil) {
						return false, nil
					}
				}
			}
			return true, nil
		})
		if err != nil {
			yield(Lock{}, err)
		}
	}
}

// oneLock goes through the one lock that a pattern without a wildcard fits.
func (f *Fleet) oneLock(ctx context.Context, key string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		l, now, err := f.readOne(ctx, key)
		if err != nil {
			yield(Lock{}, err) // also for a value that is no lock: nothing would look like a free lock
			return
		}
		if !l.Free() {
			known := directory{fleet: f}
			known.name(ctx, now, []*Lock{&l})
			yield(l, nil)
		}
	}
}

// Lockers goes through the lockers that have an entry, as [Fleet.Locks] goes through the
// locks.
func (f *Fleet) Lockers(ctx context.Context) iter.Seq2[Locker, error] {
	return func(yield func(Locker, error) bool) {
		known := directory{fleet: f}
		err := f.scan(ctx, f.wire.LockerPattern(), position{}, func(names []string, at position) (bool, error) {
			var ids []string
			for _, name := range names {
				if id, ok := f.wire.LockerOf(name); ok {
					ids = append(ids, id)
				}
			}
			for some := range slices.Chunk(ids, readAtATime) {
				known.trim()
				if err := known.learn(ctx, toldTime(at.master.Time(ctx)), some); err != nil {
					return true, err
				}
				for _, id := range some {
					if l := known.locker(id); l.Listed && !yield(l, nil) {
						return false, nil
					}
				}
			}
			return true, nil
		})
		if err != nil {
			yield(Locker{}, err)
		}
	}
}

// position is a place in a scan: the page that a cursor of a master returns, and a name in it.
type position struct {
	master *redis.Client
	server string // the address of a position that was read from a text
	cursor uint64
	id     string
}

func (p position) addr() string { return p.master.Options().Addr }

// String is the position as a text.
func (p position) String() string { return fmt.Sprintf("%s/%d/%s", p.addr(), p.cursor, p.id) }

// readCursor is the reverse of [position.String]. The empty text is the beginning.
func readCursor(text string) (p position, err error) {
	if text == "" {
		return p, nil
	}
	rest, id, ok := cutLast(text)
	server, number, more := cutLast(rest)
	p.server, p.id = server, id
	if p.cursor, err = strconv.ParseUint(number, 10, 64); err != nil || !ok || !more {
		return p, fmt.Errorf("%w: the cursor %q: take it from the list that ended with it", driver.ErrConfig, text)
	}
	return p, nil
}

// cutLast cuts a text at its last slash.
func cutLast(text string) (before, after string, ok bool) {
	i := strings.LastIndexByte(text, '/')
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+1:], true
}

// scan goes through the names of hashes that fit a pattern, page by page, on each master, from a
// position on. page returns whether to go on, and an error, which ends the scan of that master. scan returns the
// first error, of several masters after it has gone through all of them.
func (f *Fleet) scan(
	ctx context.Context, pattern string, from position, page func(names []string, at position) (more bool, err error),
) error {
	masters, err := f.masters(ctx)
	if err != nil {
		return rediswire.Wrap(err)
	}
	var failed error
	for _, master := range masters {
		begin := position{master: master}
		if from.server > begin.addr() {
			continue // masters are in the order of their addresses
		}
		if from.server == begin.addr() {
			begin.cursor = from.cursor
		}
		more, err := f.scanMaster(ctx, begin, pattern, page)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && len(masters) == 1:
			return err
		case err != nil:
			failed = cmp.Or(failed, fmt.Errorf("%w: %s: %w", ErrIncomplete, master.Options().Addr, err))
		case !more:
			return nil
		}
	}
	return failed
}

// scanMaster is scan on one master.
func (f *Fleet) scanMaster(
	ctx context.Context, at position, pattern string, page func([]string, position) (bool, error),
) (more bool, err error) {
	pause := time.Duration(scanCount) * time.Second / time.Duration(f.rate)
	next := time.Now()
	for {
		if err := until(ctx, next); err != nil {
			return true, err
		}
		next = time.Now().Add(pause)
		var names []string
		var cursor uint64
		names, cursor, err = nextPage(ctx, at, pattern)
		if err != nil {
			return true, rediswire.Wrap(err)
		}
		slices.Sort(names)
		if names = slices.Compact(names); len(names) > 0 {
			if more, err := page(names, at); err != nil || !more {
				return more, err
			}
		}
		if at.cursor = cursor; cursor == 0 {
			return true, nil
		}
	}
}

// nextPage reads a page of names.
func nextPage(ctx context.Context, at position, pattern string) ([]string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return at.master.ScanType(ctx, at.cursor, pattern, scanCount, "hash").Result()
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
