package casstore

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

const (
	// dead is a time without a sign of life. After it a process counts as dead, and its
	// entries are deleted: nothing about exclusion rests on it.
	dead = time.Hour
	// ownSweep is how often a store looks for its own stale entries.
	ownSweep = time.Minute
	// page is how many entries a sweep reads at once.
	page = 500
)

// sweeper deletes what processes have left that are dead: their locks of keys that no
// caller has asked for since, their places in lists, their beats, and the voids that have
// served their purpose.
type sweeper struct {
	*Store
	tries
	seen map[string]*sighting // beats and voids, by name
	gone map[string]Entry     // beats of the dead, by name
	live map[string]bool      // processes that have another beat
}

// sweep sweeps four times an hour, until the store is closed, and its own stale entries
// more often.
func (s *Store) sweep() {
	w := &sweeper{Store: s, seen: map[string]*sighting{}}
	own := time.NewTicker(ownSweep)
	defer own.Stop()
	next := time.Now().Add(dead/8 + rand.N(dead/4))
	for {
		select {
		case now := <-own.C:
			s.abandoned(ownSweep)
			s.forgetBeats(s.done)
			if now.Before(next) {
				continue
			}
			if err := w.once(); err != nil {
				s.Warn("what dead processes have left could not be deleted", err)
			}
			next = now.Add(dead/8 + rand.N(dead/4))
		case <-s.done.Done():
			return
		}
	}
}

// once sweeps once.
func (w *sweeper) once() error {
	w.tries = tries{store: w.Store, deadline: time.Now().Add(dead / 8)}
	w.gone, w.live = map[string]Entry{}, map[string]bool{}
	found := map[string]*sighting{}
	if err := w.each(w.names.voids(), func(e Entry) {
		if found[e.Name] = w.note(e); w.now().Sub(found[e.Name].at) >= dead {
			_ = w.remove(e, nil) // else the next sweep does
		}
	}); err != nil {
		return err
	}
	if err := w.each(w.names.beats(), func(e Entry) {
		process, lease := w.beatOf(e.Name)
		found[e.Name] = w.note(e)
		if w.now().Sub(found[e.Name].at) >= max(dead, 2*lease) && process != w.process {
			w.gone[e.Name] = e
		} else {
			w.live[process] = true
		}
	}); err != nil {
		return err
	}
	if w.seen = found; len(w.gone) == 0 {
		return nil
	}
	var failed error // then the beats stay: the next sweep finds the entries by them
	if err := w.each(w.names.all(), func(e Entry) { failed = errors.Join(failed, w.inherit(e)) }); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	for _, beat := range w.gone {
		failed = errors.Join(failed, w.remove(beat, nil))
	}
	return failed
}

// note notes that an entry was seen.
func (w *sweeper) note(e Entry) *sighting {
	if last := w.seen[e.Name]; last != nil && last.revision == e.Revision {
		return last
	}
	return &sighting{revision: e.Revision, at: w.now()}
}

// inherit deletes an entry of a dead process, if it is a lock or a place in a list.
func (w *sweeper) inherit(e Entry) error {
	switch key, part, _ := strings.Cut(strings.TrimPrefix(e.Name, w.names.all()), "/"); {
	case strings.HasPrefix(key, ":"):
	case part == "lock":
		as, err := holder(e)
		if beat, gone := w.gone[w.names.beat(as.process, as.lease)]; err == nil && gone {
			name, _ := unescape(key)
			return w.remove(e, as.ends(w.names, name), Condition{beat.Name, beat.Revision})
		}
	case !w.live[e.Value]:
		for name := range w.gone {
			if process, _ := w.beatOf(name); process == e.Value {
				return w.remove(e, nil)
			}
		}
	}
	return nil
}

// remove deletes an entry if it is as it was read, and also some others, and carries out other
// operations with that. If not, the next sweep finds it.
func (w *sweeper) remove(e Entry, with []Op, also ...Condition) error {
	_, _, _, err := w.send(Txn{If: append(also, Condition{e.Name, e.Revision}), Then: append(with, Op{Name: e.Name, Delete: true})})
	return err
}

// each reads all entries under a prefix.
func (w *sweeper) each(prefix string, do func(Entry)) error {
	for after := ""; ; {
		answer, _, again, err := w.send(Txn{List: []Range{{Prefix: prefix, After: after, Limit: page}}})
		switch {
		case again:
			continue
		case err != nil:
			return err
		}
		for _, e := range answer.Lists[0] {
			do(e)
			after = e.Name
		}
		if len(answer.Lists[0]) < page {
			return nil
		}
	}
}

// beatOf reads the name of a beat.
func (w *sweeper) beatOf(name string) (process string, lease time.Duration) {
	process, ms, _ := strings.Cut(strings.TrimPrefix(name, w.names.beats()), "/")
	n, _ := strconv.ParseInt(ms, 10, 64)
	return process, time.Duration(n) * time.Millisecond
}
