package casstore

import (
	"encoding/json"
	"slices"

	"github.com/interlock-go/interlock/core/driver"
)

// mostListed is how many lockers wait in line at most, so that its value stays below 16 KB. The others
// ask again after a time.
const mostListed = 120

// line is the value of the entry that has the lockers which wait. It is apart from the lock so that a
// locker that comes does not disturb the holder: a release calls the first, also while others come.
// A grant does not write it: the lock has the highest number of a locker that waits no more.
type line struct {
	Last int64    `json:"last"` // the highest number given
	All  []listed `json:"all,omitempty"`
}

// listed is a locker that waits.
type listed struct {
	Number  int64         `json:"n"`
	Name    driver.Waiter `json:"name"`              // as [keystate.Record.Waiting] has it
	Process string        `json:"process,omitempty"` // which to call; empty: not known
}

// read reads the value of a line.
func (l *line) read(e Entry) error {
	if !e.There() {
		return nil
	}
	if err := json.Unmarshal([]byte(e.Value), l); err != nil {
		return occupied(e, err)
	}
	return nil
}

// since returns the part of the line behind a number.
func (l *line) since(gone int64) []listed {
	for i, w := range l.All {
		if w.Number > gone {
			return l.All[i:]
		}
	}
	return nil
}

// names are the names in a part of a line, as a list.
func names(all []listed) driver.Waiters {
	list := make([]driver.Waiter, len(all))
	for i, w := range all {
		list[i] = w.Name
	}
	return driver.List(list...)
}

// follow makes the line follow the list of a record that was at first the line's part behind gone. It
// returns whether the line is to be written, and the highest number of a locker that is gone then.
// Lockers that keep their order keep their numbers. A new locker is of the process.
func (l *line) follow(list driver.Waiters, gone int64, process string) (write bool, nowGone int64) {
	before := l.since(gone)
	if list == "" {
		if len(before) > 0 {
			gone = before[len(before)-1].Number
		}
		return false, gone
	}
	want := slices.Collect(list.All())
	if n := len(before) - len(want); n >= 0 && names(before[n:]) == list {
		if n > 0 {
			gone = before[n-1].Number
		}
		return false, gone
	}
	was := map[string]listed{}
	for _, w := range before {
		was[w.Name.ID()] = w
	}
	all, at, fresh := make([]listed, len(want)), gone, false
	for i, name := range want {
		w, known := was[name.ID()]
		switch {
		case !known:
			l.Last++
			w, fresh = listed{Number: l.Last, Process: process}, true
		case w.Number < at || fresh:
			at = -1 // the order has changed
		}
		if w.Name = name; at >= 0 {
			at = w.Number
		}
		all[i] = w
	}
	if l.All = all; at < 0 {
		gone = l.Last
		for i := range all {
			l.Last++
			all[i].Number = l.Last
		}
	}
	return true, gone
}
