package pglock

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/host"
)

// deciding returns the change that a request makes of a row.
func deciding(base row, by rule) *change {
	return &change{key: "k", base: base, asks: []*request{{key: "k", rule: by}}}
}

// held is the row of a lock that an owner holds, with a list.
func held(t *testing.T, now time.Time, waiters ...driver.Waiter) row {
	t.Helper()
	var rec keystate.Record
	rec.Acquire(driver.AcquireRequest{Owner: "o:1", TTL: time.Hour}, now)
	for _, w := range waiters {
		rec.Acquire(driver.AcquireRequest{Owner: "of " + string(w), TTL: time.Hour, Waiter: w}, now)
	}
	text, err := rec.AppendText(nil)
	if err != nil {
		t.Fatal(err)
	}
	return row{text: string(text), at: now}
}

// A process that takes offers and has died costs the others one offer. A locker that has not been offered the lock
// for half the time of an offer is only called, and so is each locker by a store that cannot announce.
func TestOnlyALockerThatHasAskedLatelyIsOfferedTheLock(t *testing.T) {
	now := time.UnixMicro(1_800_000_000_000_000)
	for name, c := range map[string]struct {
		cfg     Config
		since   time.Duration
		offered bool
		list    driver.Waiters
	}{
		"it has just come":                {Config{Listen: quiet{}}, 0, true, "w~A,x~B"},
		"it has come lately":              {Config{Listen: quiet{}}, host.OffersAfter - 100*time.Millisecond, true, "w~A,x~B"},
		"it came long ago":                {Config{Listen: quiet{}}, host.OffersAfter + time.Millisecond, false, "w~a,x~B"},
		"the store is without a Listener": {Config{}, 0, false, "w~a,x~b"},
	} {
		s := New(nil, c.cfg)
		base := held(t, now, "w~A", "x~B")
		if c.since != 0 {
			base.since = map[string]time.Time{"w": time.Now().Add(-c.since)}
		}
		made := deciding(base, func(rec *keystate.Record, at moment, v *ruling) (n keystate.Notices) {
			s.offers(rec, at)
			v.found, n, v.err = rec.Release(driver.ReleaseRequest{Owner: "o:1"}, func(string) bool { return true }, at.now)
			return n
		})
		made.decide(moment{now: now.Add(time.Millisecond)})
		first := map[bool]driver.News{true: driver.Offered, false: driver.Turn}[c.offered]
		if all := made.calls; len(all) != 2 || all[0].To != "w" || all[0].What != first || all[1].To != "x" || made.list != c.list {
			t.Errorf("%s: called are %+v, and the list is %q; want that w is offered the lock: %v, and x has its turn, and %q", name, all, made.list, c.offered, c.list)
		}
		if made.lasts != c.offered {
			t.Errorf("%s: that the release waits for the disk is %v; want it for an offer alone", name, made.lasts)
		}
	}
}

// Requests of one process for one key share a change. A locker that one of them enters into the list hears of a release that comes after
// it in the same change.
func TestALockerIsCalledByTheChangeThatListsIt(t *testing.T) {
	now := time.UnixMicro(1_800_000_000_000_000)
	s := New(nil, Config{})
	told := waiting(t, s, "w", "another key", 0)
	wait := func(rec *keystate.Record, at moment, v *ruling) (n keystate.Notices) {
		v.rep, n = rec.Acquire(driver.AcquireRequest{Owner: "w:1", TTL: time.Hour, Waiter: "w~a"}, at.now)
		return n
	}
	c := deciding(held(t, now), wait)
	c.asks[0].waiter = "w~a"
	c.asks = append(c.asks, &request{key: "k", rule: func(rec *keystate.Record, at moment, v *ruling) (n keystate.Notices) {
		v.found, n, v.err = rec.Release(driver.ReleaseRequest{Owner: "o:1"}, func(string) bool { return true }, at.now)
		return n
	}})
	c.decide(moment{now: now.Add(time.Millisecond)})
	c.answer(s)
	if want := []driver.Call{{What: driver.Turn, Key: "k"}}; !slices.Equal(*told, want) {
		t.Errorf("the locker is called %+v; want %+v", *told, want)
	}
}

// The estimates of two answers differ. To a row that was written at the later of them, the other would look like a clock
// that was set back.
func TestAGuessIsNotEarlierThanItsRow(t *testing.T) {
	s := New(nil, Config{})
	at := time.Now().Add(time.Minute).Truncate(time.Microsecond)
	is := held(t, at)
	s.saw("k", is)
	c := deciding(row{}, func(*keystate.Record, moment, *ruling) (n keystate.Notices) { return n })
	if c.guess(s); !c.at.now.Equal(at) || c.writes {
		t.Errorf("the guess is for %v, and writes: %v; want %v, when the row was seen, and nothing to write", c.at.now, c.writes, at)
	}
}

// Of the answers of the last seconds the quickest says most about the server's clock, unless another shows that it
// was set.
func TestTheClockOfTheServerIsEstimatedByTheQuickestAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := serverClock{begin: time.Now()}
		ahead := time.Hour
		answer := func(there, back time.Duration) {
			sent := time.Now()
			time.Sleep(there)
			server := time.Now().Add(ahead)
			time.Sleep(back)
			c.saw(server, sent)
		}
		lags := func(when string, want time.Duration) {
			t.Helper()
			if got := time.Now().Add(ahead).Sub(c.now()); got != want {
				t.Errorf("%s the estimate lags by %v; want %v", when, got, want)
			}
		}
		lags("without an answer", ahead+agree)
		answer(time.Millisecond, 3*time.Millisecond)
		lags("after one answer", 3*time.Millisecond)
		answer(time.Millisecond, time.Millisecond)
		lags("after a quick one", time.Millisecond)
		answer(time.Millisecond, 30*time.Millisecond)
		lags("after a slow one", time.Millisecond)
		ahead -= time.Minute
		answer(time.Millisecond, 2*time.Millisecond)
		lags("after the clock was set back", 2*time.Millisecond)
		ahead += 2 * time.Minute
		answer(time.Millisecond, 2*time.Millisecond)
		lags("after the clock was set ahead", 2*time.Millisecond)
		time.Sleep(2 * aging)
		answer(time.Millisecond, 5*time.Millisecond)
		lags("long after", 5*time.Millisecond)
	})
}
