package core_test

import (
	"errors"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
)

// newest are the options of a caller that takes the place of the callers before it.
var newest = []core.Option{core.Newest()}

// newestCalls are the calls with these options, in order of arrival.
type newestCalls struct {
	all   []*newestCall
	given map[int64]time.Time // when a process knew a number for the first time
	of    map[int64]int64     // the number of the grant with a token
}

// newestCall is a call of Lock.
type newestCall struct {
	p       *member
	came    time.Time
	ended   time.Time // zero: it waits
	granted bool
}

// comes notes a call of Lock. The function that it returns takes the outcome, and compares it with
// two promises: a caller that came after a number was known does not get the lock before the
// caller with the number, and a caller is refused only for a newer caller.
func (w *wakeups) comes(p *member, kind []core.Option) (ended func(*core.Lease, error)) {
	if len(kind) == 0 || &kind[0] != &newest[0] {
		return func(*core.Lease, error) {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	call := &newestCall{p: p, came: time.Now()}
	w.line.all = append(w.line.all, call)
	return func(lease *core.Lease, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		call.ended, call.granted = time.Now(), err == nil
		switch {
		case err == nil:
			given := w.line.given[w.line.of[lease.Token()]]
			if !given.IsZero() && slices.ContainsFunc(w.line.all, func(c *newestCall) bool {
				return c != call && c.granted && c.came.After(given)
			}) {
				w.fails("an earlier caller gets the lock after a newer one; want it to be superseded")
			}
		case errors.Is(err, core.ErrSuperseded) && !w.harm:
			if !slices.ContainsFunc(w.line.all, func(c *newestCall) bool { return c != call && c.mayDisplace(call) }) {
				w.fails("the newest caller is superseded; want that of earlier callers alone")
			}
		}
	}
}

// mayDisplace reports whether a caller may have been numbered after another. Between processes
// requests overtake each other.
func (c *newestCall) mayDisplace(other *newestCall) bool {
	if c.p == other.p {
		return !c.came.Before(other.came)
	}
	return c.ended.IsZero() || c.ended.After(other.came.Add(-slowMessage))
}

// numbered notes what a reply says about a caller's number.
func (w *wakeups) numbered(rep driver.Reply) driver.Reply {
	w.mu.Lock()
	defer w.mu.Unlock()
	if rep.Number == 0 {
		return rep
	}
	if w.line.given == nil {
		w.line.given, w.line.of = map[int64]time.Time{}, map[int64]int64{}
	}
	if w.line.given[rep.Number].IsZero() {
		w.line.given[rep.Number] = time.Now()
	}
	if rep.Granted {
		w.line.of[rep.Token] = rep.Number
	}
	return rep
}

// fails reports what went wrong. The caller holds w.mu.
func (w *wakeups) fails(what string) {
	w.Errorf("seed %d: %s; after %d steps. The last were\n%s", w.seed, what, w.steps, w.last())
}
