package lock

import (
	"fmt"

	"github.com/interlock-go/interlock/core/driver"
)

// rule is a rule of a group of fields. The code relies on the rules without checking them.
type rule struct {
	what  string
	holds bool
}

// valid says which rule of its fields a lock breaks, or returns nil. Tests call it after each event
// ([Table.Invalid]).
func (l *lock) valid() error {
	asking, err := l.waiters.valid()
	acq := l.acq
	if acq == nil {
		acq = &acquisition{} // nothing of it counts
	}
	own := l.own
	share, tokens := share{}, tokens{}
	if own != nil {
		share, tokens = own.turn, own.tokens
	}
	for _, group := range [][]rule{
		acq.tries.rules(asking), acq.refusal.rules(), acq.outage.rules(), acq.offer.rules(), l.listing.rules(),
		share.rules(), tokens.rules(),
		{
			{"tries are on their way only while the lock is acquired", acq.tries.n == 0 || l.phase == acquiring},
			{"an idle lock has no waiter", l.phase != idle || l.waiters.first == nil},
			{"a lock is acquired for a waiter, or for a stray", l.phase != acquiring || l.waiters.first != nil || acq.tries.n > 0},
			{"an owner is there while the lock is held or released", (own != nil) == (l.phase == held || l.phase == releasing)},
			{"a held lock is neither released nor lost", l.phase != held || !own.over},
			{"a lock that is released has ended", l.phase != releasing || own.over},
			{"a holder is granted", l.phase != held || own.holder == nil || own.holder.state == granted},
			{"a pending offer has an answer to wait for", acq.offer.pending.token == 0 || acq.tries.n > 0 || l.phase == releasing},
			{
				"an offer that the next try names has a waiter for the try",
				acq.offer.named == 0 || acq.tries.n > 0 || l.phase == acquiring && l.waiters.first != nil,
			},
			{"a process that holds the lock names no offer", l.phase != held || acq.offer.named == 0},
		},
	} {
		for _, rule := range group {
			if err == nil && !rule.holds {
				err = fmt.Errorf("it is not so that %s: %+v", rule.what, *l)
			}
		}
	}
	return err
}

// valid returns how many waiters of the queue have a try on its way.
func (q *queue) valid() (asks int32, err error) {
	n, alone := int32(0), int32(0)
	for w := q.first; w != nil; w = w.next {
		n++
		if !w.Terms.Kind.Place() {
			alone++
		}
		if w.marks&asking != 0 {
			asks++
		}
		if w.state != waiting {
			err = fmt.Errorf("a waiter in the queue is in the state %d", w.state)
		}
	}
	if n != q.n || alone != q.alone {
		err = fmt.Errorf("%d wait, %d of them alone; the queue counts %d and %d", n, alone, q.n, q.alone)
	}
	return asks, err
}

func (t *tries) rules(asking int32) []rule {
	return []rule{
		{"each try on its way is of a waiter, or a stray", t.strays >= 0 && asking+t.strays == t.n},
		{"several tries at the same time are for permits", t.n <= 1 || t.kind == driver.Permit},
	}
}

func (r *refusal) rules() []rule {
	return []rule{
		{"only a lock that others have is full", r.contended || !r.full},
		{"no grant since the refusal is counted below zero", r.room >= 0},
	}
}

func (o *outage) rules() []rule {
	return []rule{{"a try without an answer is followed by a pause", o.why == nil || o.backoff >= minBackoff}}
}

func (o *offering) rules() []rule {
	return []rule{
		{"a pending offer is above the anchor", o.pending.token == 0 || o.pending.token > o.anchor.token},
		{"an offer that is named is not above the anchor", o.named <= o.anchor.token},
	}
}

func (l *listing) rules() []rule {
	return []rule{{"no request that leaves the list is counted below zero", l.leaving >= 0}}
}

func (s *share) rules() []rule {
	return []rule{{"no answer is awaited when others are known to wait", !s.asked || !s.contended}}
}

func (t *tokens) rules() []rule {
	return []rule{{"the last token is not below the one that was minted, and there was room for it", t.last >= t.base && (t.room == 0 || t.base == 0 || t.last-t.base <= t.room)}}
}
