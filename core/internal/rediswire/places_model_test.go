package rediswire

import (
	"fmt"
	"slices"
	"strings"
)

// The model of places: what the promises allow a server to answer. It knows nothing of
// the layout in Redis, except for the list of the waiting lockers, which it reads after
// each call. Instants are the server's, in µs. A call was carried out at an instant
// between two that are known, so that a hold is certainly live, certainly over, or
// possibly either; then the answer decides.

// tenure is what an owner has.
type tenure struct {
	token  int64
	lo, hi int64 // it ends at an instant between these
}

func (h *tenure) certain(b int64) bool  { return h != nil && b < h.lo }
func (h *tenure) possible(a int64) bool { return h != nil && a < h.hi }

// extend moves the end on for a lease that began between two instants. A server may
// count in whole milliseconds.
func (h *tenure) extend(a, b, ms int64) {
	h.lo, h.hi = max(h.lo, a+(ms-1)*1000), max(h.hi, b+(ms+2)*1000)
}

// model is one key.
type model struct {
	kept      *kept // of a lock that is free
	exclusive *tenure
	holder    string // of exclusive
	places    map[string]*tenure
	newest    int64  // the number of the last caller that came as the newest
	last      int64  // the greatest token
	fence     int64  // what the fence is at least
	barrier   tenure // its end
	q         string // as it was read last
	keyLo     int64  // until when the key is certainly kept for the list's sake
	keyHi     int64  // from when it is certainly gone
}

// asked is a call of a script.
type asked struct {
	script string
	owner  string
	lease  int64
	atMost int64
	tokens int64
	rest   string
	id     string
	left   int64
	token  int64 // of a release that remembers; else 0
	newest bool  // of line.lua
	number int64 // likewise
}

// seen is what was found right after a call.
type seen struct {
	message         string
	q               string
	exists          bool
	lockMS, fenceMS int64 // as PTTL tells
	fence           int64 // the token
}

func (m *model) live(b int64, but string) (n int) {
	for owner, h := range m.places {
		if owner != but && h.certain(b) {
			n++
		}
	}
	return n
}

func (m *model) maybe(a int64, but string) (n int) {
	for owner, h := range m.places {
		if owner != but && h.possible(a) {
			n++
		}
	}
	return n
}

// check compares the answer to a call with the promises.
func (m *model) check(c asked, reply any, a, b int64, s seen) error {
	var err error
	reply, room := roomy(reply)
	switch list, refused := reply.([]any); {
	case refused && (c.script == "acquire" || c.script == "enter"):
		err = m.refused(c, list, a, b, s)
	case c.script == "acquire":
		err = m.acquired(c, reply, a, b, s)
	case c.script == "enter":
		err = m.entered(c, reply, a, b, s)
	case c.script == "stay" || c.script == "renew":
		err = m.renewed(c, reply, a, b, s)
	case c.script == "decline":
		err = m.declined(c, reply, a, b, s)
	default:
		err = m.left(c, reply, a, b, s)
	}
	if err != nil {
		return err
	}
	if room > 0 {
		m.last = max(m.last, m.exclusive.token+room) // a hand-off may have it
	}
	m.q = s.q
	if !s.exists {
		m.barrier = tenure{} // it went with the key
	}
	if s.exists && s.lockMS == -1 || s.fenceMS == -1 {
		return fmt.Errorf("a key has no expiry")
	}
	if s.fence < m.fence {
		return fmt.Errorf("the fence is %d, below the token %d", s.fence, m.fence)
	}
	// What waits must still be known a second after the holders have crashed.
	m.keyLo, m.keyHi = 0, b+(s.lockMS+2)*1000
	for _, h := range m.places {
		if h.certain(b) {
			m.keyLo = max(m.keyLo, h.lo+1_000_000)
		}
	}
	if s.exists && m.keyLo > 0 && b+(s.lockMS+2)*1000 < m.keyLo {
		return fmt.Errorf("the list does not outlive the places: the key ends in %d ms", s.lockMS)
	}
	m.keyLo = max(m.keyLo, a+(s.lockMS-1)*1000)
	return nil
}

// minted takes new tokens.
func (m *model) minted(token, tokens int64) error {
	if token <= m.last {
		return fmt.Errorf("token %d follows %d", token, m.last)
	}
	m.last = token + tokens - 1
	m.fence = m.last
	return nil
}

func (m *model) acquired(c asked, reply any, a, b int64, s seen) error {
	token, ok := reply.(int64)
	switch {
	case !ok:
		return fmt.Errorf("answer %v", reply)
	case m.holder == c.owner && m.exclusive != nil && m.exclusive.token == token:
		if !m.exclusive.possible(a) {
			return fmt.Errorf("a lease that had ended is revived")
		}
		return nil
	case m.holder == c.owner && m.exclusive.certain(b):
		return fmt.Errorf("the holder got another token")
	case m.exclusive.certain(b) || m.live(b, "") > 0:
		return fmt.Errorf("granted exclusively beside %q and %d places", m.holder, m.live(b, ""))
	case m.kept.early(m.q, c.id, b) && !c.newest:
		return fmt.Errorf("granted to %q before its turn in %q", c.id, m.q)
	}
	if err := m.minted(token, 1); err != nil {
		return err
	}
	passed, err := m.kept.passedOver(m.q, c.id, s.q, a, b)
	if m.kept = nil; err != nil && !c.newest {
		return err
	}
	err = m.listIs(s, a, b, func(q string) string {
		if left := remove(q, c.id); left != "" {
			return uncalled(left)
		}
		return c.rest
	})
	if err != nil && !passed && (s.exists || b < a+(c.lease-1)*1000) {
		return err // even the new lease has not ended
	}
	m.exclusive, m.holder, m.places, m.barrier = &tenure{token: token}, c.owner, map[string]*tenure{}, tenure{}
	m.exclusive.extend(a, b, c.lease)
	return nil
}

func (m *model) entered(c asked, reply any, a, b int64, s seen) error {
	token, ok := reply.(int64)
	p := m.places[c.owner]
	switch {
	case !ok:
		return fmt.Errorf("answer %v", reply)
	case p != nil && p.token == token:
		if !p.possible(a) {
			return fmt.Errorf("a place that had ended is revived")
		}
		return m.same(s.q)
	case p.certain(b):
		return fmt.Errorf("the holder of a place got another token")
	case m.exclusive.certain(b):
		return fmt.Errorf("a place beside the exclusive holder %q", m.holder)
	case c.atMost > 0 && int64(m.live(b, c.owner)) >= c.atMost:
		return fmt.Errorf("a place beside %d others; at most %d", m.live(b, c.owner), c.atMost)
	case m.kept.early(m.q, c.id, b) && !together(m.q, c.id, c.atMost):
		return fmt.Errorf("a place for %q before its turn in %q", c.id, m.q)
	case m.barrier.certain(b) && b < m.keyLo && !before(m.q, c.id):
		return fmt.Errorf("a place ahead of an exclusive locker: %q is not before it in %q", c.id, m.q)
	}
	if err := m.minted(token, c.tokens); err != nil {
		return err
	}
	passed, err := m.kept.passedOver(m.q, c.id, s.q, a, b)
	if m.kept = nil; err != nil && !together(m.q, c.id, c.atMost) {
		return err
	}
	if err := m.listIs(s, a, b, func(q string) string {
		if q == "" {
			return c.rest
		}
		return remove(q, c.id)
	}); err != nil && !passed {
		return err
	}
	if b >= m.keyLo && m.maybe(a, "") == 0 {
		m.barrier.lo = 0 // it may have gone with the key
	}
	m.exclusive, m.holder = nil, ""
	m.places[c.owner] = &tenure{token: token}
	m.places[c.owner].extend(a, b, c.lease)
	return nil
}

func (m *model) refused(c asked, list []any, a, b int64, s seen) error {
	place := c.script == "enter"
	if n := len(list); n != 4 && (n != 3 || place) {
		return fmt.Errorf("answer %v", list)
	}
	names, _ := list[0].(string)
	n := numbers(list)
	ms, full := n[1], place && n[3] == 1
	beside, own := m.exclusive.possible(a), m.places[c.owner]
	if !place && m.holder == c.owner {
		own = m.exclusive
	}
	switch free := c.atMost == 0 || int64(m.maybe(a, c.owner)) < c.atMost; {
	case own.certain(b):
		return fmt.Errorf("refused to the holder")
	case !place && !beside && m.maybe(a, "") == 0 && (c.newest || !m.kept.waits(m.q, c.id, a)):
		return fmt.Errorf("a free lock is refused")
	case m.kept.waits(m.q, c.id, a) && !c.newest && (!place || !together(m.q, c.id, c.atMost)): // it is kept for others
		if ms < 1 || ms > 4000 || c.id != "" && n[2] != 1 || names != "" && !beside && m.maybe(a, "") == 0 {
			return fmt.Errorf("a kept lock: %v", list)
		}
	case full && free:
		return fmt.Errorf("called full with at most %d places of %d", m.maybe(a, c.owner), c.atMost)
	case place && !full && !beside && c.atMost > 0 && int64(m.live(b, c.owner)) >= c.atMost:
		return fmt.Errorf("not called full with %d places of %d", m.live(b, c.owner), c.atMost)
	case place && !full && !beside && (!m.barrier.possible(a) || before(m.q, c.id) && b < m.keyLo):
		return fmt.Errorf("a free place is refused: %q in %q", c.id, m.q)
	case c.id != "" && n[2] != 1:
		return fmt.Errorf("%q is not listed", c.id)
	case ms < 1 && !beside, ms > 1000 && !beside, beside && ms > 1000 && ms*1000 > m.exclusive.hi-a+2000:
		return fmt.Errorf("to ask again in %d ms", ms)
	}
	for name := range strings.SplitSeq(names, ",") {
		if name != "" && !m.places[name].possible(a) && (name != m.holder || !m.exclusive.possible(a)) {
			return fmt.Errorf("%q is named as a holder in %q", name, names)
		}
	}
	for name, h := range m.places {
		if h.certain(b) && m.maybe(a, "") <= 16 && !slices.Contains(strings.Split(names, ","), name) {
			return fmt.Errorf("%q is not named as a holder in %q", name, names)
		}
	}
	sign := ""
	if place {
		sign = "+"
	}
	if !place && c.id != "" && c.left > 0 && m.maybe(a, "") > 0 {
		til := min(c.left, 1500)
		if m.live(b, "") > 0 {
			m.barrier.lo = max(m.barrier.lo, a+(til-1)*1000)
		}
		m.barrier.hi = max(m.barrier.hi, b+(til+1)*1000)
	}
	return m.listIs(s, a, b, func(q string) string {
		if c.id == "" {
			return q
		}
		if c.newest {
			return strings.TrimSuffix(c.id+","+remove(q, c.id), ",")
		}
		return replace(q, c.id, sign)
	})
}

func (m *model) renewed(c asked, reply any, a, b int64, s seen) error {
	h, beside := m.places[c.owner], m.exclusive
	if c.script == "renew" {
		h, beside = nil, nil
		if m.holder == c.owner {
			h = m.exclusive
		}
	}
	switch n, ok := reply.(int64); {
	case !ok || n < -1 || n > 2:
		return fmt.Errorf("answer %v", reply)
	case n <= 0 && h.certain(b):
		return fmt.Errorf("a live hold is denied")
	case n <= 0 && c.script == "stay" && (n == 0 && beside.certain(b) || n < 0 && !beside.possible(a) && !m.kept.possible(a)):
		return fmt.Errorf("answer %d; exclusive holder %q", n, m.holder)
	case n > 0 && !h.possible(a):
		return fmt.Errorf("a hold that has ended is renewed")
	case n > 0 && (n == 2) != (s.q != "") && s.exists:
		return fmt.Errorf("answer %d with the list %q", n, s.q)
	case n > 0 && c.lease > 0:
		h.extend(a, b, c.lease)
	}
	if m.exclusive.certain(b) || m.live(b, "") > 0 {
		return m.same(s.q)
	}
	return nil
}

func (m *model) left(c asked, reply any, a, b int64, s seen) error {
	h := m.places[c.owner]
	if c.script == "release" {
		h = nil
		if m.holder == c.owner {
			h = m.exclusive
		}
	}
	n, ok := reply.(int64)
	if c.script == "release" {
		waiting, isList := listed(reply)
		if want := s.message != "" && strings.Join(ids(s.message), ",") != bare(c.id); isList != want || isList && waiting != s.message {
			return fmt.Errorf("answer %v, announced %q", reply, s.message)
		}
		if isList {
			n, ok = 1, true
		}
	}
	switch {
	case !ok || n < -1 || n > 1:
		return fmt.Errorf("answer %v", reply)
	case n <= 0 && h.certain(b):
		return fmt.Errorf("a live hold is denied")
	case n > 0 && !h.possible(a):
		return fmt.Errorf("a hold that has ended is released")
	case n <= 0 && s.message != "" && h == nil:
		return fmt.Errorf("an owner without a hold announces %q", s.message)
	}
	delete(m.places, c.owner)
	if n > 0 && c.script == "release" {
		m.exclusive, m.holder = nil, ""
	}
	if n > 0 && c.token > 0 {
		m.last = max(m.last, c.token)
		if m.fence = m.last; c.script == "release" {
			m.fence = c.token // no other owner has got one since
		}
	}
	q := m.q
	if c.id != "" && !slices.Contains(ids(q), bare(c.id)) {
		sign := ""
		if c.script == "leave" {
			sign = "+"
		}
		q = replace(q, c.id, sign)
	}
	free := s.message != "" && !partial(s.message)
	switch {
	case n <= 0 && free:
		return m.isKept(a, b, s)
	case n <= 0:
		return nil // what it may have swept away was checked by its message
	case m.maybe(a, "") == 0:
		if s.message != uncalled(q) {
			return fmt.Errorf("the lock became free and %q was announced; the list is %q", s.message, q)
		}
		return m.isKept(a, b, s)
	case m.live(b, "") == 0 && free:
		return m.isKept(a, b, s)
	case m.live(b, "") == 0:
		return nil // either is right
	}
	return m.invited(c, q, a, b, s)
}

// same checks that the list is what it was.
func (m *model) same(q string) error {
	if q != m.q {
		return fmt.Errorf("the list was %q and is %q", m.q, q)
	}
	return nil
}

// listIs checks the list after a call. If the key may have expired before, so may
// the list.
func (m *model) listIs(s seen, a, b int64, after func(string) string) error {
	kept, lost := after(m.q), after("")
	if s.q == kept && a < m.keyHi || (s.q == lost || !s.exists) && b >= m.keyLo {
		return nil
	}
	return fmt.Errorf("the list was %q and is %q; want %q, or %q if the key has expired", m.q, s.q, kept, lost)
}
