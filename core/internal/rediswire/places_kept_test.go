package rediswire

import (
	"fmt"
	"strings"

	"github.com/interlock-go/interlock/core/driver"
)

// kept is what the model knows about a lock that is free, and kept for the lockers of its list.
type kept struct {
	lo, hi int64 // it began at an instant between these
	ms     int64
}

func (k *kept) certain(b int64) bool  { return k != nil && b < k.lo+(k.ms-2)*1000 }
func (k *kept) possible(a int64) bool { return k != nil && a < k.hi+(k.ms+2)*1000 }

// turnOf returns after how many ms the turn of a locker begins, and the list behind it. A
// locker that is not in the list, or behind one without patience, has none.
func turnOf(q, id string) (ms int64, behind string, ok bool) {
	rest := q
	for rest != "" && id != "" {
		var e string
		e, rest, _ = strings.Cut(rest, ",")
		if bare(e) == bare(id) {
			return ms, rest, true
		}
		if !strings.Contains(e, "~") {
			break
		}
		_, patience := driver.CutPatience(e)
		ms += patience.Milliseconds()
	}
	return 0, "", false
}

// early reports whether the turn of a locker had certainly not begun.
func (k *kept) early(q, id string, b int64) bool {
	ms, _, ok := turnOf(q, id)
	return k.certain(b) && (!ok || b < k.lo+(ms-2)*1000)
}

// waits reports whether the turn of a locker may not have begun.
func (k *kept) waits(q, id string, a int64) bool {
	ms, _, ok := turnOf(q, id)
	return k.possible(a) && (!ok || a < k.hi+(ms+2)*1000)
}

// passedOver reports whether a list is what is behind a locker that had its turn. It has to be
// if the lock was certainly kept.
func (k *kept) passedOver(q, id, now string, a, b int64) (bool, error) {
	_, behind, ok := turnOf(q, id)
	if k.certain(b) && ok && now != behind {
		return false, fmt.Errorf("%q had its turn in %q, and the list is %q", id, q, now)
	}
	return k.possible(a) && ok && now == behind, nil
}

// together reports whether a locker is among the first that want places, as many as there are.
func together(q, id string, atMost int64) bool {
	for i, e := range strings.Split(q, ",") {
		switch {
		case id != "" && bare(e) == bare(id):
			return atMost == 0 || int64(i) < atMost
		case isLocker(e):
			return false
		}
	}
	return false
}

// isKept checks that a lock which became free is kept for those who were announced.
func (m *model) isKept(a, b int64, s seen) error {
	m.kept, m.barrier = nil, tenure{}
	var ms int64
	for i, e := range strings.Split(s.message, ",") {
		if i == 4 || !strings.Contains(e, "~") {
			break
		}
		_, patience := driver.CutPatience(e)
		ms += patience.Milliseconds()
	}
	switch {
	case ms == 0 && s.exists:
		return fmt.Errorf("the key is left after the last release")
	case ms == 0:
		return nil
	case s.exists && (s.lockMS > ms || s.q != s.message):
		return fmt.Errorf("kept for %d ms and %q; want %d ms and %q", s.lockMS, s.q, ms, s.message)
	case !s.exists && b < a+(ms-2)*1000:
		return fmt.Errorf("not kept for %q", s.message)
	}
	m.kept = &kept{a, b, ms}
	return nil
}

// declined checks what became of a locker that left the list.
func (m *model) declined(c asked, reply any, a, b int64, s seen) error {
	n, ok := reply.(int64)
	_, behind, listed := turnOf(m.q, c.id)
	switch {
	case !ok || n < 0 || n > 1:
		return fmt.Errorf("answer %v", reply)
	case n == 0 && b < m.keyLo && before(m.q, c.id):
		return fmt.Errorf("%q is in %q", c.id, m.q)
	case n == 0:
		return nil
	case m.kept.possible(a) && listed && s.message == behind && (behind != "" || !s.exists):
		if m.kept.early(m.q, c.id, b) {
			return fmt.Errorf("%q gave a turn away that it had not yet, in %q", c.id, m.q)
		}
		return m.isKept(a, b, s)
	case m.kept.certain(b) && listed && !m.kept.waits(m.q, c.id, a):
		return fmt.Errorf("%q declined, and %q was announced; want %q", c.id, s.message, behind)
	case s.message != "":
		return fmt.Errorf("%q was announced when %q left %q", s.message, c.id, m.q)
	}
	return m.listIs(s, a, b, func(q string) string { return remove(q, c.id) })
}
