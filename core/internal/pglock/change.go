package pglock

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/host"
)

// The rules of package keystate carry all requests out. A worker asks them what becomes of the row that it saw
// last, or of none, at an estimate of the server's clock. It sends the new row as a guess: the server writes it only if
// the present row has the version that the rules have decided on, and the clock is within the guess. Else the
// server returns the row and its clock, and the rules decide once more. So a request takes one statement, and two where
// another process has changed the lock.
//
// Safety rests on what the server compares, and on no estimate:
//   - The version of the row is a hash of its contents. A late or repeated statement, a statement of another worker or
//     process, and one from before a crash of the server that undid the row, finds another row and changes nothing.
//   - A guess is for an instant T that the clock of the server has passed, by no more than the slack: a lease that had
//     ended at T has ended. A clock that was set refuses the guess.
//   - A lease counts from T in the row. The server says how much later it has carried the guess out, and the holder counts
//     from as much before the sending of its request. A renewal by a guess is longer by the slack.
//   - A lock that was offered is on the disk, and on the standby, before the offer is announced: its locker begins
//     without a request. If the announcement is lost, the locker finds the call in the row.

// ruling is the result of the rules for a request.
type ruling struct {
	rep       driver.Reply
	contended bool
	found     driver.Waiting
	lasts     bool // the write that it needs waits for the disk
	renewed   bool // a lease is longer
	err       error
}

// moment is the instant of a request's execution.
type moment struct {
	now    time.Time     // by the server's clock
	longer time.Duration // so much later it may be: a guess
	calls  time.Duration // and so much later the lockers are called that a release names, at the earliest
	stale  func(id string) bool
}

// rule has a record carry a request out. It may be called several times: the last ruling counts.
type rule func(rec *keystate.Record, at moment, v *ruling) keystate.Notices

// change has the requests of a batch for one key, and the new row that they make.
type change struct {
	key  string
	asks []*request

	base   row  // that the rules decide on
	known  bool // the server has said it just now
	at     moment
	within time.Duration // so much later the decision is good
	done   bool          // the answers stand
	lag    time.Duration // of a guess that was carried out, behind the server's clock
	lost   bool          // the row has changed since the server said it
	is     row           // the row that the server has returned in place of base
	clock  time.Time     // and when that was

	next   row
	list   driver.Waiters
	token  int64
	ends   time.Time
	writes bool
	lasts  bool // the write waits for the disk
	calls  []keystate.Call
	notes  []note
}

// changes groups the requests of a batch by their keys, in the order of the keys.
func changes(batch []*request) (all []*change) {
	of := make(map[string]*change, len(batch))
	for _, r := range batch {
		c := of[r.key]
		if c == nil {
			c = &change{key: r.key}
			of[r.key], all = c, append(all, c)
		}
		c.asks = append(c.asks, r)
	}
	slices.SortFunc(all, func(a, b *change) int { return cmp.Compare(a.key, b.key) })
	return all
}

// guess decides on the row that was seen last.
func (c *change) guess(s *Store) {
	c.base, _ = s.rows.get(c.key)
	c.within = time.Second
	for _, r := range c.asks {
		if r.lasts {
			c.within = min(c.within, slackOf(r.lease)+2*s.trips.Least())
		}
	}
	now := s.clock.now()
	if c.base.at.After(now) { // else the clock would seem to have been set back since
		now = c.base.at
	}
	c.decide(moment{now: now, longer: c.within, calls: s.callsAfter()})
}

// slackOf is for how long a guess about a lease is good, besides the way to the server: a pause of the process.
func slackOf(lease time.Duration) time.Duration {
	return min(max(lease/64, 10*time.Millisecond), 250*time.Millisecond)
}

// found decides on the row that the server has returned.
func (c *change) found(s *Store) {
	c.is.since, c.is.at = c.base.since, c.clock
	c.base, c.known = c.is, true
	c.within = s.set.Timeout
	c.decide(moment{now: c.clock, calls: s.callsAfter()})
	c.done = !c.writes
}

// keepRecord is how long a record is kept after the last lease in it, at least, if it says more than its last token.
const keepRecord = time.Minute

// noRow is the text of a record that says nothing.
const noRow = `{"v":1}`

// decide has the rules decide.
func (c *change) decide(at moment) {
	c.next, c.writes, c.lasts, c.calls, c.notes = row{}, false, false, nil, nil
	rec, err := c.base.read()
	if err != nil {
		for _, r := range c.asks {
			r.answer = &ruling{err: err}
		}
		return
	}
	here := time.Now()
	since := c.base.listed(rec.Waiting(), here)
	at.stale = func(id string) bool { return here.Sub(since[id]) > host.OffersAfter }
	c.at = at
	for _, r := range c.asks {
		v := new(ruling)
		n := r.rule(rec, at, v)
		if n.Freed && len(n.Calls) > 0 {
			rec.Delay(at.calls)
		}
		r.answer = v
		c.lasts = c.lasts || v.lasts
		c.note(r, n, at.now)
		c.add(n.Calls)
	}
	text, _ := rec.AppendText(nil) // the texts of requests are checked: it has no error
	c.writes = c.lasts || string(text) != cmp.Or(c.base.text, noRow)
	c.list = rec.Waiting()
	c.next = row{text: string(text), record: rec, at: at.now, called: c.base.called, calls: c.base.calls, since: c.base.listed(c.list, here)}
	if c.token, c.ends = rec.Last(), rec.Until(); !rec.Idle(at.now) {
		later := rec.Clone()
		if later.At(c.ends); !later.Idle(c.ends) {
			c.ends = c.ends.Add(keepRecord)
		}
	}
	if turns := slices.DeleteFunc(slices.Clone(c.calls), isHint); len(turns) > 0 {
		c.next.called, c.next.calls = 1+rand.Int64N(1<<62), callsText(turns)
	}
}

// isHint reports whether a call is neither a turn nor an offer.
func isHint(c keystate.Call) bool { return c.What != driver.Turn && c.What != driver.Offered }

// add adds the calls of a request. A locker has one turn, the last.
func (c *change) add(all []keystate.Call) {
	for _, n := range all {
		c.lasts = c.lasts || n.What == driver.Offered
		c.calls = append(slices.DeleteFunc(c.calls, func(o keystate.Call) bool { return !isHint(n) && !isHint(o) && o.To == n.To }), n)
	}
}

// answer ends the requests of a change that was made, and makes its calls.
func (c *change) answer(s *Store) {
	now := c.base
	if c.writes {
		now, now.at = c.next, c.clock
	}
	s.saw(c.key, now)
	for _, r := range c.asks {
		r.lag = c.lag
		switch rep := r.answer.rep; {
		case r.waiter == "":
		case rep.Granted || rep.Out:
			s.calls.left(c.key, r.waiter.ID())
		case rep.Listed: // the calls of this change are news to it
			s.calls.listed(c.key, r.waiter.ID(), c.base.called, max(indexIn(c.list, r.waiter.ID()), 0))
		}
	}
	s.calls.make(c.key, now.called, c.calls)
}

// indexIn returns where a locker stands in a list; negative if it is not there.
func indexIn(list driver.Waiters, id string) (i int) {
	for w := range list.All() {
		if w.ID() == id {
			return i
		}
		i++
	}
	return -1
}

// saw notes the row of a lock.
func (s *Store) saw(key string, r row) { s.rows.put(key, r, len(r.text)+len(r.calls)+64*len(r.since)) }

// micros rounds a lease up to µs: a lease is never shorter than its holder thinks.
func micros(d time.Duration) time.Duration {
	return time.Duration(clock.Ceil(d, time.Microsecond)) * time.Microsecond
}
