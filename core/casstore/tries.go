package casstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// firstPause and lastPause bound the pauses between tries of a transaction.
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
	// patience is for how many waits for an answer a request is tried that has no deadline, and
	// electionWait for how long an acquire at least, so that a change of leader is no error:
	// with the defaults of etcd an election takes one or two seconds.
	patience     = 3
	electionWait = 3 * time.Second
	// slowTrips is for how many times what an answer takes lately a try waits.
	slowTrips = 4
	// margin is how long before the deadline of its caller a request ends at most: so the
	// caller gets the reason.
	margin = 50 * time.Millisecond
)

// took notes how long an answer took: at once if that is longer than the earlier note, and
// else in part. A note that is left out by chance makes no difference.
func (s *Store) took(d time.Duration) {
	s.trips.Note(d)
	trip := s.trip.Load()
	s.trip.Store(max(int64(d), trip-(trip-int64(d))/8, 1))
}

// wait is how long the first try of a request waits for its answer.
func (s *Store) wait() time.Duration {
	return max(s.timeout, slowTrips*time.Duration(s.trip.Load()))
}

// tries sends the transactions of one request until one has an answer.
type tries struct {
	store      *Store
	deadline   time.Time       // when nothing is sent any more
	most       time.Duration   // how long one waits for its answer at most; zero: no such bound
	base       context.Context // its end ends the tries; nil: the end of the store does
	unknown    bool            // a transaction may have been executed, or may yet be
	sure       bool            // its lists are from after the call: a call may be newer than all answers
	collided   bool            // others have changed what a transaction compares
	unanswered int             // how many tries got no answer
	pause      time.Duration
}

// bound is how long the next try waits for its answer. A try that is cut off tells nothing
// about how long an answer takes, so the next one gets more time. Where answers came lately, it
// is more likely that the leader has changed: then that begins after half of [electionWait], so
// that a try is not still waiting for the old leader when there is a new one.
func (t *tries) bound() time.Duration {
	d, doubled := t.store.wait(), t.unanswered
	if t.store.trip.Load() > 0 {
		doubled -= int(electionWait / 2 / d)
	}
	d <<= min(max(doubled, 0), 3)
	if t.most > 0 {
		d = min(d, t.most)
	}
	return d
}

// send sends a transaction once. It returns when the answer came, by the store's clock.
// After an error the caller makes the transaction anew if there is time for that: a
// transaction that may have been executed changes the conditions of the next one.
func (t *tries) send(txn Txn) (answer Answer, received time.Time, again bool, err error) {
	base := t.base
	if base == nil {
		base = t.store.done
	}
	begin, within := time.Now(), t.bound()
	bound := begin.Add(within)
	if t.deadline.Before(bound) {
		bound, within = t.deadline, t.deadline.Sub(begin)
	}
	ctx, cancel := context.WithDeadline(base, bound)
	defer cancel()
	if ctx.Err() != nil {
		return answer, t.store.now(), false, errNoTime
	}
	answer, err = t.store.server.Commit(ctx, txn)
	received = t.store.now()
	switch {
	case err == nil:
		t.store.took(time.Since(begin))
		t.collided = t.collided || !answer.Done
		return answer, received, false, nil
	case errors.Is(err, ErrRefused):
		return answer, received, false, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	case errors.Is(err, ErrSettled):
		err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	case errors.Is(err, driver.ErrNotReady):
	case ctx.Err() != nil && base.Err() == nil:
		t.unknown = t.unknown || len(txn.Then) > 0
		err = fmt.Errorf("%w: %w", driver.ErrUnavailable, silence{within: within, least: t.store.timeout, err: err})
	default:
		t.unknown = t.unknown || len(txn.Then) > 0
		err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	if ctx.Err() != nil {
		t.unanswered++
	}
	return answer, received, t.rest(base), err
}

// list looks at the line of a key. The lock stays as it was found before. All lockers are listed that had come when the line was
// written last, and perhaps some that came later (see [Range]).
func (t *tries) list(key string, before found) (at found, again bool, err error) {
	names := t.store.names
	// Without a limit a server would list again until all entries are of one moment.
	txn := Txn{Read: []string{names.line(key)}, List: []Range{{Prefix: names.waits(key, ""), Limit: page}}, Late: !t.sure}
	for at.lock, at.come, at.places = before.lock, []Entry{}, before.places; ; txn.Read = nil {
		answer, _, again, err := t.send(txn)
		if err != nil {
			return before, again, err
		}
		if len(txn.Read) > 0 {
			at.line = answer.Read[0]
		}
		if at.come = append(at.come, answer.Lists[0]...); len(answer.Lists[0]) < page {
			break
		}
		txn.List[0].After = at.come[len(at.come)-1].Name
	}
	for _, e := range at.come {
		if e.Name == names.inOne(key) {
			at.all = e.Revision
		}
	}
	at.full, at.upTo = true, at.line.Revision.Number*perRevision+1
	return at, true, nil
}

// listPlaces looks at a lock and its places. Late says that the lock was read before by this request.
func (t *tries) listPlaces(key string, before found, late bool) (at found, received time.Time, again bool, err error) {
	names := t.store.names
	lock, line, tick := names.lock(key), names.line(key), names.taking(key)
	txn := Txn{Read: []string{lock, line, tick}, List: []Range{{Prefix: names.place(key, ""), Limit: page}}, Late: late}
	for at = before; ; txn.Read = nil {
		answer, when, again, err := t.send(txn)
		if err != nil {
			return before, received, again, err
		}
		if len(txn.Read) > 0 {
			received = when
			at = found{lock: answer.Read[0], line: answer.Read[1], places: places{tick: answer.Read[2], taken: []held{}, allTaken: true}}
			if at.line.Revision == before.line.Revision {
				at.come, at.all, at.upTo, at.full = before.come, before.all, before.upTo, before.full
			}
		}
		for _, e := range answer.Lists[0] {
			at.taken = append(at.taken, placeIn(e))
		}
		if len(answer.Lists[0]) < page {
			return at, received, true, nil
		}
		txn.List[0].After = answer.Lists[0][page-1].Name
	}
}

// leastStay and mostStay bound the pauses of a request that stays.
const (
	leastStay = 5 * time.Millisecond
	mostStay  = 20 * time.Millisecond
)

// staysFor pauses if a request that asks once was refused a lock that is free, and kept for lockers in line. They may
// have ended: the store has no clock that ends their turns, so each request that leaves would begin to count anew. It
// reports false if the request has no time for their turns.
func (c *claim) staysFor(refused driver.Reply) bool {
	if c.ask.Waiter != "" || c.ask.From != "" || c.ask.Deadline.IsZero() || refused.Granted || refused.Out || c.ask.Kind.Place() {
		return false
	}
	v, err := c.open(c.ask.Key, c.at, time.Time{})
	if err != nil || !v.rec.Reserved(v.now) || refused.TTL > time.Until(c.deadline) {
		return false
	}
	pause := time.NewTimer(min(max(refused.TTL, leastStay), mostStay))
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-c.done.Done():
		return false
	}
}

// rest pauses before the next try. It reports false if there is no time for one.
func (t *tries) rest(base context.Context) bool {
	t.pause = min(max(2*t.pause, firstPause), lastPause)
	if time.Until(t.deadline) <= t.pause {
		return false
	}
	timer := time.NewTimer(t.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-base.Done():
		return false
	}
}

// silence is that a try got no answer. It wraps nothing, so that logs have its text
// (observe.RootCause).
type silence struct {
	within, least time.Duration
	err           error
}

func (e silence) Error() string {
	text := fmt.Sprintf("no answer within %v", e.within.Round(time.Millisecond))
	if why, ok := e.err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // the last one is the reason
		all := why.Unwrap()
		return text + ": " + all[len(all)-1].Error()
	}
	if e.within >= e.least { // else its caller waits for no longer
		text += fmt.Sprintf("; if the server is only slow, a program can raise casstore.Timeout, which is %v", e.least)
	}
	return text
}

// Is reports whether the error of the try is another one.
func (e silence) Is(target error) bool { return errors.Is(e.err, target) }

// oneByOne waits until no other request of this process for a key is in between, but no longer than for
// the answer to one try: requests for permits, and requests after a collision, would collide with each
// other. Nothing but the number of collisions rests on it, so a release does not wait for a request
// that gets no answer.
func (s *Store) oneByOne(key string) (pass func()) {
	s.mu.Lock()
	l := s.passes[key]
	if l == nil {
		l = &lane{busy: make(chan struct{}, 1)}
		s.passes[key] = l
	}
	l.users++
	s.mu.Unlock()
	timer := time.NewTimer(s.wait())
	defer timer.Stop()
	had := true
	select {
	case l.busy <- struct{}{}:
	case <-timer.C:
		had = false
	}
	return func() {
		if had {
			<-l.busy
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(s.passes, key)
		}
	}
}

// lane is a key with requests that go on one by one.
type lane struct {
	busy  chan struct{} // has room for one
	users int           // guarded by the mutex of the store
}
