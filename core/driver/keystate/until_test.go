package keystate

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Until is the first instant when a record keeps no owner out.
func TestARecordKeepsOthersOutUntilItsEnd(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	held, kept := 0, 0
	for range 500 {
		r, now := new(Record), time.UnixMicro(1_800_000_000_000_000)
		for range 20 {
			now = now.Add(time.Duration(rnd.Int64N(1+[]int64{0, 400, 40_000}[rnd.IntN(3)])) * time.Microsecond)
			random(r, rnd, now)
			busy := func(at time.Time) bool {
				c := r.Clone()
				c.At(at)
				return !c.Free() || c.Reserved(at)
			}
			switch {
			case busy(r.Until()):
				t.Fatalf("seed %d: at its end the record keeps others out: %+v", seed, r)
			case !busy(now):
			case !busy(r.Until().Add(-time.Microsecond)):
				t.Fatalf("seed %d: before its end the record keeps no owner out: %+v", seed, r)
			case r.Free():
				kept++
			default:
				held++
			}
			if _, token, ok := r.Holder(); ok && token > r.Last() {
				t.Fatalf("seed %d: a holder has the token %d, and the last is %d", seed, token, r.Last())
			}
		}
	}
	if held < 100 || kept < 2 {
		t.Errorf("%d locks were held, and %d kept for lockers; want 100 and 2", held, kept)
	}
}

// The lockers of a list learn of a release late, and their turns begin then. A clock that was set back
// does not delay them for longer.
func TestTheTurnsOfALockBeginWhenItsLockersAreCalled(t *testing.T) {
	now := time.UnixMicro(1_800_000_000_000_000)
	r := new(Record)
	r.Acquire(driver.AcquireRequest{Owner: "a:1", TTL: time.Minute}, now)
	r.Acquire(driver.AcquireRequest{Owner: "b:1", TTL: time.Minute, Waiter: "b~a"}, now)
	r.Acquire(driver.AcquireRequest{Owner: "c:1", TTL: time.Minute, Waiter: "c~a"}, now)
	r.Delay(time.Hour) // it is held: no turn begins
	if _, _, err := r.Release(driver.ReleaseRequest{Owner: "a:1"}, nil, now); err != nil {
		t.Fatal(err)
	}
	const late = 30 * time.Millisecond
	r.Delay(late)
	second := driver.AcquireRequest{Owner: "c:1", TTL: time.Minute, Waiter: "c~a"}
	patience := second.Waiter.Patience()
	for _, c := range []struct {
		at, left time.Duration
		granted  bool
	}{{late, patience, false}, {late + patience - 1, 1, false}, {late + patience, 0, true}} {
		if rep, _ := r.Clone().Acquire(second, now.Add(c.at)); rep.Granted != c.granted || rep.TTL != c.left {
			t.Errorf("after %v the second locker gets %+v; want granted %v, else to wait for %v", c.at, rep, c.granted, c.left)
		}
	}
	if rep, _ := r.Clone().Acquire(second, now.Add(-time.Hour)); rep.TTL != patience {
		t.Errorf("an hour before, the second locker is to wait for %v; want the patience of the first, %v", rep.TTL, patience)
	}
}
