//go:build long

package histories

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/trust/internal/history"
)

// productPlaces is this library again: shared locks, permits, and exclusive locks of
// the same keys. plainPlaces is made by hand without any of the defects of
// brokenPlaces.
const (
	productPlaces = "places"
	plainPlaces   = "plain places"
)

// permits is how many a key has.
const permits = 3

// hasPlaces reports whether several can hold a lock of that name.
func hasPlaces(name string) bool {
	return name == productPlaces || name == plainPlaces || slices.Contains(brokenPlaces, name)
}

// keys is how many keys a subject uses: places need more callers for each.
func (o orders) keys(name string) int {
	if hasPlaces(name) {
		return max(2, o.Keys/3)
	}
	return o.Keys
}

// hot is how many of the keys are hot: of places, two are, of either use.
func hot(name string, keys int) int {
	if hasPlaces(name) {
		return max(2, keys/8)
	}
	return max(1, keys/8)
}

// shares reports whether a key has readers and writers. The others have permits.
func shares(key uint32) bool { return key%2 == 0 }

// wayOf draws how a key is to be held. Permits and shared holds do not mix, an
// exclusive hold mixes with both.
func wayOf(key uint32, rng *rand.Rand) history.Way {
	switch {
	case shares(key) && rng.IntN(3) > 0:
		return history.Share
	case !shares(key) && rng.IntN(30) > 0:
		return history.Permit
	}
	return history.Alone
}

// doubtful reports whether callers leave in the middle at a key.
func (s *subject) doubtful(key uint32) bool {
	if s.places {
		key /= 2
	}
	return key%2 == 1
}

// placesOf judges one lock that several can hold.
func (v *verdict) placesOf(l *history.Lock, name string) {
	p := history.CheckPlaces(l, permits)
	for _, h := range l.Holds {
		if h.Release == nil {
			v.left++
		}
	}
	v.beside += p.Beside
	v.crowded += p.Crowded
	v.tokens += p.Tokens
	v.judged += p.Judged
	v.wrongly += p.Wrong
	if p.Why != "" && v.why == "" {
		v.why = fmt.Sprintf("%s: %s", name, p.Why)
	}
}

// vacancy is the finding after all holders of places had ended or were dead.
type vacancy struct {
	stuck   int           // keys with a place that was not free again in time
	surplus int           // keys that gave more permits than there are
	after   time.Duration // the last process was killed, all places were taken again
}

// vacancies has a process that comes after all others take every place of every key,
// and returns its finding for each subject. It asks from the moment on when the last
// of them was killed.
func vacancies(t *testing.T, o orders, run int, crashed time.Time) []vacancy {
	t.Helper()
	found := make([]vacancy, len(o.Subjects))
	if !slices.ContainsFunc(o.Subjects, hasPlaces) {
		return found
	}
	o.Run = run
	w := &worker{orders: o}
	client, store, err := w.open()
	if err != nil {
		t.Fatal(err)
	}
	lockers, done := w.newLockers(t, store)
	defer done()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, name := range o.Subjects {
		if !hasPlaces(name) {
			continue
		}
		for key := range uint32(o.keys(name)) {
			// A process shares a key once for all its callers: two processes.
			var lock [2]locking
			for p := range lock {
				s, err := w.subject(name, store, lockers[p], client)
				if err != nil {
					t.Fatal(err)
				}
				lock[p] = s.lock
			}
			wg.Go(func() {
				free, surplus, err := vacant(lock, name, key)
				mu.Lock()
				defer mu.Unlock()
				if took := free.Sub(crashed); err != nil || took > vacantWithin(name) {
					found[i].stuck++
					t.Logf("%s: free %v after the end of its holders: %v", keyName(name, key), took, err)
				} else {
					found[i].after = max(found[i].after, took)
				}
				if surplus {
					found[i].surplus++
				}
			})
		}
	}
	wg.Wait()
	return found
}

// vacantWithin is how long after the end of its holder a place is taken again at the
// latest: the lease, and a second. The rest is for a machine that has other work, and
// less for a lock with a defect: it may have places that are never free.
func vacantWithin(name string) time.Duration {
	if slices.Contains(brokenPlaces, name) {
		return lease + 3*time.Second
	}
	return lease + 15*time.Second
}

// locking takes a lock.
type locking func(ctx context.Context, key string, how how) (grant, error)

// patiently takes a lock although the servers may not answer, or not acknowledge it, for
// a while: that says nothing of the lock.
func (l locking) patiently(ctx context.Context, key string, how how) (grant, error) {
	for until := time.Now().Add(how.wait); ; pause(ctx, 10*time.Millisecond) {
		g, err := l(ctx, key, how)
		if err == nil || errors.Is(err, core.ErrHeld) || time.Now().After(until) {
			return g, err
		}
	}
}

// vacant takes all places of a key, and says when it had them, and whether there is one
// too many. Then it takes the lock for itself.
func vacant(lock [2]locking, name string, key uint32) (free time.Time, surplus bool, err error) {
	within := vacantWithin(name)
	ctx, name := context.Background(), keyName(name, key)
	n, way := permits, history.Permit
	if shares(key) {
		n, way = 2, history.Share
	}
	alone := how{wait: within}
	place := how{wait: within, way: way}
	if shares(key) {
		// Sharers that are dead keep only this process out.
		g, err := lock[0].patiently(ctx, name, alone)
		if err != nil {
			return time.Now(), false, fmt.Errorf("exclusive: %w", err)
		}
		free = time.Now()
		_ = g.Release(ctx) // if it is lost, it has been free
	}
	held, errs := make([]grant, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { held[i], errs[i] = lock[i%2].patiently(ctx, name, place) })
	}
	wg.Wait()
	if free.IsZero() {
		free = time.Now()
	}
	for i := range errs {
		if errs[i] != nil {
			err = fmt.Errorf("place %d of %d: %w", i+1, n, errs[i])
		}
	}
	if err == nil && !shares(key) {
		g, refused := lock[0](ctx, name, how{try: true, way: way})
		surplus = refused == nil && !slices.ContainsFunc(held, func(g grant) bool { return g.Err() != nil })
		held = append(held, g)
	}
	for _, g := range held {
		if g != nil {
			_ = g.Release(ctx) // the same
		}
	}
	if err != nil || shares(key) {
		return free, surplus, err
	}
	g, err := lock[1].patiently(ctx, name, alone)
	if err != nil {
		return free, surplus, fmt.Errorf("exclusive: %w", err)
	}
	_ = g.Release(ctx) // the same
	return free, surplus, nil
}

// wantPlaces checks the rules of places on a topology.
func wantPlaces(t *testing.T, top topology, v *verdict) {
	t.Helper()
	for way, n := range v.ways {
		if n < 5 { // a short run of a busy machine has a dozen
			t.Errorf("places: %d grants of the way %d are no test of it", n, way)
		}
	}
	if by := v.caughtBy(); top.exclusive && len(by) > 0 {
		t.Errorf("places: objected to by %v: %s", by, v.why)
	}
	if v.stuck > 0 {
		t.Errorf("%d keys have places that were not free again %v after the end of their holders", v.stuck, vacantWithin(productPlaces))
	}
	if v.surplus > 0 {
		t.Errorf("%d keys give more permits than they have", v.surplus)
	}
	if n := v.overlapsFenced + v.fencedLost + v.fencedStale; n > 0 {
		t.Errorf("places: fenced register: %d overlapping writes, %d lost, %d of stale tokens",
			v.overlapsFenced, v.fencedLost, v.fencedStale)
	}
}

// reportPlaces prints the rows of places in Markdown.
func reportPlaces(w io.Writer, rows []row) error {
	var b strings.Builder
	b.WriteString("\n| topology | operations | grants: exclusive, shared, permits | unknown outcomes | leases lost " +
		"| trusted beside an exclusive hold | permits above their number | wrong tokens | refusals judged, wrong " +
		"| acknowledged fenced writes lost | places of the dead | after the end of the holders: all places taken again, keys stuck |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %d | %d, %d, %d | %d | %d | %d | %d | %d | %d, %d | %d of %d | %d | %v, %d |\n",
			r.topology, r.operations(), r.ways[history.Alone], r.ways[history.Share], r.ways[history.Permit], r.unknown, r.lost,
			r.beside, r.crowded, r.tokens, r.judged, r.wrongly, r.fencedLost, r.fenced, r.left, round(r.after), r.stuck)
	}
	_, err := io.WriteString(w, b.String()+"\n")
	return err
}
