package fleet

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

const (
	// readAtATime is how many locks one pipeline reads.
	readAtATime = 8
	// someHolders is about how many holders Locks names of a lock, and manyHolders how
	// many Inspect does.
	someHolders, manyHolders = 64, 10_000
	// manyLockers is how many entries are kept while locks are listed.
	manyLockers = 1000
	// namesWithin bounds the wait for the names of the processes of some locks.
	namesWithin = 2 * time.Second
	// answerWithin bounds the wait for a page of names, and for the state of some locks.
	answerWithin = 5 * time.Second
)

// Inspect reads one lock, with all its holders unless it has more than 10,000. It
// returns a Lock without holders if no process holds the lock ([Lock.Free]), and an error that matches
// [driver.ErrKeyOccupied] if the key has a value in Redis that is no lock.
func (f *Fleet) Inspect(ctx context.Context, key string) (Lock, error) {
	l, now, err := f.readOne(ctx, key)
	if err != nil {
		return Lock{}, err
	}
	if l.Held > len(l.Holders) {
		if err := f.readAll(ctx, &l, now, manyHolders); err != nil {
			return Lock{}, err
		}
	}
	known := directory{fleet: f}
	known.name(ctx, now, []*Lock{&l})
	return l, nil
}

// readOne reads one lock, without the names of its processes. It also returns the time of the
// server.
func (f *Fleet) readOne(ctx context.Context, key string) (Lock, time.Time, error) {
	locks, now, err := f.read(ctx, []string{key})
	if err == nil {
		err = locks[0].occupied
	}
	if err != nil {
		return Lock{}, now, err
	}
	return locks[0], now, nil
}

// reading has the requests for one lock.
type reading struct {
	size   *redis.IntCmd
	left   *redis.DurationCmd
	meta   *redis.SliceCmd
	fields *redis.ScanCmd
	fence  *redis.StringCmd
}

// read reads some locks in one pipeline; each is read at one instant, or nearly so. On a Cluster
// one server has them all. read also returns the time of the server.
func (f *Fleet) read(ctx context.Context, keys []string) ([]Lock, time.Time, error) {
	all := make([]reading, len(keys))
	now, err := f.pipelinedAt(ctx, f.wire.LockName(keys[0]), func(p redis.Pipeliner) {
		for i, key := range keys {
			name := f.wire.LockName(key)
			all[i] = reading{
				size: p.HLen(ctx, name), left: p.PTTL(ctx, name),
				meta: p.HMGet(ctx, name, rediswire.FieldWaiters, rediswire.FieldBound, rediswire.FieldBarrier,
					rediswire.FieldReserved),
				fields: p.HScan(ctx, name, 0, "", someHolders), fence: p.Get(ctx, f.wire.FenceName(key)),
			}
		}
	})
	if err != nil {
		return nil, now, err
	}
	locks := make([]Lock, len(keys))
	for i, key := range keys {
		locks[i] = Lock{Key: key}
		switch err := all[i].err(); {
		case errors.Is(err, driver.ErrKeyOccupied):
			locks[i].occupied = err // it was a lock a moment ago
		case err != nil:
			return nil, now, err
		default:
			locks[i] = all[i].lock(key, now)
		}
	}
	return locks, now, nil
}

// pipelinedAt is pipelined, and also returns the time of the server that has a name. The time is
// a courtesy: only the age of a grant and the end of a place depend on it. If the server does
// not answer, it is the time of this machine.
func (f *Fleet) pipelinedAt(ctx context.Context, name string, add func(p redis.Pipeliner)) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var clock *redis.TimeCmd
	cluster, clustered := f.rdb.(*redis.ClusterClient)
	err := pipelined(ctx, f.rdb, func(p redis.Pipeliner) {
		if !clustered { // a client of a Cluster sends it to any server
			clock = p.Time(ctx)
		}
		add(p)
	})
	if err != nil {
		return time.Now(), err
	}
	if clustered {
		if node, err := cluster.MasterForKey(ctx, name); err == nil {
			clock = node.Time(ctx)
		}
	}
	return toldTime(clock), nil
}

// toldTime returns the time that a server told, or else the time of this machine.
func toldTime(clock *redis.TimeCmd) time.Time {
	if clock != nil && clock.Err() == nil {
		return clock.Val()
	}
	return time.Now()
}

// pipelined sends commands in one pipeline. Each has its own error then. The returned
// error belongs to the pipeline, and no command has it: go-redis gives the commands no
// error if it has no connection.
func pipelined(ctx context.Context, rdb redis.Cmdable, add func(p redis.Pipeliner)) error {
	cmds, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		add(p)
		return nil
	})
	if err == nil || slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil }) {
		return nil
	}
	return rediswire.Wrap(err)
}

// err is the first error of the requests.
func (r *reading) err() error {
	for _, cmd := range []redis.Cmder{r.size, r.left, r.meta, r.fields, r.fence} {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return rediswire.Wrap(err)
		}
	}
	return nil
}

// lock makes the Lock from the replies.
func (r *reading) lock(key string, now time.Time) Lock {
	l := Lock{Key: key}
	meta := r.meta.Val()
	text := func(i int) string {
		if i < len(meta) {
			s, _ := meta[i].(string)
			return s
		}
		return ""
	}
	l.seen = r.fence.Val()
	l.Fence, l.voted = rediswire.ReadFence(l.seen)
	for w := range driver.Waiters(text(0)).All() {
		l.Waiters = append(l.Waiters, Waiter{Locker: Locker{ID: w.ID()}, Place: w.Place(), Called: w.Called()})
	}
	total := int(r.size.Val())
	for i := range meta {
		if meta[i] != nil {
			total--
		}
	}
	// Where the clock was set back the key stays longer than the lock is kept.
	left := r.left.Val()
	reserved, kept := rediswire.ReadReserved(text(3))
	if kept {
		left = min(left, reserved)
	}
	fields, cursor := r.fields.Val()
	l.add(fields, left, now)
	l.Held = len(l.Holders)
	// The locker that is offered the lock is its holder, and is the first of the list until it renews.
	l.Waiters = slices.DeleteFunc(l.Waiters, func(w Waiter) bool {
		return l.Kind == Exclusive && len(l.Holders) > 0 && l.Holders[0].Locker.ID == w.Locker.ID
	})
	if kept && l.Held == 0 && left > 0 {
		l.Kept = left
		for i := range l.Waiters[:min(rediswire.KeptFor(text(0), reserved), len(l.Waiters))] {
			l.Waiters[i].Kept = true
		}
	}
	if cursor != 0 { // it has more, of which some may be over
		l.Held = max(l.Held, total)
	}
	return l
}

// add adds the holders of some fields of a lock's hash that are not over.
func (l *Lock) add(fields []string, left time.Duration, now time.Time) {
	for i := 0; i+1 < len(fields); i += 2 {
		v, ok := rediswire.ReadHolder(fields[i], fields[i+1])
		if !ok || v.Place && !v.Ends.After(now) {
			continue
		}
		l.Kind = Exclusive
		if v.Place {
			l.Kind = Places
		}
		l.Holders = append(l.Holders, holderOf(v, left, now))
	}
}

// readAll reads the holders of a lock that has many, at most so many.
func (f *Fleet) readAll(ctx context.Context, l *Lock, now time.Time, most int) error {
	l.Holders = nil
	seen := map[string]bool{}
	var fields []string
	for cursor := uint64(0); ; {
		page, next, err := f.rdb.HScan(ctx, f.wire.LockName(l.Key), cursor, "", 10*someHolders).Result()
		if err != nil {
			return rediswire.Wrap(err)
		}
		fields = fields[:0]
		for i := 0; i+1 < len(page); i += 2 {
			if !seen[page[i]] { // HSCAN may return a field twice
				seen[page[i]] = true
				fields = append(fields, page[i], page[i+1])
			}
		}
		l.add(fields, 0, now)
		if cursor = next; cursor == 0 {
			l.Held = len(l.Holders)
			return nil
		}
		if len(l.Holders) >= most {
			return nil
		}
	}
}

// directory has the entries of the lockers that were asked for last.
type directory struct {
	fleet   *Fleet
	entries map[string]Locker
	silent  map[redis.Cmdable]bool // masters that have not answered: they are asked for no more names
}

// name puts the entries of all lockers into locks. The name of a process is a courtesy, and may
// lie on another server than the lock: an entry that is not read in a short time is unknown.
func (d *directory) name(ctx context.Context, now time.Time, locks []*Lock) {
	d.trim()
	var ids []string
	each := func(visit func(l *Locker, owner string)) {
		for _, l := range locks {
			for i := range l.Holders {
				visit(&l.Holders[i].Locker, l.Holders[i].Owner)
			}
			for i := range l.Waiters {
				visit(&l.Waiters[i].Locker, "")
			}
		}
	}
	each(func(l *Locker, owner string) {
		if l.ID == "" {
			l.ID, _, _ = strings.Cut(owner, ":")
		}
		if _, known := d.entries[l.ID]; !known {
			ids = append(ids, l.ID)
		}
	})
	if len(ids) > 0 {
		ctx, cancel := context.WithTimeout(ctx, namesWithin)
		defer cancel()
		_ = d.learn(ctx, now, ids)
	}
	each(func(l *Locker, _ string) { *l = d.locker(l.ID) })
}

// trim empties the directory if it has become large.
func (d *directory) trim() {
	if d.entries == nil || len(d.entries) > manyLockers {
		d.entries = map[string]Locker{}
	}
	if d.silent == nil {
		d.silent = map[redis.Cmdable]bool{}
	}
}

// locker returns the known entry of a locker.
func (d *directory) locker(id string) Locker {
	if l, ok := d.entries[id]; ok {
		return l
	}
	return Locker{ID: id}
}

// learn reads entries, at the server's time now. A lock's own text decides which ids are asked
// for: what cannot be an id is not. learn returns the first error, after it has read all entries
// that it can. An entry that could not be read is not asked for again.
func (d *directory) learn(ctx context.Context, now time.Time, ids []string) error {
	var mu sync.Mutex
	var failed error
	var asking sync.WaitGroup
	for node, ids := range d.byMaster(ctx, ids) {
		// One pipeline over a Cluster has no answer at all where one master gives none.
		asking.Go(func() {
			found, err := d.fleet.entriesOn(ctx, node, now, ids)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(d.entries, found)
			if failed = cmp.Or(failed, err); err != nil {
				d.silent[node] = true
			}
		})
	}
	asking.Wait()
	return failed
}

// byMaster returns the ids that are asked for, by the master that has their entries.
func (d *directory) byMaster(ctx context.Context, ids []string) map[redis.Cmdable][]string {
	by := map[redis.Cmdable][]string{}
	cluster, clustered := d.fleet.rdb.(*redis.ClusterClient)
	for _, id := range ids {
		d.entries[id] = Locker{ID: id}
		if strings.ContainsAny(id, "{}") {
			continue
		}
		var node redis.Cmdable = d.fleet.rdb
		if clustered {
			master, err := cluster.MasterForKey(ctx, d.fleet.wire.LockerName(id))
			if err != nil {
				continue
			}
			node = master
		}
		if !d.silent[node] {
			by[node] = append(by[node], id)
		}
	}
	return by
}

// entriesOn reads entries on one master.
func (f *Fleet) entriesOn(ctx context.Context, node redis.Cmdable, now time.Time, ids []string) (map[string]Locker, error) {
	found := map[string]Locker{}
	for some := range slices.Chunk(ids, 4*readAtATime) {
		replies := make([]*redis.MapStringStringCmd, len(some))
		err := pipelined(ctx, node, func(p redis.Pipeliner) {
			for i, id := range some {
				replies[i] = p.HGetAll(ctx, f.wire.LockerName(id))
			}
		})
		if err != nil {
			return found, err
		}
		for i, id := range some {
			fields, err := replies[i].Result()
			if err = rediswire.Wrap(err); err == nil {
				found[id] = lockerOf(id, fields, now)
			} else if !errors.Is(err, driver.ErrKeyOccupied) {
				return found, err
			}
		}
	}
	return found, nil
}

// lockerOf makes the Locker of an entry.
func lockerOf(id string, fields map[string]string, now time.Time) Locker {
	a, seen, ok := rediswire.ReadEntry(id, fields)
	l := Locker{
		ID: id, Listed: ok, Host: a.Host, PID: a.PID, Service: a.Service, Version: a.Version,
		Started: a.Started, Seen: seen, Protocol: a.Protocol,
	}
	if !seen.IsZero() {
		l.Quiet = max(0, now.Sub(seen))
	}
	return l
}
