package casstore

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver/keystate"
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
			s.forgetBeats(s.done)
			s.mu.Lock()
			s.seen.prune(s.now())
			s.mu.Unlock()
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
	seen := map[string]*sighting{}
	for _, prefix := range []string{w.names.voids(), w.names.allCalls()} {
		if err := w.each(prefix, func(e Entry) {
			if seen[e.Name] = w.note(e); w.now().Sub(seen[e.Name].at) >= dead {
				_ = w.remove(e) // else the next sweep does
			}
		}); err != nil {
			return err
		}
	}
	if err := w.forgets(seen); err != nil {
		return err
	}
	if err := w.each(w.names.beats(), func(e Entry) {
		process, lease := w.beatOf(e.Name)
		seen[e.Name] = w.note(e)
		if w.now().Sub(seen[e.Name].at) >= max(dead, 2*lease) && process != w.process {
			w.gone[e.Name] = e
		} else {
			w.live[process] = true
		}
	}); err != nil {
		return err
	}
	if w.seen = seen; len(w.gone) == 0 {
		return nil
	}
	var failed error // then the beats stay: the next sweep finds the entries by them
	changed := false // a key meanwhile: then, too
	last, at := "", found{}
	next := func(key string) {
		if name, ok := unescape(last); ok && last != "" {
			done, err := w.inherit(name, at)
			failed, changed = errors.Join(failed, err), changed || !done
		}
		last, at = key, found{}
	}
	err := w.each(w.names.all(), func(e Entry) {
		key, part, _ := strings.Cut(strings.TrimPrefix(e.Name, w.names.all()), "/")
		if key != last {
			next(key)
		}
		switch {
		case strings.HasPrefix(key, ":"):
			last = ""
		case part == "lock":
			at.lock = e
		case part == "line":
			at.line = e
		case strings.HasPrefix(part, "line/"):
			var l line
			if l.read([]Entry{e}) == nil && len(l.All) == 1 && l.All[0].apart && w.died(l.All[0].Process) {
				failed = errors.Join(failed, w.remove(e))
			}
		case strings.HasPrefix(part, "place/"):
			h := placeIn(e)
			if beat := w.gone[w.names.beat(h.Process, h.lease())]; beat.There() {
				failed = errors.Join(failed, w.remove(e, Condition{beat.Name, beat.Revision}))
				changed = true // the next sweep deletes the lock if it was the last
			}
		}
	})
	next("")
	if err != nil || failed != nil || changed {
		return errors.Join(err, failed)
	}
	for _, beat := range w.gone {
		failed = errors.Join(failed, w.remove(beat))
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

// died reports whether a process has died.
func (w *sweeper) died(process string) bool {
	for name := range w.gone {
		if of, _ := w.beatOf(name); of == process {
			return !w.live[process]
		}
	}
	return false
}

// inherit takes dead processes out of a lock and its line. It reports false if the key has changed meanwhile.
func (w *sweeper) inherit(key string, at found) (done bool, err error) {
	if at, _, err = w.list(key, at); err == nil {
		var now found
		now, _, _, err = w.listPlaces(key, at, true)
		at.places = now.places
	}
	if err != nil {
		return false, err
	}
	v, err := w.open(key, at, time.Time{})
	if err != nil {
		return true, nil // it is no lock, or of a later version
	}
	ends := map[string]time.Time{}
	for _, h := range v.holds {
		beat := w.gone[w.names.beat(h.Process, h.lease())]
		if ends[h.Owner] = v.now.Add(dead); beat.There() {
			ends[h.Owner] = v.now
			v.signs[h.Owner] = sign{ends: v.now, beat: Condition{beat.Name, beat.Revision}}
		}
	}
	var stay []listed
	for _, l := range v.line.since(v.gone) {
		if !w.died(l.Process) {
			stay = append(stay, l)
		}
	}
	v.rec.SetWaiting(names(stay))
	v.rec.SetEnds(func(owner string) time.Time { return ends[owner] })
	v.rec.At(v.now)
	txn := v.write(keystate.Notices{}, held{}, false)
	if len(txn.Then) == 0 && len(stay) == 0 && v.rec.Idle(v.now) && (at.lock.There() || at.line.There()) {
		txn.If = []Condition{{w.names.lock(key), at.lock.Revision}, {w.names.line(key), at.line.Revision}}
		txn.Then = []Op{{Name: w.names.lock(key), Delete: true}, {Name: w.names.line(key), Delete: true}}
		for _, e := range at.come[:min(len(at.come), batch)] {
			txn.Then = append(txn.Then, Op{Name: e.Name, Delete: true})
		}
	}
	switch {
	case len(txn.Then) == 0:
		return true, nil
	case v.unsure || !at.full:
		return false, nil
	}
	answer, _, _, err := w.send(txn)
	return answer.Done, err
}

// remove deletes an entry if it is as it was read, and another one is. If not, the next
// sweep finds it.
func (w *sweeper) remove(e Entry, also ...Condition) error {
	_, _, _, err := w.send(Txn{If: append(also, Condition{e.Name, e.Revision}), Then: []Op{{Name: e.Name, Delete: true, Brief: strings.HasPrefix(e.Name, w.names.allCalls())}}})
	return err
}

// each reads all entries under a prefix.
func (w *sweeper) each(prefix string, do func(Entry)) error {
	for e, err := range w.entries(w.done, prefix, "") {
		if err != nil {
			return err
		}
		do(e)
	}
	return nil
}

// beatOf reads the name of a beat.
func (w *sweeper) beatOf(name string) (process string, lease time.Duration) {
	process, ms, _ := strings.Cut(strings.TrimPrefix(name, w.names.beats()), "/")
	n, _ := strconv.ParseInt(ms, 10, 64)
	return process, time.Duration(n) * time.Millisecond
}
