package casstore

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Watch implements [driver.Store]. It watches the key, and the beats of its holders: so the
// store knows how long a holder has been silent, and asks for nothing meanwhile.
func (s *Store) Watch(key string, _ time.Time, wake func(driver.Signal)) (stop func()) {
	s.mu.Lock()
	s.queue(key).watches++
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(s.done)
	w := &watch{Store: s, key: key, wake: wake, ctx: ctx, last: s.lastLock(key)}
	if !s.background(w.run) {
		cancel()
	}
	return sync.OnceFunc(func() {
		cancel()
		s.unwatch(key)
	})
}

// unwatch ends a watch. With the last watch of a key its lockers leave the list: no caller of
// theirs waits any more.
func (s *Store) unwatch(key string) {
	s.mu.Lock()
	q := s.queue(key)
	q.watches--
	if q.watches > 0 {
		s.mu.Unlock()
		return
	}
	delete(s.queues, key)
	s.mu.Unlock()
	for locker, at := range q.waiters {
		s.background(func() { s.leave(key, locker, at) })
	}
}

// watch is a watch of one key.
type watch struct {
	*Store
	key  string
	wake func(driver.Signal)
	ctx  context.Context

	last    Revision // of the lock that was seen last; zero: none
	lock    Entry
	as      holding
	waiting map[string]Entry
	stop    func() // ends the watch of the holder's beat
	beat    string
}

// run watches until the context ends. Whenever a watch fails, something may have been
// missed, and its waiters look again.
func (w *watch) run() {
	defer w.follow("")
	for pause := firstPause; w.ctx.Err() == nil; pause = min(2*pause, time.Second) {
		w.lock, w.waiting = Entry{}, nil
		err := w.server.Watch(w.ctx, w.names.key(w.key), func(changes []Change) {
			pause = firstPause
			if w.ctx.Err() == nil {
				w.report(changes)
			}
		})
		if w.ctx.Err() != nil {
			return
		}
		w.Warn("a watch of a lock has failed, and is begun again", err)
		w.wake(driver.Signal{})
		select {
		case <-time.After(pause):
		case <-w.ctx.Done():
		}
	}
}

// report takes the changes of one transaction, or, first of all, what there is.
func (w *watch) report(changes []Change) {
	first := w.waiting == nil
	if first {
		w.waiting = map[string]Entry{}
	}
	name, queue := w.names.lock(w.key), w.names.queue(w.key)
	free := false
	for _, c := range changes {
		switch {
		case c.Name == name && c.Deleted:
			free, w.lock = true, Entry{}
		case c.Name == name:
			free = false
			w.held(c.Entry)
		case strings.HasPrefix(c.Name, queue) && c.Deleted:
			delete(w.waiting, c.Name)
		case strings.HasPrefix(c.Name, queue):
			w.waiting[c.Name] = c.Entry
		}
	}
	switch {
	case first:
		// If it is not the lock that was seen last, that one was released meanwhile.
		if w.lock.Revision != w.last || w.last == (Revision{}) {
			w.wake(driver.Signal{})
		}
	case free:
		entries := make([]Entry, 0, len(w.waiting))
		for _, e := range w.waiting {
			entries = append(entries, e)
		}
		w.wake(driver.Signal{Next: driver.Waiters(strings.Join(w.as.line(queue, entries), ","))})
	}
}

// held notes the lock as it is now.
func (w *watch) held(lock Entry) {
	as, err := holder(lock)
	if err != nil {
		return // what tries to take it says so
	}
	w.lock, w.as = lock, as
	w.sawLock(w.key, lock.Revision, as, w.now())
	if beat := w.names.beat(as.process, as.lease); as.process != w.process {
		w.follow(beat)
	} else {
		w.follow("")
	}
}

// follow watches a beat, in place of the last one; none if the name is empty.
func (w *watch) follow(beat string) {
	if beat == w.beat {
		return
	}
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
	if w.beat = beat; beat != "" {
		w.stop = w.listen(beat)
	}
}

// listening is the watch of one beat, for all keys of that holder.
type listening struct {
	users int
	end   context.CancelFunc
}

// listen watches a beat until stop is called.
func (s *Store) listen(beat string) (stop func()) {
	s.mu.Lock()
	l := s.beatWatches[beat]
	if l == nil {
		l = &listening{}
		var ctx context.Context
		ctx, l.end = context.WithCancel(s.done)
		s.beatWatches[beat] = l
		if !s.closed {
			s.work.Go(func() { s.hear(ctx, beat) })
		}
	}
	l.users++
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.users--; l.users == 0 {
			l.end()
			delete(s.beatWatches, beat)
		}
	}
}

// hear notes each change of a beat. If it misses a change, the caller that would take
// the lock over finds out: the server compares.
func (s *Store) hear(ctx context.Context, beat string) {
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, time.Second) {
		_ = s.server.Watch(ctx, beat, func(changes []Change) {
			pause = firstPause
			for _, c := range changes {
				if !c.Deleted && c.Name == beat {
					s.sawBeat(beat, c.Revision, s.now())
				}
			}
		})
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}
