package rediswire

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// manyEntries is how many entries are kept while locks are listed.
	manyEntries = 1000
	// namesWithin bounds the wait for the entries of the lockers of some locks.
	namesWithin = 2 * time.Second
)

// Entries implements [driver.Registry].
func (s *Store) Entries(ctx context.Context) iter.Seq2[driver.Entry, error] {
	return func(yield func(driver.Entry, error) bool) {
		known := directory{store: s}
		err := s.Scan(ctx, globbed(s.names.prefix)+":locker:{*}", Position{}, func(names []string, at Position) (bool, error) {
			var ids []string
			for _, name := range names {
				if id, ok := s.lockerOf(name); ok {
					ids = append(ids, id)
				}
			}
			for some := range slices.Chunk(ids, readAtATime) {
				known.trim()
				if err := known.learn(ctx, toldTime(at.master.Time(ctx)), some); err != nil {
					return true, err
				}
				for _, id := range some {
					if e, ok := known.entries[id]; ok && e.ID != "" && !yield(e, nil) {
						return false, nil
					}
				}
			}
			return true, nil
		})
		if err != nil {
			yield(driver.Entry{}, err)
		}
	}
}

// lockerOf returns the id of the locker with an entry of that name.
func (s *Store) lockerOf(name string) (id string, ok bool) {
	rest, begins := strings.CutPrefix(name, s.names.prefix+":locker:{")
	id, ends := strings.CutSuffix(rest, "}")
	return id, begins && ends && id != ""
}

// directory has the entries of the lockers that were asked for last; an entry that was not found has
// no ID.
type directory struct {
	store   *Store
	entries map[string]driver.Entry
	silent  map[redis.Cmdable]bool // masters that have not answered: they are asked for no more names
}

// of returns the entries of the lockers of some locks. The name of a process is a courtesy, and may
// lie on another server than the lock: an entry that is not read in a short time is missing.
func (d *directory) of(ctx context.Context, views []driver.View) map[string]driver.Entry {
	d.trim()
	var ids []string
	add := func(id string) {
		if _, known := d.entries[id]; !known {
			ids = append(ids, id)
		}
	}
	for _, v := range views {
		for _, h := range v.Holders {
			id, _, _ := strings.Cut(h.Owner, ":")
			add(id)
		}
		for w := range v.Waiting.All() {
			add(w.ID())
		}
	}
	if len(ids) > 0 {
		ctx, cancel := context.WithTimeout(ctx, namesWithin)
		defer cancel()
		_ = d.learn(ctx, views[0].Now, ids)
	}
	return d.entries
}

// trim empties the directory if it has become large.
func (d *directory) trim() {
	if d.entries == nil || len(d.entries) > manyEntries {
		d.entries = map[string]driver.Entry{}
	}
	if d.silent == nil {
		d.silent = map[redis.Cmdable]bool{}
	}
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
			found, err := d.store.entriesOn(ctx, node, now, ids)
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
	cluster, clustered := d.store.rdb.(*redis.ClusterClient)
	for _, id := range ids {
		d.entries[id] = driver.Entry{}
		if strings.ContainsAny(id, "{}") {
			continue
		}
		var node redis.Cmdable = d.store.rdb
		if clustered {
			master, err := cluster.MasterForKey(ctx, d.store.names.locker(id))
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
func (s *Store) entriesOn(ctx context.Context, node redis.Cmdable, now time.Time, ids []string) (map[string]driver.Entry, error) {
	found := map[string]driver.Entry{}
	for some := range slices.Chunk(ids, 4*readAtATime) {
		replies := make([]*redis.MapStringStringCmd, len(some))
		err := Pipelined(ctx, node, func(p redis.Pipeliner) {
			for i, id := range some {
				replies[i] = p.HGetAll(ctx, s.names.locker(id))
			}
		})
		if err != nil {
			return found, err
		}
		for i, id := range some {
			fields, err := replies[i].Result()
			if err = Wrap(err); err == nil {
				found[id] = readEntry(id, fields, now)
			} else if !errors.Is(err, driver.ErrKeyOccupied) {
				return found, err
			}
		}
	}
	return found, nil
}

// readEntry reads the entry of a locker, at the server's time now. It has no ID if there is none.
func readEntry(id string, fields map[string]string, now time.Time) (e driver.Entry) {
	if len(fields) == 0 {
		return e
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(fields[name], 10, 64)
		return n
	}
	at := func(name string) (t time.Time) {
		if ms := number(name); ms > 0 {
			t = time.UnixMilli(ms)
		}
		return t
	}
	e.Announcement = driver.Announcement{
		ID: id, Host: fields[entryHost], PID: int(number(entryPID)), Service: fields[entryService],
		Version: fields[entryVersion], Started: at(entryStarted), Protocol: int(number(entryProtocol)),
	}
	if e.Seen = at(entrySeen); !e.Seen.IsZero() {
		e.Quiet = max(0, now.Sub(e.Seen))
	}
	return e
}
