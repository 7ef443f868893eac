package lock

import (
	"fmt"

	"github.com/interlock-go/interlock/core/driver"
)

// valid says which rule of its fields a lock breaks, or returns nil. Tests call it after each event
// ([Table.Invalid]). The code relies on these rules without checking them.
func (l *lock) valid() error {
	n, alone, tries := int32(0), int32(0), int32(0)
	for w := l.first; w != nil; w = w.next {
		n++
		if !w.Terms.Kind.Place() {
			alone++
		}
		if w.marks&asking != 0 {
			tries++
		}
		if w.state != waiting {
			return fmt.Errorf("a waiter in the queue is in the state %d", w.state)
		}
	}
	acq := l.acq
	for _, rule := range []struct {
		what  string
		holds bool
	}{
		{"the counts of the queue are right", n == l.n && alone == l.alone},
		{"nothing is counted below zero", l.asking >= 0 && l.strays >= 0 && l.declining >= 0},
		{"each try on its way is of a waiter, or a stray", tries+l.strays == l.asking},
		{"a try on its way has an acquisition", l.asking == 0 || acq != nil},
		{"no try is on its way for an idle lock", l.asking == 0 || l.phase != idle},
		{"an idle lock has no waiter", l.phase != idle || l.first == nil},
		{"a lock is acquired for a waiter, or for a stray", l.phase != acquiring || l.first != nil || l.asking > 0},
		{"an owner is there while the lock is held or released", (l.own != nil) == (l.phase == held || l.phase == releasing)},
		{"a held lock is neither released nor lost", l.phase != held || !l.own.over},
		{"a lock that is released has ended", l.phase != releasing || l.own.over},
		{"a holder is granted", l.phase != held || l.own.holder == nil || l.own.holder.state == granted},
		{"an offer that waits for an answer has one to wait for", acq == nil || acq.offer.token == 0 || l.asking > 0 || l.phase == releasing},
		{
			"an offer that the next try names has a waiter for the try",
			acq == nil || acq.named == 0 || l.asking > 0 || l.phase == acquiring && l.first != nil,
		},
		{"a process that holds the lock names no offer", l.phase != held || acq == nil || acq.named == 0},
		{"several tries at the same time are for permits", l.asking <= 1 || acq.kind == driver.Permit},
	} {
		if !rule.holds {
			return fmt.Errorf("it is not so that %s: %+v", rule.what, *l)
		}
	}
	return nil
}
