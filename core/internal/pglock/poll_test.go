package pglock

import (
	"slices"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// A look may have read the row before a release that is announced while its answer is on the way. The
// list of the row would put a locker off that the announcement has called.
func TestALookDoesNotTellAnEarlierReleaseAfterALaterOne(t *testing.T) {
	var w watches
	w.init(nil)
	var told []driver.Waiters
	began := time.Now()
	x := &watcher{wake: func(s driver.Signal) { told = append(told, s.Next) }, since: began}
	on := &topic{key: "k", watchers: map[*watcher]struct{}{x: {}}}
	row := func(called int64, list string) []row {
		return []row{{token: 1, free: true, called: called, age: -time.Hour, list: list}}
	}
	w.do(func() { w.announced(on, 2, "second") })
	w.looked([]*topic{on}, row(1, "first"), began.Add(-time.Second), time.Now())
	if want := []driver.Waiters{"second"}; !slices.Equal(told, want) {
		t.Errorf("a look that began before the announcement wakes the watcher with %q; want %q", told, want)
	}
	w.looked([]*topic{on}, row(3, "third"), time.Now(), time.Now())
	if want := []driver.Waiters{"second", "third"}; !slices.Equal(told, want) {
		t.Errorf("after a look that began later the watcher was woken with %q; want %q", told, want)
	}
}
