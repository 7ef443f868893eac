package waits

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// A store that watches keys watches a key for as long as its locker waits for it.
func TestAKeyIsWatchedWhileItsLockerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watched := map[string]Told{}
		w := New(func(_, key string, _ time.Time, told Told) (stop func()) {
			watched[key] = told
			return func() { delete(watched, key) }
		})
		ask := func(key string, granted, bounded bool) {
			req := driver.AcquireRequest{Key: key, Waiter: "w"}
			w.Asked(&req, driver.Reply{Granted: granted, TTL: time.Minute, Sent: time.Now()}, nil, bounded)
		}
		ask("k", false, false)
		watched["k"]("w", 0) // before the calls begin
		var calls []driver.Call
		stop := w.Calls("w", func(c driver.Call) { calls = append(calls, c) })
		watched["k"]("a,w,b", 0)
		watched["k"]("a", 0) // it has lost its place
		watched["k"]("", 0)
		watched["k"]("+a", 1) // the place is for another
		if want := []driver.Call{
			{},
			{What: driver.Turn, Key: "k", In: 5 * time.Millisecond, Others: true},
			{What: driver.Turn, Key: "k", In: unnamed},
			{Key: "k"},
		}; !slices.Equal(calls, want) {
			t.Errorf("the locker is called %+v; want %+v", calls, want)
		}
		if ask("k", true, false); len(watched) != 0 {
			t.Errorf("%d keys are watched after the grant; want none", len(watched))
		}
		ask("old", false, true)
		time.Sleep(time.Minute + Spare + time.Second) // its locker has left, and the store does not learn of it
		if ask("new", false, true); len(watched) != 1 || watched["new"] == nil {
			t.Errorf("%d keys are watched; want only the key that was asked for last", len(watched))
		}
		if stop(); len(watched) != 0 {
			t.Errorf("%d keys are watched after the end of the calls; want none", len(watched))
		}
	})
}
