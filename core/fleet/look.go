package fleet

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Locks goes through the held or kept locks with keys that fit a pattern: an asterisk stands for any
// text, a question mark for one byte, all else for itself. The empty pattern fits all keys. The order is
// the store's.
//
// It reads a bounded page at a time, on Redis with SCAN on each master in turn, not faster than [Rate]. A
// lock that is held all the time is returned at least once. A lock that was taken or released meanwhile may
// be returned, and on Redis a lock may be returned twice (SCAN says so, and a Cluster that moves slots). An
// error ends the iteration. If a master of a Cluster does not answer, or a lock of another store cannot be
// read, all others are returned first, and [ErrIncomplete] then, which names the first. If the pattern is
// one key, the error is as of Inspect.
func (f *Fleet) Locks(ctx context.Context, pattern string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		if exactly(pattern) {
			l, err := f.Inspect(ctx, pattern)
			if err != nil || !l.Free() {
				yield(l, err) // also for a value that is no lock: nothing would look like a free lock
			}
			return
		}
		begin, all := literal(pattern)
		fit := func(key string) bool { return all || fits(pattern, key) }
		var unread error
		for v, err := range f.lister.List(ctx, begin, fit) {
			switch {
			case err != nil && v.Key == "":
				yield(Lock{}, err)
				return
			case !fit(v.Key):
			case err != nil:
				unread = cmp.Or(unread, fmt.Errorf("%w: %w", ErrIncomplete, err))
			case !yield(lockOf(ctx, &v), nil):
				return
			}
		}
		if unread != nil {
			yield(Lock{}, unread)
		}
	}
}

// Inspect reads one lock, with all its holders, on Redis unless it has more than 10,000. It
// returns a Lock without holders if no process holds the lock ([Lock.Free]), and an error that matches
// [driver.ErrKeyOccupied] if the key has a value in the store that is no lock.
func (f *Fleet) Inspect(ctx context.Context, key string) (Lock, error) {
	v, err := f.lister.Look(ctx, key)
	if err != nil {
		return Lock{}, err
	}
	return lockOf(ctx, &v), nil
}

// Lockers goes through the lockers that have an entry, as [Fleet.Locks] goes through the locks. The error is
// [ErrNotServed] if the store is no [driver.Registry]: a locker announces itself on Redis alone.
func (f *Fleet) Lockers(ctx context.Context) iter.Seq2[Locker, error] {
	return func(yield func(Locker, error) bool) {
		registry, ok := f.store.(driver.Registry)
		if !ok {
			yield(Locker{}, fmt.Errorf("%w: processes announce themselves on Redis alone; the locks name the ids of their lockers", ErrNotServed))
			return
		}
		for e, err := range registry.Entries(ctx) {
			if !yield(lockerOf(e.ID, map[string]driver.Entry{e.ID: e}), err) {
				return
			}
		}
	}
}

// lookEvery is the least time between two looks at a lock. A release calls lockers alone.
const lookEvery = 200 * time.Millisecond

// Wait returns when the lock is free ([Lock.Free]), or with the cause of ctx when that ends. It takes
// nothing: another caller may have the lock when Wait returns. It looks several times a second, and more
// seldom where a look takes long. On a store without a clock a lock is free, too, if its holders have given no
// sign of life for their leases, while Wait looked.
func (f *Fleet) Wait(ctx context.Context, key string) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var seen string
	var since time.Time // when the lock was first seen so
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		began := time.Now()
		v, err := f.lister.Look(ctx, key)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx) // which is why it could not be read
		case err != nil:
			return err
		case v.Free():
			return nil
		}
		left := v.Kept
		for _, h := range v.Holders {
			left = max(left, h.Left)
		}
		if now := fmt.Sprint(v.Holders, v.Kept, v.Waiting); now != seen {
			seen, since = now, began
		} else if v.Now.IsZero() && left > 0 && began.Sub(since) > left {
			return nil
		}
		pause := max(lookEvery, 5*time.Since(began))
		if left > 0 { // else it never ends
			pause = min(pause, max(left, time.Millisecond))
		}
		timer.Reset(pause)
	}
}
