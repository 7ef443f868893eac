package casstore

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// call is the value of an entry that calls lockers of a process: their turn at a key has come. The
// process watches its calls alone. So a release wakes no other process, however many wait.
type call struct {
	To []callee `json:"to"`
	// Lock is the value of the lock: so the locker that is called takes the lock without a look at it. Empty: it
	// is not known. At is the number of its revision; zero: the same transaction has written it. Version is of the revision.
	// Age is for how many milliseconds it has been so.
	Lock    string `json:"lock,omitempty"`
	At      int64  `json:"at,omitempty"`
	Version int64  `json:"version,omitempty"`
	Age     int64  `json:"age,omitempty"`
	// Line is the beginning of the line, as the calling process knew it, and InOne the number of the entry with all
	// lockers: zero if there is none, [thisCall] if the same transaction has written it.
	Line  []listed `json:"line,omitempty"`
	InOne int64    `json:"one,omitempty"`
	// Place is the name of a place that is kept for the locker, with the version of its revision; empty: none is. The
	// transaction that calls the locker has written it.
	Place        string `json:"place,omitempty"`
	Out          bool   `json:"out,omitempty"` // the call has taken the lockers out of the line
	PlaceVersion int64  `json:"placeversion,omitempty"`
	// Offer is the token of an offer to the locker ([driver.Offered]); zero: it is none.
	Offer int64 `json:"offer,omitempty"`
}

// callee is a locker that is called, and its turn, as [driver.Call] has it.
type callee struct {
	Name   driver.Waiter `json:"name"`
	In     int64         `json:"in,omitempty"` // in µs
	Others bool          `json:"others,omitempty"`
}

// called are the calls of a transaction, by process.
type called map[string]call

// add calls a locker of a process. The call has what that process is to know.
func (all called) add(process string, name driver.Waiter, turn driver.Call, c call) {
	if process != "" { // else it is not known
		c.To = append(all[process].To, callee{name, turn.In.Microseconds(), turn.Others})
		all[process] = c
	}
}

// ops are the operations that make the calls.
func (all called) ops(names layout, key string) (ops []Op) {
	for process, c := range all {
		text, _ := json.Marshal(c) // it never fails for such a type
		ops = append(ops, Op{Name: names.call(process, key), Value: string(text), Brief: true})
	}
	return ops
}

// thisCall stands for the number of the call, which is not known when the call is written.
const thisCall = -1

// queue is where this process waits for a key.
type queue struct {
	listed   map[string]bool // the lockers of the process that are in line, or may be, by id
	called   *call           // a locker of the process was called, and has not come yet
	at       int64           // the number of the revision of the call
	beat     string
	unfollow func() // ends the watch of that beat
}

// hintPart ends the name of an entry that has hints for the lockers of a
// process ([driver.Turns]): owners, separated by commas.
const hintPart = ":hint"

// queue returns the queue of a key. Called with the mutex held.
func (s *Store) queue(key string) *queue {
	q := s.queues[key]
	if q == nil {
		q = &queue{listed: map[string]bool{}}
		s.queues[key] = q
	}
	return q
}

// lists notes whether a locker of this process may be in line.
func (s *Store) lists(key string, waiter driver.Waiter, listed bool) {
	if waiter == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if listed {
		s.queue(key).listed[waiter.ID()] = true
		return
	}
	q := s.queues[key]
	if q == nil {
		return
	}
	delete(q.listed, waiter.ID())
	if q.called != nil && slices.ContainsFunc(q.called.To, func(w callee) bool { return w.Name.ID() == waiter.ID() }) {
		q.called = nil
	}
	s.leaves(key, q)
}

// leaves forgets a queue if no caller waits in it. Called with the mutex held.
func (s *Store) leaves(key string, q *queue) {
	if len(q.listed) > 0 || s.queues[key] != q {
		return
	}
	if q.unfollow != nil {
		q.unfollow()
	}
	delete(s.queues, key)
}

// calledTo returns the key that a locker of this process was called for; zero if none was.
func (s *Store) calledTo(key string) (at found) {
	s.mu.Lock()
	q := s.queues[key]
	if q == nil || q.called == nil || q.called.Lock == "" {
		s.mu.Unlock()
		return at
	}
	number, c := q.at, *q.called
	s.mu.Unlock()
	return s.calledWith(key, Entry{Revision: Revision{Number: number}}, c)
}

// calledWith returns the key as a call shows it.
func (s *Store) calledWith(key string, at Entry, c call) found {
	now, number := s.lastSeen(key), c.At
	if number == 0 {
		number = at.Revision.Number
	}
	now.lock = Entry{Name: s.names.lock(key), Value: c.Lock, Revision: Revision{Number: number, Version: c.Version}}
	if n := len(c.Line); n > 0 {
		now.come, now.full, now.upTo, now.all = s.names.entries(key, c.Line), false, c.Line[n-1].Number, Revision{}
		switch c.InOne {
		case 0:
		case thisCall:
			now.all = Revision{Number: at.Revision.Number, Version: AnyVersion}
		default:
			now.all = Revision{Number: c.InOne, Version: AnyVersion}
		}
	}
	if c.Out {
		now.come = slices.DeleteFunc(slices.Clone(now.come), func(e Entry) bool {
			return slices.ContainsFunc(c.To, func(w callee) bool { return e.Name == s.names.waits(key, w.Name.ID()) })
		})
	}
	if kept, ok := s.keptBy(key, at, c); ok {
		now.places = now.with(Entry{Name: kept.place, Value: kept.text(), Revision: kept.at})
	}
	return now
}

// keptBy returns the place that is kept for the locker that a call calls.
func (s *Store) keptBy(key string, at Entry, c call) (kept held, ok bool) {
	if c.Place == "" || len(c.To) == 0 {
		return kept, false
	}
	kept = held{For: c.To[0].Name, Lease: keptFor(c.To[0].Name), Process: unreadable}
	return placeIn(Entry{
		Name: s.names.place(key, c.Place), Value: kept.text(), Revision: Revision{Number: at.Revision.Number, Version: c.PlaceVersion},
	}), true
}

// Calls implements [driver.Store]. All calls to the lockers of a store are one watch of the server.
func (s *Store) Calls(id string, hear func(driver.Call)) (stop func()) {
	defer s.answerCalls()
	return s.lockers.Calls(id, hear)
}

// answerCalls begins the watch of the calls for this process, unless it runs.
func (s *Store) answerCalls() {
	s.mu.Lock()
	runs := s.answers
	s.answers = true
	s.mu.Unlock()
	if !runs {
		s.background(func() {
			s.watch(s.done, s.names.calls(s.process), func() { s.lockers.Unsure(true) }, s.called, func(err error) {
				s.Warn("the watch of calls to waiting lockers has failed, and is begun again", err)
				s.lockers.Unsure(false)
			})
		})
	}
}

// watch watches until ctx ends. Whenever the watch fails, something may have been missed.
func (s *Store) watch(ctx context.Context, prefix string, begun func(), report func(Change), failed func(error)) {
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, time.Second) {
		first := true
		err := s.server.Watch(ctx, prefix, func(changes []Change) {
			pause = firstPause
			for _, c := range changes {
				if ctx.Err() == nil {
					report(c)
				}
			}
			if first {
				begun()
			}
			first = false
		})
		if ctx.Err() != nil {
			return
		}
		failed(err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// called takes a call.
func (s *Store) called(change Change) {
	if s.hears(change); change.Deleted {
		return
	}
	part, hint := strings.CutSuffix(strings.TrimPrefix(change.Name, s.names.calls(s.process)), hintPart)
	key, ok := unescape(part)
	if ok && hint {
		for owner := range strings.SplitSeq(change.Value, ",") {
			c, _ := keystate.ReadHint(owner)
			c.Key = key
			s.lockers.Call(c.To, c.Call)
		}
		return
	}
	var c call
	if !ok || json.Unmarshal([]byte(change.Value), &c) != nil {
		return
	}
	if c.Offer != 0 && len(c.To) == 1 && !s.offered(key, change.Entry, c) {
		return
	}
	if age := time.Duration(c.Age) * time.Millisecond; c.At != 0 && c.Lock != "" {
		_, _ = s.open(key, s.calledWith(key, change.Entry, c), s.now().Add(clock.Drift(age)-age)) // as the caller has seen it
	}
	s.mu.Lock()
	q := s.queues[key]
	if q != nil {
		if q.called, q.at = &c, change.Revision.Number; c.Offer != 0 {
			q.called = nil
		}
	}
	s.mu.Unlock()
	switch {
	case q == nil && c.Offer != 0: // it has taken the offer
	case q == nil: // its callers have left, and the turn is the next one's
		s.background(func() { s.refuse(key, change.Entry, c) })
	default:
		for _, w := range c.To {
			if c.Offer == 0 {
				s.lockers.Call(w.Name.ID(), driver.Call{What: driver.Turn, Key: key, In: time.Duration(w.In) * time.Microsecond, Others: w.Others})
			}
		}
	}
}

// refuse answers a call that comes in vain.
func (s *Store) refuse(key string, at Entry, c call) {
	ctx, cancel := context.WithTimeout(s.done, s.wait())
	defer cancel()
	if kept, ok := s.keptBy(key, at, c); ok {
		s.passOn(key, kept)
		return
	}
	for _, w := range c.To {
		_ = s.decline(ctx, key, w.Name.ID(), s.calledWith(key, at, c)) // else the turn passes after a time
	}
}

// follow watches the beat of the holder of a key, as long as a caller waits for that key.
func (s *Store) follow(key, beat string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[key]
	if q == nil || q.beat == beat { // its callers have left meanwhile, or it is watched
		return
	}
	if q.unfollow != nil {
		q.unfollow()
	}
	q.beat, q.unfollow = beat, s.listen(beat)
}

// listening is the watch of one beat, for all keys of that holder.
type listening struct {
	users int
	end   context.CancelFunc
}

// listen watches a beat until stop is called. Both are called with the mutex held.
func (s *Store) listen(beat string) (stop func()) {
	l := s.beatWatches[beat]
	if l == nil {
		l = &listening{}
		var ctx context.Context
		ctx, l.end = context.WithCancel(s.done)
		s.beatWatches[beat] = l
		s.work.Go(func() { s.hear(ctx, beat) })
	}
	l.users++
	return func() {
		if l.users--; l.users == 0 {
			l.end()
			delete(s.beatWatches, beat)
		}
	}
}

// hear notes each change of a beat. If it misses a change, the caller that would take
// the lock over finds out: the server compares.
func (s *Store) hear(ctx context.Context, beat string) {
	s.watch(ctx, beat, func() {}, func(c Change) {
		if !c.Deleted && c.Name == beat {
			s.sawBeat(beat, c.Revision, s.now())
		}
	}, func(error) {})
}
