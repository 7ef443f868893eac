package casstore

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/interlock-go/interlock/core/driver"
)

// perRevision is how many numbers of lockers a revision has. A locker that comes has a number of the revision of its
// entry, so lockers come into line without a look at each other.
const perRevision = 1 << 8

// line has the lockers that wait, in the order of their numbers. Each has an entry, which its process writes and
// deletes. Where a rule changes the order, or the knowledge of a locker of another process, all of
// them are written into one entry: see [line.UpTo]. A grant writes neither: the lock has the highest number
// of a locker that waits no more.
type line struct {
	UpTo int64    `json:"upto"` // entries of lockers up to this number are void
	All  []listed `json:"all,omitempty"`
}

// listed is a locker that waits.
type listed struct {
	Number  int64         `json:"n,omitempty"`       // zero: a number of the entry's revision
	Name    driver.Waiter `json:"name"`              // as [keystate.Record.Waiting] has it
	Process string        `json:"process,omitempty"` // which to call; empty: not known
	At      int64         `json:"at,omitempty"`      // in a call, the number and the version of the revision of its entry
	Version int64         `json:"version,omitempty"`
	apart   bool          // it has an entry of its own
}

// read reads the entries of a line. The one with all lockers has a name that ends with allPart.
func (l *line) read(entries []Entry) error {
	for _, e := range entries {
		if strings.HasSuffix(e.Name, "/"+allPart) {
			if err := json.Unmarshal([]byte(e.Value), l); err != nil {
				return occupied(e, err)
			}
		}
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name, "/"+allPart) {
			continue
		}
		w := listed{apart: true}
		if err := json.Unmarshal([]byte(e.Value), &w); err != nil {
			return occupied(e, err)
		}
		if w.Number == 0 {
			w.Number = e.Revision.Number*perRevision + 1
		}
		if e.There() {
			w.At, w.Version = e.Revision.Number, e.Revision.Version
		}
		if w.Number > l.UpTo {
			l.All = append(l.All, w)
		}
	}
	slices.SortFunc(l.All, func(a, b listed) int { return cmp.Compare(a.Number, b.Number) })
	last := map[string]int64{}
	for _, w := range l.All {
		last[w.Name.ID()] = w.Number
	}
	l.All = slices.DeleteFunc(l.All, func(w listed) bool { return w.Number < last[w.Name.ID()] }) // it has come again
	return nil
}

// since returns the part of the line after a number.
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

// find returns where a locker stands in a part of a line; negative if it is not there.
func find(all []listed, id string) int {
	return slices.IndexFunc(all, func(w listed) bool { return w.Name.ID() == id })
}

// order is what a rule has changed in the line.
type order struct {
	all   []listed // the lockers that wait now
	gone  int64    // the highest number of a locker that is gone
	ops   []Op     // on the entry of the locker that asks
	comes bool     // that locker comes into line: all that look have to notice
	whole bool     // the line is written into one entry
}

// reorder makes the line follow the list of the record, which was at first the line's part after gone.
func (v *view) reorder() (o order) {
	before, want := v.line.since(v.gone), slices.Collect(v.rec.Waiting().All())
	o.gone = v.gone
	was := map[string]listed{}
	for _, w := range before {
		was[w.Name.ID()] = w
	}
	for _, name := range want {
		w, known := was[name.ID()]
		switch {
		case known && name.ID() != v.own && name.LeavingOffers() == w.Name.LeavingOffers(): // that no offer is made to it now is not written
			name = w.Name
		case known:
		default:
			w.Process, w.apart = v.process, name.ID() == v.own
		}
		w.Name = name
		o.all = append(o.all, w)
	}
	own, entry := find(o.all, v.own), v.names.waits(v.key, v.own)
	if w := was[v.own]; v.place && own < 0 && w.apart {
		o.ops = []Op{{Name: entry, Delete: true}} // and the lock stays as it is
		before = slices.DeleteFunc(slices.Clone(before), func(w listed) bool { return w.Name.ID() == v.own })
	}
	// The first ones may be gone.
	for len(before) > 0 && find(o.all, before[0].Name.ID()) < 0 {
		o.gone, before = before[0].Number, before[1:]
	}
	if w := was[v.own]; !v.place && own < 0 && w.apart {
		o.ops = []Op{{Name: entry, Delete: true}}
		before = slices.DeleteFunc(slices.Clone(before), func(w listed) bool { return w.Name.ID() == v.own })
	}
	if slices.Equal(before, o.all) {
		return o
	}
	if own >= 0 && o.all[own].apart {
		i, rest := find(before, v.own), slices.Delete(slices.Clone(o.all), own, own+1)
		if i >= 0 {
			before = slices.Delete(slices.Clone(before), i, i+1)
		}
		if i != own {
			o.all[own].Number = 0
		}
		if slices.Equal(before, rest) && (i == own || own == len(rest)) {
			mine := o.all[own]
			mine.At, mine.Version = 0, 0
			o.comes, o.ops = i != own, []Op{{Name: entry, Value: mine.text()}}
			return o
		}
	}
	o.whole, o.comes, o.ops = true, true, nil
	first := v.newest()*perRevision + 2
	for i := range o.all {
		o.all[i].Number, o.all[i].apart, o.all[i].At, o.all[i].Version = first+int64(i), false, 0, 0
	}
	text, _ := json.Marshal(line{UpTo: first - 1, All: o.all}) // it never fails for such a type
	o.ops = []Op{{Name: v.names.inOne(v.key), Value: string(text)}}
	return o
}

// newest is the highest revision in the view.
func (v *view) newest() int64 {
	n := max(v.at.lock.Revision.Number, v.at.line.Revision.Number, v.gone/perRevision)
	for _, w := range v.line.All {
		n = max(n, w.Number/perRevision)
	}
	return n
}

// entry is the condition that the entry of a locker is as it was.
func (l layout) entry(key string, w listed) Condition {
	return Condition{l.waits(key, w.Name.ID()), Revision{Number: w.At, Version: w.Version}}
}

func (w listed) text() string {
	text, _ := json.Marshal(w) // it never fails for such a type
	return string(text)
}

// part is the beginning of the line for the process that is called: it calls the next ones without a look at the line.
// It ends where a locker may be missing: at a locker without a number, and at a locker after the known part.
func (v *view) part(o order) []listed {
	all := o.all[:min(len(o.all), 1+ahead)]
	if i := slices.IndexFunc(all, func(w listed) bool { return w.Number == 0 || !o.whole && !v.knows(w.Number) }); i >= 0 {
		return all[:i]
	}
	return all
}

// entries are the entries of a part of a line.
func (l layout) entries(key string, part []listed) (all []Entry) {
	for _, w := range part {
		all = append(all, Entry{Name: l.waits(key, w.Name.ID()), Value: w.text()})
	}
	return all
}
