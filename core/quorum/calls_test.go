package quorum

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// A quorum watches a key for as long as a locker waits for it, and calls the locker after a release.
func TestAKeyIsWatchedWhileItsLockerWaits(t *testing.T) {
	bubble(t, 1, func(t *testing.T, nodes []*fakeNode) {
		s, node := storeOn(t, nodes), nodes[0]
		asked := func(key string, granted bool) {
			ask := driver.AcquireRequest{Key: key, Waiter: "w"}
			_, _ = s.asked(&ask, driver.Reply{Granted: granted, TTL: time.Minute, Sent: time.Now()}, nil)
		}
		watched := func() int {
			node.mu.Lock()
			defer node.mu.Unlock()
			return len(node.watched)
		}
		releases := 0
		released := func(list driver.Waiters) {
			releases++
			node.set(func(f *fakeNode) {
				for _, told := range f.watched {
					go told(string(rune('a'+releases)), list)
				}
			})
			synctest.Wait()
		}
		time.Sleep(time.Second) // since the node came
		asked("k", false)
		released("w") // before the calls begin
		var calls []driver.Call
		stop := s.Calls("w", func(c driver.Call) { calls = append(calls, c) })
		released("a,w,b")
		released("a") // it has lost its place
		if want := []driver.Call{
			{}, {What: driver.Turn, Key: "k", In: 5 * time.Millisecond, Others: true}, {What: driver.Turn, Key: "k", In: unnamed},
		}; !slices.Equal(calls, want) {
			t.Errorf("the locker is called %+v; want %+v", calls, want)
		}
		if asked("k", true); watched() != 0 {
			t.Errorf("%d keys are watched after the grant; want none", watched())
		}
		asked("old", false)
		time.Sleep(time.Minute + spare + time.Second) // its locker has left, and the store does not learn of it
		if asked("new", false); watched() != 1 || s.waits.keys[place{"w", "new"}] == nil {
			t.Errorf("%d keys are watched; want only the key that was asked for last", watched())
		}
		if stop(); watched() != 0 {
			t.Errorf("%d keys are watched after the end of the calls; want none", watched())
		}
	})
}
