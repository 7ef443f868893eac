package keystate

import (
	"slices"
	"strings"

	"github.com/interlock-go/interlock/core/driver"
)

// waiting is a locker in the list of the lockers that wait.
type waiting struct {
	id       string
	patience string // the letter after the id
	place    bool   // it wants a place, else the lock
	called   bool   // to a place that became free while others were held, and has not come yet
}

// name is how the list says it.
func (w waiting) name() string {
	if w.place {
		return "+" + w.id + w.patience
	}
	return w.id + w.patience
}

// waiterOf reads a name.
func waiterOf(name string) waiting {
	name, wantsPlace := strings.CutPrefix(name, "+")
	id, _ := driver.CutPatience(name)
	return waiting{id: id, patience: name[len(id):], place: wantsPlace}
}

// names makes the list that is announced.
func names(list []waiting) string {
	all := make([]string, len(list))
	for i, w := range list {
		all[i] = w.name()
	}
	return strings.Join(all, ",")
}

// listOf reads such a list.
func listOf(names string) (list []waiting) {
	for name := range strings.SplitSeq(names, ",") {
		if name != "" {
			list = append(list, waiterOf(name))
		}
	}
	return list
}

// waits takes the locker of a request that is granted out of the list. If no other waits, the list
// that came with the request is kept.
func (r *Record) waits(req driver.AcquireRequest) {
	if r.unlist(waiterOf(req.Waiter).id); len(r.waiting) == 0 {
		r.waiting = listOf(req.Rest)
	}
}

// uncall notes that no locker has been called to a place while others are held.
func (r *Record) uncall() {
	for i := range r.waiting {
		r.waiting[i].called = false
	}
}

// find returns where a locker stands in the list; negative if it is not there.
func (r *Record) find(id string) int {
	return slices.IndexFunc(r.waiting, func(w waiting) bool { return w.id == id })
}

// unlist takes a locker out of the list.
func (r *Record) unlist(id string) {
	if i := r.find(id); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
	}
}

// list enters a waiting locker at the end of the list, once, or changes the kind of its
// request.
func (r *Record) list(name string, wantsPlace bool) (listed bool) {
	if name == "" {
		return false
	}
	entry := waiterOf(name)
	entry.place = wantsPlace
	if i := r.find(entry.id); i >= 0 {
		r.waiting[i] = entry
	} else {
		r.waiting = append(r.waiting, entry)
	}
	return true
}

// again enters the locker of a release at the end of the list, unless it is there.
func (r *Record) again(name string, place bool) {
	entry := waiterOf(name)
	if r.find(entry.id) < 0 {
		r.list(strings.TrimPrefix(name, "+"), place || entry.place)
	}
}

// news reports whether the holders have to learn of a waiter, if it is refused: it begins the
// list, or asks again.
func (r *Record) news(waiter string) bool {
	id := waiterOf(waiter).id
	return id != "" && (len(r.waiting) == 0 || r.find(id) >= 0)
}

// wanted returns the attentive holders.
func (r *Record) wanted() (owners []string) {
	if _, attentive := driver.IsAttentive(r.owner); attentive {
		owners = append(owners, r.owner)
	}
	for _, p := range r.places {
		if _, attentive := driver.IsAttentive(p.owner); attentive {
			owners = append(owners, p.owner)
		}
	}
	return owners
}
