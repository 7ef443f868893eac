package rediswire

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// readAtATime is how many locks one pipeline reads.
	readAtATime = 8
	// someHolders is about how many holders List returns of a lock, and manyHolders how
	// many Look does.
	someHolders, manyHolders = 64, 10_000
	// answerWithin bounds the wait for a page of names, and for the state of some locks.
	answerWithin = 5 * time.Second
)

var _ driver.Lister = (*Store)(nil)

// Look implements [driver.Lister]. It reads all holders unless there are more than 10,000.
func (s *Store) Look(ctx context.Context, key string) (driver.View, error) {
	views, err := s.look(ctx, []string{key})
	if err != nil {
		return driver.View{Key: key}, err
	}
	v := &views[0]
	if err := v.occupied; err != nil {
		return driver.View{Key: key}, err
	}
	if v.More > 0 {
		if err := s.lookAtAll(ctx, &v.View, manyHolders); err != nil {
			return driver.View{Key: key}, err
		}
	}
	known := directory{store: s}
	v.Entries = func(ctx context.Context) map[string]driver.Entry { return known.of(ctx, []driver.View{v.View}) }
	return v.View, nil
}

// List implements [driver.Lister]. It reads with SCAN on each master in turn, not faster than
// Config.Rate, in no order, and keeps only the present page. A lock may be returned twice (SCAN says
// so, and a Cluster that moves slots).
func (s *Store) List(ctx context.Context, begin string, fits func(key string) bool) iter.Seq2[driver.View, error] {
	return func(yield func(driver.View, error) bool) {
		known := directory{store: s}
		name := s.names.lock(begin)
		err := s.Scan(ctx, globbed(name[:len(name)-1])+"*}", Position{}, func(names []string, _ Position) (bool, error) {
			var keys []string
			for _, name := range names {
				if key, ok := s.KeyOf(name); ok && (fits == nil || fits(key)) {
					keys = append(keys, key)
				}
			}
			// Few at a time: a server carries out all of a pipeline before it looks
			// at other connections.
			for some := range slices.Chunk(keys, readAtATime) {
				read, err := s.look(ctx, some)
				if err != nil {
					return true, err
				}
				var views []driver.View
				for i := range read {
					if !read[i].Free() {
						views = append(views, read[i].View)
					}
				}
				entries := sync.OnceValue(func() map[string]driver.Entry { return known.of(ctx, views) })
				for _, v := range views {
					v.Entries = func(context.Context) map[string]driver.Entry { return entries() }
					if !yield(v, nil) {
						return false, nil
					}
				}
			}
			return true, nil
		})
		if err != nil {
			yield(driver.View{}, err)
		}
	}
}

// looked is a lock that was read.
type looked struct {
	driver.View
	occupied error // the key has a value that is no lock
}

// reading has the requests for one lock.
type reading struct {
	size   *redis.IntCmd
	left   *redis.DurationCmd
	meta   *redis.SliceCmd
	fields *redis.ScanCmd
	fence  *redis.StringCmd
}

// look reads some locks in one pipeline; each is read at one instant, or nearly so. On a Cluster
// one server has them all.
func (s *Store) look(ctx context.Context, keys []string) ([]looked, error) {
	all := make([]reading, len(keys))
	now, err := s.PipelinedAt(ctx, s.names.lock(keys[0]), func(p redis.Pipeliner) {
		for i, key := range keys {
			name := s.names.lock(key)
			all[i] = reading{
				size: p.HLen(ctx, name), left: p.PTTL(ctx, name),
				meta:   p.HMGet(ctx, name, fieldWaiters, fieldBound, fieldBarrier, fieldReserved),
				fields: p.HScan(ctx, name, 0, "", someHolders), fence: p.Get(ctx, fenceOf(name)),
			}
		}
	})
	if err != nil {
		return nil, err
	}
	locks := make([]looked, len(keys))
	for i, key := range keys {
		locks[i].View = driver.View{Key: key, Now: now}
		switch err := all[i].err(); {
		case errors.Is(err, driver.ErrKeyOccupied):
			locks[i].occupied = err // it was a lock a moment ago
		case err != nil:
			return nil, err
		default:
			all[i].read(&locks[i].View)
		}
	}
	return locks, nil
}

// PipelinedAt is [Pipelined], and also returns the time of the server that has a name. The time is
// a courtesy: only the age of a grant and the end of a place depend on it. If the server does
// not answer, it is the time of this machine.
func (s *Store) PipelinedAt(ctx context.Context, name string, add func(p redis.Pipeliner)) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var clock *redis.TimeCmd
	cluster, clustered := s.rdb.(*redis.ClusterClient)
	err := Pipelined(ctx, s.rdb, func(p redis.Pipeliner) {
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

// Pipelined sends commands in one pipeline. Each has its own error then. The returned
// error belongs to the pipeline, and no command has it: go-redis gives the commands no
// error if it has no connection.
func Pipelined(ctx context.Context, rdb redis.Cmdable, add func(p redis.Pipeliner)) error {
	cmds, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		add(p)
		return nil
	})
	if err == nil || slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil }) {
		return nil
	}
	return Wrap(err)
}

// err is the first error of the requests.
func (r *reading) err() error {
	for _, cmd := range []redis.Cmder{r.size, r.left, r.meta, r.fields, r.fence} {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return Wrap(err)
		}
	}
	return nil
}

// read reads the replies into the view.
func (r *reading) read(v *driver.View) {
	meta := r.meta.Val()
	text := func(i int) string {
		if i < len(meta) {
			s, _ := meta[i].(string)
			return s
		}
		return ""
	}
	v.Token, v.Voted = readFence(r.fence.Val())
	v.Waiting = driver.Waiters(text(0))
	total := int(r.size.Val())
	for i := range meta {
		if meta[i] != nil {
			total--
		}
	}
	// Where the clock was set back the key stays longer than the lock is kept.
	left := r.left.Val()
	reserved, kept := readReserved(text(3))
	if kept {
		left = min(left, reserved)
	}
	fields, cursor := r.fields.Val()
	addHolders(v, fields, left)
	if len(v.Holders) > 0 && !v.Holders[0].Place {
		// The locker that is offered the lock is its holder, and is the first of the list until it renews.
		id, _, _ := strings.Cut(v.Holders[0].Owner, ":")
		v.Waiting = v.Waiting.Without(id)
	}
	if kept && len(v.Holders) == 0 && left > 0 {
		v.Kept, v.KeptFor = left, keptFor(text(0), reserved)
	}
	if cursor != 0 { // it has more, of which some may be over
		v.More = max(0, total-len(v.Holders))
	}
}

// addHolders adds the holders of some fields of a lock's hash that are not over.
func addHolders(v *driver.View, fields []string, left time.Duration) {
	for i := 0; i+1 < len(fields); i += 2 {
		h, ends, ok := readHolder(fields[i], fields[i+1])
		if h.Left = left; h.Place {
			h.Left = ends.Sub(v.Now)
		}
		if ok && (!h.Place || h.Left > 0) {
			v.Holders = append(v.Holders, h)
		}
	}
}

// lookAtAll reads the holders of a lock that has many, at most so many.
func (s *Store) lookAtAll(ctx context.Context, v *driver.View, most int) error {
	v.Holders = nil
	seen := map[string]bool{}
	var fields []string
	for cursor := uint64(0); ; {
		page, next, err := s.rdb.HScan(ctx, s.names.lock(v.Key), cursor, "", 10*someHolders).Result()
		if err != nil {
			return Wrap(err)
		}
		fields = fields[:0]
		for i := 0; i+1 < len(page); i += 2 {
			if !seen[page[i]] { // HSCAN may return a field twice
				seen[page[i]] = true
				fields = append(fields, page[i], page[i+1])
			}
		}
		before := len(v.Holders)
		addHolders(v, fields, 0)
		if v.More = max(0, v.More-len(v.Holders)+before); next == 0 {
			v.More = 0
			return nil
		}
		if cursor = next; len(v.Holders) >= most {
			return nil
		}
	}
}
