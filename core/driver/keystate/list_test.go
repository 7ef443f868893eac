package keystate

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// A record does not grow with all lockers that wait.
func TestAListHasABound(t *testing.T) {
	now := time.UnixMicro(1_800_000_000_000_000)
	waiter := func(i int) driver.Waiter { return driver.Waiter(fmt.Sprintf("%032x~a", i)) }
	asks := func(r *Record, i int, line driver.Line) driver.Reply {
		rep, _ := r.Acquire(driver.AcquireRequest{
			Owner: fmt.Sprintf("%032x:1", i), TTL: time.Hour, Waiter: waiter(i), Left: time.Minute, Line: line, Order: 1,
		}, now)
		return rep
	}
	var r Record
	r.Acquire(driver.AcquireRequest{Owner: "a:1", TTL: time.Hour}, now)
	for i := range 1000 {
		if rep := asks(&r, i, driver.InTurn); rep.Listed != (i < mostListed) {
			t.Fatalf("the locker %d gets %+v; expected is that the first %d are listed", i, rep, mostListed)
		}
	}
	if rep := asks(&r, 5, driver.InTurn); !rep.Listed {
		t.Errorf("a locker of a full list asks again and gets %+v; expected is that it keeps its place", rep)
	}
	if rep := asks(&r, 1000, driver.Newest); !rep.Listed || r.find(waiter(1000).ID()) != 0 || len(r.waiting) != mostListed {
		t.Errorf("the newest caller gets %+v from a full list, which has %d lockers then; expected is the first place of %d", rep, len(r.waiting), mostListed)
	}
	if text, err := r.AppendText(nil); err != nil || len(text) > 7000 {
		t.Errorf("the record of a lock with 1,000 waiting lockers has %d bytes (%v); expected are at most 7,000", len(text), err)
	}
	r.Decline(waiter(1000).ID(), now)
	found, n, err := r.Release(driver.ReleaseRequest{Owner: "a:1", Waiter: "a~a"}, func(string) bool { return false }, now)
	if calls := n.Calls; err != nil || found.Others != mostListed-1 || calls[0].To != waiter(0).ID() || r.find("a") >= 0 {
		t.Errorf("the release finds %+v, and calls %+v (%v); expected is that its locker leaves the last room to others", found, calls, err)
	}
}

// A writer that a full list has left out keeps new readers out nevertheless.
func TestAWriterThatIsNotListedKeepsPlacesOut(t *testing.T) {
	now := time.UnixMicro(1_800_000_000_000_000)
	var r Record
	reads := func(i int) driver.Reply {
		rep, _ := r.Acquire(driver.AcquireRequest{
			Owner: fmt.Sprint("r:", i), Kind: driver.Shared, TTL: time.Hour, Waiter: driver.Waiter(fmt.Sprint("r", i)),
		}, now)
		return rep
	}
	if rep := reads(0); !rep.Granted {
		t.Fatalf("the first reader gets %+v; expected is its place", rep)
	}
	for i := range mostListed {
		r.list(driver.Waiter(fmt.Sprint("w", i)), true)
	}
	rep, _ := r.Acquire(driver.AcquireRequest{Owner: "writer:1", TTL: time.Hour, Waiter: "writer", Left: time.Minute}, now)
	if rep.Granted || rep.Listed {
		t.Fatalf("the writer gets %+v; expected is a refusal that does not list it", rep)
	}
	if rep := reads(1); rep.Granted {
		t.Errorf("a reader that comes after the writer gets %+v; expected is a refusal", rep)
	}
}
