package rediswire

import (
	"fmt"
	"slices"
	"strings"

	"github.com/interlock-go/interlock/core/driver"
)

// invited checks what was announced when a place became free and others did not.
func (m *model) invited(c asked, q string, a, b int64, s seen) error {
	stands, over := m.barrier.certain(b), !m.barrier.possible(a)
	var eligible []string // that could have been called
	for e := range strings.SplitSeq(q, ",") {
		if e != "" && isLocker(e) && stands {
			break
		}
		if strings.HasPrefix(e, "+") {
			eligible = append(eligible, e)
		}
	}
	signal := signalOf(s.message)
	if signal.Now == 0 {
		switch {
		case s.message != "":
			return fmt.Errorf("announced %q, and others have places", s.message)
		case len(eligible) > 0 && (stands || over):
			return fmt.Errorf("a place became free, and nothing was announced to %q", q)
		}
	}
	if most := c.atMost - int64(m.live(b, "")); int64(signal.Now) > max(1, most) {
		return fmt.Errorf("%q announced, with at most %d places free", s.message, most)
	}
	names := strings.Split(signal.Next, ",")[:signal.Now]
	if least := min(len(eligible), int(c.atMost)-m.maybe(a, "")-strings.Count(","+q, ",-")); (stands || over) && signal.Now < least {
		return fmt.Errorf("%q announced to %q, with %d places free", s.message, q, least)
	}
	for i, e := range names {
		if (stands || over) && (i >= len(eligible) || e != eligible[i]) {
			return fmt.Errorf("%q announced to %q", s.message, q)
		}
		if !slices.Contains(strings.Split(s.q, ","), "-"+e[1:]) {
			return fmt.Errorf("%q was called, and the list is %q", e, s.q)
		}
	}
	for e := range strings.SplitSeq(q, ",") {
		kept := slices.Contains(ids(s.q), bare(e))
		if e != "" && !kept && (strings.HasPrefix(e, "+") || stands) {
			return fmt.Errorf("%q lost its place in %q", e, q)
		}
	}
	return nil
}

// What follows are lists of waiting lockers.

func isLocker(e string) bool { return !strings.HasPrefix(e, "+") && !strings.HasPrefix(e, "-") }

// bare is the id in an entry.
func bare(e string) string {
	id, _ := driver.CutPatience(strings.TrimLeft(e, "+-"))
	return id
}

func ids(q string) []string {
	all := strings.Split(q, ",")
	for i, e := range all {
		all[i] = bare(e)
	}
	return all
}

func uncalled(q string) string {
	return strings.TrimPrefix(strings.ReplaceAll(","+q, ",-", ",+"), ",")
}

func remove(q, id string) string {
	var left []string
	for e := range strings.SplitSeq(q, ",") {
		if bare(e) != bare(id) {
			left = append(left, e)
		}
	}
	return strings.Join(left, ",")
}

// replace changes what a locker wants, or enters it at the end.
func replace(q, id, sign string) string {
	all := strings.Split(q, ",")
	if i := slices.Index(ids(q), bare(id)); i >= 0 {
		all[i] = sign + id
	} else if q == "" {
		return sign + id
	} else {
		all = append(all, sign+id)
	}
	return strings.Join(all, ",")
}

// before reports whether a locker is in the list before all others that want the lock.
func before(q, id string) bool {
	for e := range strings.SplitSeq(q, ",") {
		switch {
		case id != "" && bare(e) == bare(id):
			return true
		case isLocker(e):
			return false
		}
	}
	return false
}
