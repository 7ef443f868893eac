//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/drawn"
)

// rulesStall is the longest time between two looks at a row with a call between them that is
// compared: the rules are asked at a few instants of that time.
const rulesStall = 20 * time.Millisecond

// rulesLonger is how much longer than it was asked for a renewal may make a lease.
const rulesLonger = 500 * time.Millisecond

// rulesWorld is a key, and lockers that make random requests for it. Before each request the test
// reads the row. Then the rules carry the same request out on the record that the row says, at an
// instant before the next look at the row. The answer and the row must be as they say.
type rulesWorld struct {
	store   *pgstore.Store
	db      *sql.DB
	key     string
	rand    *rand.Rand
	writers int // of ten requests so many are exclusive
	owners  int
	holders []driver.AcquireRequest // granted lately, or asked for
	before  []call
	notes   keystate.Notes
}

// asks has the fields of requests that the worlds draw.
var asks drawn.Fields[driver.AcquireRequest]

// call is a request, to the store and to the rules.
type call struct {
	what  string
	store func(ctx context.Context, s *pgstore.Store) verdict
	rules func(r *keystate.Record, now time.Time) (verdict, keystate.Notices, error)
	owner string // about whom there may be a note
	moves bool
}

// verdict is the answer to a request.
type verdict struct {
	rep       driver.Reply
	contended bool
	err       string
}

func answer(rep driver.Reply, contended bool, err error) verdict {
	holders := strings.Split(rep.Holder, ",")
	slices.Sort(holders)
	rep.Holder, rep.Sent, rep.Ambiguous = strings.Join(holders, ","), time.Time{}, false
	return verdict{rep, contended, name(err)}
}

func name(err error) string {
	for _, is := range []error{driver.ErrPassedOn, driver.ErrRevoked, driver.ErrTakenOver, driver.ErrDeleted, err} {
		if err != nil && errors.Is(err, is) {
			return is.Error()
		}
	}
	return ""
}

func (w *rulesWorld) once(in int) bool { return w.rand.IntN(in) == 0 }

func (w *rulesWorld) next() call {
	if len(w.before) > 0 && w.once(20) {
		return w.before[w.rand.IntN(len(w.before))] // repeated, or late
	}
	c := w.request()
	if w.before = append(w.before, c); len(w.before) > 8 {
		w.before = w.before[1:]
	}
	return c
}

func (w *rulesWorld) request() call {
	id := fmt.Sprint("w", w.rand.IntN(6))
	// Each locker says how long it may take, as a Locker does on a store with turns.
	patience := time.Duration(1+w.rand.IntN(60)) * time.Millisecond
	req := driver.AcquireRequest{
		Key: w.key, Kind: driver.Kind(1 + w.rand.IntN(2)), AtMost: 1 + w.rand.IntN(3),
		TTL:    time.Duration(1+w.rand.Int64N([]int64{30_000, 300_000, 3_000_000}[w.rand.IntN(3)])) * time.Microsecond,
		Waiter: driver.NewWaiter(id, driver.Exclusive, patience),
	}
	if w.rand.IntN(10) < w.writers {
		req.Kind, req.AtMost, req.Left = driver.Exclusive, 0, time.Duration(w.rand.IntN(2))*time.Second
		if w.once(30) {
			req.Line, req.Order = driver.Line(1+w.rand.IntN(2)), int64(w.owners)
		}
	}
	w.owners++
	if req.Owner = fmt.Sprint(id, ":", w.owners); w.once(20) {
		req.Owner = driver.Attentive(req.Owner)
	}
	n := w.rand.IntN(14)
	if n < 7 || len(w.holders) == 0 {
		return w.acquires(req)
	}
	h := w.holders[w.rand.IntN(len(w.holders))]
	switch n {
	case 7, 8:
		return renews(driver.Renewal{Key: w.key, Owner: h.Owner, Kind: h.Kind, TTL: req.TTL + rulesLonger, Asked: true})
	case 9:
		return declines(w.key, req.Waiter.ID())
	case 10:
		req.From, req.Kind, req.AtMost, req.Waiter, req.Line, req.Order = h.Owner, h.Kind, h.AtMost, "", 0, 0
		if w.once(4) {
			req.Above = time.Now().Add(time.Hour).UnixMicro() + int64(w.owners)
		}
		req.Noted = []time.Duration{0, time.Millisecond, 50 * time.Millisecond, time.Minute}[w.rand.IntN(4)]
		return w.acquires(req)
	}
	release := driver.ReleaseRequest{Key: w.key, Owner: h.Owner, Kind: h.Kind, AtMost: h.AtMost}
	if w.once(3) {
		release.Waiter = req.Waiter
	}
	if w.once(6) {
		release.Revoked = []time.Duration{time.Millisecond, time.Minute}[w.rand.IntN(2)]
	}
	return releases(release)
}

func (w *rulesWorld) acquires(req driver.AcquireRequest) call {
	if w.holders = append(w.holders, req); len(w.holders) > 5 {
		w.holders = w.holders[1:]
	}
	stands := req.Line != driver.InTurn && w.once(3)
	if stands {
		req.Owner = ""
	}
	asks.Note(req)
	return call{fmt.Sprintf("acquires %+v", req), func(ctx context.Context, s *pgstore.Store) verdict {
		ask := s.Acquire
		if stands {
			ask = s.Stand
		}
		rep, err := ask(ctx, req)
		return answer(rep, false, err)
	}, func(r *keystate.Record, now time.Time) (_ verdict, n keystate.Notices, err error) {
		var rep driver.Reply
		switch {
		case req.From != "":
			rep, n, err = r.Move(req, now)
		case stands:
			rep, n = r.Stand(req, now)
		default:
			rep, n = r.Acquire(req, now)
		}
		return answer(rep, false, nil), n, err
	}, req.From, true}
}

func renews(req driver.Renewal) call {
	return call{fmt.Sprintf("renews %+v", req), func(ctx context.Context, s *pgstore.Store) (a verdict) {
		s.Renew(ctx, []driver.Renewal{req}, func(_ int, contended bool, err error) { a = answer(driver.Reply{}, contended, err) })
		return a
	}, func(r *keystate.Record, now time.Time) (verdict, keystate.Notices, error) {
		contended, err := r.Renew(req, now)
		return answer(driver.Reply{}, contended, nil), keystate.Notices{}, err
	}, req.Owner, false}
}

func releases(req driver.ReleaseRequest) call {
	return call{fmt.Sprintf("releases %+v", req), func(ctx context.Context, s *pgstore.Store) verdict {
		found, err := s.Release(ctx, req)
		return answer(driver.Reply{Note: fmt.Sprint(found)}, false, err)
	}, func(r *keystate.Record, now time.Time) (verdict, keystate.Notices, error) {
		found, n, err := r.Release(req, func(string) bool { return false }, now)
		return answer(driver.Reply{Note: fmt.Sprint(found)}, false, nil), n, err
	}, req.Owner, false}
}

func declines(key, waiter string) call {
	return call{"declines " + waiter, func(ctx context.Context, s *pgstore.Store) verdict {
		return answer(driver.Reply{}, false, s.Decline(ctx, key, waiter))
	}, func(r *keystate.Record, now time.Time) (verdict, keystate.Notices, error) {
		return verdict{}, r.Decline(waiter, now), nil
	}, "", false}
}

// found is the record of a row, as it was at an instant of the server.
type found struct {
	text string
	at   time.Time
}

func (w *rulesWorld) look(ctx context.Context) (f found, err error) {
	var at int64
	err = w.db.QueryRowContext(ctx, `SELECT coalesce(record, ''), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
		FROM (SELECT) one LEFT JOIN interlock_lock ON key = $1`, []byte(w.key)).Scan(&f.text, &at)
	f.at = time.UnixMicro(at)
	return f, err
}

// record returns the record that a row says.
func (f found) record() (*keystate.Record, error) {
	r := new(keystate.Record)
	if f.text == "" {
		return r, nil
	}
	return r, r.UnmarshalText([]byte(f.text))
}

// step makes a call. It reports false if the call took too long to be compared.
func (w *rulesWorld) step(ctx context.Context) (compared bool, err error) {
	c := w.next()
	a, err := w.look(ctx)
	if err != nil {
		return false, err
	}
	got := c.store(ctx, w.store)
	b, err := w.look(ctx)
	if err != nil {
		return false, err
	}
	if b.at.Sub(a.at) > rulesStall {
		return false, nil
	}
	var why error
	for _, now := range instants(a.at, b.at, got) {
		if err := w.differs(c, a, b, got, now); err == nil {
			return true, nil
		} else if why == nil {
			why = err
		}
	}
	return true, fmt.Errorf("%s, between %d and %d: %w\nthe row was %+v\nand is     %+v", c.what, a.at.UnixMicro(), b.at.UnixMicro(), why, a, b)
}

// instants are when the store may have carried a request out: a new token or number is that instant. The store's
// estimate of the clock may lag.
func instants(a, b time.Time, got verdict) (all []time.Time) {
	a = a.Add(-rulesStall / 2)
	for _, us := range []int64{got.rep.Token, got.rep.Number} {
		if at := time.UnixMicro(us); !at.Before(a) && !at.After(b) {
			all = append(all, at)
		}
	}
	for i := range 65 {
		all = append(all, b.Add(-b.Sub(a)*time.Duration(i)/64))
	}
	return all
}

// differs says where the rules, at an instant, differ from the answer and the row of the store.
func (w *rulesWorld) differs(c call, a, b found, got verdict, now time.Time) error {
	r, err := a.record()
	if err != nil {
		return err
	}
	want, notices, err := c.rules(r, now)
	for _, off := range []time.Duration{0, -2 * rulesStall, 2 * rulesStall} { // of the end of a note
		if want.err = name(w.notes.Explain(err, w.key, c.owner, c.moves, now.Add(off))); want.err == got.err {
			break
		}
	}
	if !got.rep.Granted {
		got.rep.Token, want.rep.Token = 0, 0 // it is of use for offers alone
	}
	near := func(x, y int64) bool { return max(x-y, y-x) <= (2 * rulesStall).Microseconds() }
	if g, w := &got.rep, &want.rep; near(g.Token, w.Token) && near(g.Number, w.Number) && near(g.TTL.Microseconds(), w.TTL.Microseconds()) {
		g.Token, g.Number, g.TTL, g.Room = w.Token, w.Number, w.TTL, w.Room
	}
	if got != want {
		return fmt.Errorf("it verdict %+v; want %+v", got, want)
	}
	is, err := b.record()
	if err != nil {
		return err
	}
	var wants, has map[string]any
	for into, rec := range map[*map[string]any]*keystate.Record{&wants: r, &has: is} {
		rec.At(b.at)
		text, err := rec.AppendText(nil)
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			return err
		}
	}
	within := 2 * rulesStall
	if strings.HasPrefix(c.what, "renews") {
		within += rulesLonger
	}
	if !alike(has, wants, within) {
		return fmt.Errorf("the record is %v; want %v", has, wants)
	}
	w.notes.Note(w.key, c.owner, notices, now)
	return nil
}

// alike compares values of JSON. Numbers are instants and tokens.
func alike(x, y any, within time.Duration) bool {
	same := func(x, y any) bool { return alike(x, y, within) }
	switch x := x.(type) {
	case float64:
		y, ok := y.(float64)
		return ok && max(x-y, y-x) <= float64(within.Microseconds())
	case []any:
		y, ok := y.([]any)
		return ok && slices.EqualFunc(x, y, same)
	case map[string]any:
		y, ok := y.(map[string]any)
		return ok && maps.EqualFunc(x, y, same)
	}
	return x == y
}

func TestTheStoreKeepsTheRulesOfLocks(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	seed := uint64(time.Now().UnixNano())
	var calls, slow atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			store, worlds := newStore(t, db), rand.New(rand.NewPCG(seed, uint64(i)))
			for life := 0; calls.Load() < rulesCalls; life++ {
				w := &rulesWorld{
					store: store, db: db, key: fmt.Sprint("k", i, "/", life), rand: worlds, writers: []int{2, 8, 9, 10}[worlds.IntN(4)],
				}
				for n := 0; n < 50; n++ {
					switch compared, err := w.step(t.Context()); {
					case err != nil:
						t.Errorf("seed %d: %v", seed, err)
						calls.Store(rulesCalls)
						return
					case compared:
						calls.Add(1)
					default:
						slow.Add(1)
						n = 50 // it is not known what was noted
					}
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d calls compared, %d were too slow", calls.Load(), slow.Load())
	// Offers and numbers of lines are in the plays of package drivertest: a world has no locker that remembers them.
	asks.WantAll(t, "Offer", "Number", "Deadline", "Late")
}
