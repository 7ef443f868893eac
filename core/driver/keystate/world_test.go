//go:build integration

package keystate

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// member is a locker that takes part in a world. It does what a locker does, but also loses its
// memory, gives up, and has its requests repeated or carried out late.
type member struct {
	id     string
	want   asked // its try; an empty script: it wants nothing
	holds  bool
	token  int64
	offer  int64   // the lock is offered to it
	before []asked // its requests, some of them come late
}

// world is a key, the lockers that want it, and the records that agree with the server so
// far.
type world struct {
	key     string
	rand    *rand.Rand
	records []*candidate
	members []*member
	owners  int
	limits  []int64 // of its permits; 0 is a shared lock
	ranged  bool    // its lockers say how long they may take
	offers  bool    // and take offers
	writers int     // of ten tries so many are exclusive
	last    int64   // the greatest token
	late    []asked // requests on another connection, which have not arrived
	tickets []asked // some were taken before
	calls   []string
}

// candidate is a record that agrees with the server, with its notes.
type candidate struct {
	Record
	notes map[string]time.Time
}

func (r *candidate) Clone() *candidate { return &candidate{*r.Record.Clone(), maps.Clone(r.notes)} }

func newWorld(key string, seed uint64) *world {
	w := &world{key: key, rand: rand.New(rand.NewPCG(seed, 1)), records: []*candidate{{notes: map[string]time.Time{}}}}
	for i := range 8 { // more than a release calls
		w.members = append(w.members, &member{id: fmt.Sprintf("%x%08x", 0xa+i, seed&0xffffffff)})
	}
	w.limits = [][]int64{{0}, {1}, {2}, {3}, {1, 2, 4}, {0, 2}}[w.rand.IntN(6)]
	w.ranged = seed%2 == 0 // the seeds of the worlds follow one another, so few worlds have all
	w.offers = seed%4 == 0
	if w.writers = []int{0, 1, 3, 9}[w.rand.IntN(4)]; w.offers {
		w.writers = []int{5, 9}[w.rand.IntN(2)] // a place is never offered
	}
	return w
}

func (w *world) once(in int) bool { return w.rand.IntN(in) == 0 }

// lease is a lease in ms: most end during the test, many at once.
func (w *world) lease() int64 {
	if w.once(100) {
		return 30_000
	}
	most := []int64{4, 40, 300, 1500}[w.rand.IntN(4)]
	return 1 + w.rand.Int64N(most)
}

// name is a locker's name, in half of the worlds with the time that it may take.
func (w *world) name(l *member) string {
	if !w.ranged {
		return l.id
	}
	name := driver.NewWaiter(l.id, driver.Exclusive, time.Duration(w.rand.IntN(60))*time.Millisecond)
	if w.offers && !w.once(4) {
		name = name.TakingOffers()
	}
	return string(name)
}

// next chooses a call. Some go over another connection, and are carried out after later calls.
func (w *world) next() (*member, asked) {
	if len(w.late) > 0 && w.once(4) {
		c := w.late[0]
		w.late = w.late[1:]
		return nil, c
	}
	l, c := w.chooses()
	if w.once(20) && len(w.late) < 4 {
		w.late = append(w.late, c)
		return w.chooses()
	}
	return l, c
}

func (w *world) chooses() (*member, asked) {
	l := w.members[w.rand.IntN(len(w.members))]
	if len(l.before) > 0 && w.once(20) {
		return nil, l.before[w.rand.IntN(len(l.before))]
	}
	waits := l.want.script != "" && !l.holds && l.want.id != ""
	if l.want.script != "" && w.once(25) || waits && w.once(15) {
		gaveUp := waits && !w.once(4)
		if late := l.want; late.line == driver.Newest && len(w.late) < 4 {
			late.number = 0
			w.late = append(w.late, late) // its first request is still on its way
		}
		l.want, l.holds = asked{}, false // crashed, or gave up
		if gaveUp {
			return nil, asked{script: "decline", id: l.id}
		}
	}
	if l.offer != 0 {
		switch n := w.rand.IntN(12); {
		case n == 0:
			return nil, asked{script: "decline", id: l.id} // its last caller has left, and the offer may still come
		case n == 1 && len(l.before) > 0:
			return nil, l.before[len(l.before)-1] // from before the offer
		case n > 3:
			return w.usesOffer(l)
		}
	}
	if len(w.tickets) > 0 && !l.holds && w.once(4) {
		return l, w.takesOver(l)
	}
	c := l.want
	switch {
	case c.script == "":
		c = w.begins(l)
		l.want = c
	case !l.holds && c.id != "":
		c.id = w.name(l) // again, and perhaps farther away
		if c.script == "line" && w.once(3) {
			c.owner = "" // its locker has the lock, as far as it knows
		}
	case !l.holds: // again, as it was
	default:
		c = w.goesOn(l, c)
	}
	if l.before = append(l.before, c); len(l.before) > 8 {
		l.before = l.before[1:]
	}
	return l, c
}

// usesOffer has a locker use its offer: by a request that names it, a renewal or a release.
func (w *world) usesOffer(l *member) (*member, asked) {
	owner := fmt.Sprint(l.id, ":", l.offer)
	switch offer := l.offer; w.rand.IntN(3) {
	case 0:
		w.owners++
		l.want = asked{script: "acquire", owner: fmt.Sprint("o:", w.owners), lease: w.lease(), tokens: 1, id: w.name(l), offer: offer}
		l.offer, l.holds = 0, false
		return l, l.want
	case 1:
		l.want, l.offer, l.holds, l.token = asked{script: "acquire", owner: owner, lease: w.lease(), tokens: 1, id: l.id}, 0, true, offer
		return l, asked{script: "renew", owner: owner, lease: l.want.lease}
	default:
		l.offer = 0
		return nil, asked{script: "release", owner: owner, id: []string{"", w.name(l)}[w.rand.IntN(2)]}
	}
}

// begins is the first call for a lock.
func (w *world) begins(l *member) asked {
	w.owners++
	c := asked{script: "enter", owner: fmt.Sprint("o:", w.owners), lease: w.lease(), tokens: 1, id: w.name(l)}
	if w.rand.IntN(10) < w.writers {
		c.script, c.left = "acquire", []int64{0, 50, 700, 5000}[w.rand.IntN(4)]
	} else if c.atMost = w.limits[w.rand.IntN(len(w.limits))]; c.atMost > 0 {
		c.tokens = driver.Tokens
	}
	if w.once(8) {
		c.id = ""
	}
	if c.script == "acquire" && c.id != "" && w.once(2) {
		c.script, c.line = "line", []driver.Line{driver.Newest, driver.Newest, driver.OneWaiter}[w.rand.IntN(3)]
		c.order = int64(w.owners)
	}
	return c
}

// goesOn is a call of a holder.
func (w *world) goesOn(l *member, c asked) asked {
	exclusive := l.exclusive()
	switch n := w.rand.IntN(12); {
	case n > 9:
		return w.handsOver(l, c)
	case n < 1: // repeated
	case n < 6:
		c.script, c.lease, c.offer = "stay", w.lease(), 0
		if exclusive {
			c.script = "renew"
		}
		if n == 5 {
			c.lease = 0
		}
	default:
		c.script, c.offer = "leave", 0
		if exclusive {
			c.script = "release"
		}
		if w.once(2) {
			c.id = ""
		}
		if w.once(3) {
			c.token = l.token + c.tokens - 1
			if exclusive && !w.offers {
				c.token = w.last + w.rand.Int64N(1_000_000) // handed on, faster than a clock
			}
		}
	}
	return c
}

// exclusive reports whether a member holds the lock, or wants it, alone.
func (l *member) exclusive() bool {
	return l.want.script != "enter" && (l.want.script != "move" || l.want.tokens == 0)
}

// handsOver has a holder hand the lock on to a ticket.
func (w *world) handsOver(l *member, c asked) asked {
	w.owners++
	move := asked{script: "move", owner: fmt.Sprint("o:t", w.owners), from: c.owner, lease: w.lease(), atMost: c.atMost, tokens: c.tokens}
	if l.exclusive() {
		move.tokens = 0
	}
	if w.once(2) {
		move.above = l.token + move.tokens + w.rand.Int64N(40)
	}
	if w.tickets = append(w.tickets, move); len(w.tickets) > 3 {
		w.tickets = w.tickets[1:]
	}
	return move
}

// takesOver has a member bring a ticket, which another one may have brought before.
func (w *world) takesOver(l *member) asked {
	w.owners++
	ticket := w.tickets[w.rand.IntN(len(w.tickets))]
	l.want = asked{
		script: "move", owner: fmt.Sprint("o:", w.owners), from: ticket.owner, lease: w.lease(), atMost: ticket.atMost, tokens: ticket.tokens,
	}
	if w.once(20) { // the ticket of a permit for the lock, or the other way round
		l.want.tokens = map[bool]int64{true: driver.Tokens}[l.want.tokens == 0]
	}
	if !w.once(4) {
		l.want.noted = []int64{1, 20, 60_000}[w.rand.IntN(3)]
	}
	return l.want
}

// answered compares the answer to a call, which was carried out between two instants of the server,
// with the rules. l is nil for a request that came late.
func (w *world) answered(l *member, c asked, reply any, a, b time.Time, s seen) error {
	got, ms, room, err := c.found(reply, s)
	if w.calls = append(w.calls, fmt.Sprintf("[%v,%v] %+v: %v; %+v", a.UnixMicro(), b.UnixMicro(), c, reply, s)); len(w.calls) > 16 {
		w.calls = w.calls[1:]
	}
	if err != nil {
		return err
	}
	var why string
	if w.records, why = w.agreeing(c, got, ms, room, a, b, s); len(w.records) == 0 {
		return fmt.Errorf("%s: %s\ncalls:\n%s", w.key, why, strings.Join(w.calls, "\n"))
	}
	w.follow(l, c, got)
	return nil
}

// agreeing returns the records after a call that agree with the server. If there is none, why
// names the difference.
func (w *world) agreeing(c asked, got effect, ms, room int64, a, b time.Time, s seen) (left []*candidate, why string) {
	for n, now := range instants(got, a, b) {
		if n >= 4 && len(left) > 0 {
			break // the others are for what Redis rounds
		}
		kept := 0
		for _, r := range w.records {
			before := r
			r = r.Clone()
			want, ttl, wantRoom := c.by(r, now)
			latest := b
			if now.After(b) {
				latest = now // the clock may pass the last token in between
			}
			r.adopt(c.owner, &want, got, a, latest)
			if left := before.reserved.left(now); before.reserved.lasts > 0 && left > -slack && left < slack && got.granted && want.granted {
				// The turns end now. In its last millisecond Redis refuses nobody, and has the list.
				want.q = got.q
				r.SetWaiting(driver.Waiters(got.q))
				if c.script == "enter" {
					r.protect(now)
				}
			}
			if !s.exists { // the key may have ended before it was looked at
				later := r.Clone()
				later.At(b.Add(slack))
				want.q = string(later.Waiting())
			}
			if got.code == -1 && want.code == 0 && s.exists && !s.kept && r.Free() && (c.script == "renew" || c.script == "release" || c.script == "move" && c.tokens == 0 && want.code == 0) {
				want.code = -1 // the places of others have ended, and the key has not
			}
			differs := c.agree(want, got, ttl, ms, wantRoom, room, b)
			if differs == "" && c.script == "leave" && got.code > 0 && s.exists && !s.kept && r.Free() {
				differs = "the key is there; want it deleted with the last place"
			}
			if differs == "" && kept < 8 {
				kept++
				left = append(left, r)
			}
			if why == "" {
				why = differs
			}
		}
	}
	return left, why
}

// adopt has the record go on from the tokens that the server made at another instant, which was
// between two.
func (r *Record) adopt(owner string, want *effect, got effect, a, b time.Time) {
	near := func(us, d int64) bool {
		at := time.UnixMicro(us)
		return d >= -slack.Microseconds() && d <= slack.Microseconds() && !at.Before(a) && !at.After(b)
	}
	if d := got.token - want.token; got.granted && want.granted && near(got.token, d) {
		want.token = got.token
		r.token += d
		if i := r.placeOf(owner); i >= 0 {
			r.places[i].token += d
		}
	}
	if d := got.number - want.number; want.number != 0 && near(got.number, d) {
		if n := len(r.line.came); n > 0 && want.number == r.line.newest && r.line.came[n-1].number == r.line.newest {
			r.line.newest, r.line.came[n-1].number = got.number, got.number
		}
		want.number = got.number
	}
	to, offered, contended := readOffer(want.offer)
	if id, token, more := readOffer(got.offer); id == to && id != "" && more == contended && near(token, token-offered) {
		want.offer = got.offer
		r.token, r.reserved.token, r.reserved.offer = token, token, fmt.Sprint(id, ":", token)
	}
}

// readOffer reads an offer as the harness writes it.
func readOffer(text string) (id string, token int64, contended bool) {
	id, number, _ := strings.Cut(text, "=")
	number, contended = strings.CutSuffix(number, "+")
	token, _ = strconv.ParseInt(number, 10, 64)
	return id, token, contended
}

// instants are when the server may have carried a call out. A new token is the instant of its grant,
// unless the clock lags it, and so is a new number.
func instants(got effect, a, b time.Time) (all []time.Time) {
	_, offered, _ := readOffer(got.offer)
	for _, us := range []int64{got.token, got.number, offered} {
		at := time.UnixMicro(us)
		if !at.Before(a) && !at.After(b) {
			a, b = at, at
		}
	}
	all = append(all, a, a.Add(b.Sub(a)/2), b)
	all = append(all, a.Truncate(time.Millisecond)) // of two places that end in one millisecond, the later may be there yet
	for d := time.Millisecond; d <= slack/2; d += time.Millisecond {
		all = append(all, a.Add(-d), b.Add(d))
	}
	return all
}

// follow notes what an answer says.
func (w *world) follow(l *member, c asked, got effect) {
	if id, token, _ := readOffer(got.offer); id != "" {
		if i := slices.IndexFunc(w.members, func(m *member) bool { return m.id == id }); i >= 0 {
			w.members[i].offer = token
		}
		w.last = max(w.last, token)
	}
	if got.granted {
		w.last = max(w.last, got.token+max(1, c.tokens)-1)
	}
	if c.token > 0 && got.code > 0 {
		w.last = max(w.last, c.token)
	}
	if l == nil {
		return
	}
	switch c.script {
	case "move":
		if l.want.owner != c.owner || !got.granted {
			l.want, l.holds = asked{}, false // it has handed the lock on, or brought a ticket in vain
			return
		}
		l.holds, l.token = true, got.token
	case "acquire", "enter", "line":
		if got.out {
			l.want, l.holds = asked{}, false
			return
		}
		if l.want.number = got.number; c.line == driver.OneWaiter {
			l.want.number = 1
		}
		if l.holds = got.granted; got.granted {
			l.token = got.token
		}
	case "leave", "release":
		l.want, l.holds = asked{}, false
	default:
		if got.code <= 0 {
			l.want, l.holds = asked{}, false
		}
	}
}
