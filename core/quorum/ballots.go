package quorum

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	// fenceTime is how much longer than its lease a node remembers the last token of a key.
	// Until then no clock can lead the tokens of the key back.
	fenceTime = 10 * time.Minute
	// apart is by how much clocks may differ before the log and [Store.Check] say so.
	apart = time.Second
)

// ballot is a fencing token to propose for an owner: the time, in µs, by the clock in the
// middle of the nodes' clocks, but above least. A wall clock of this machine has no part
// in it, and neither a minority of the nodes' that are ahead: of a bare majority that is
// known it takes the lowest. Zero says that too few clocks are known: a node takes no
// lock for zero, but tells its own.
//
// The ballots of an owner never go back, also where an answer that took long lets the
// clocks seem to: a proposal of its earlier election may still be on its way. That must
// come too late for the present one's votes, and its withdrawal must not reach them.
func (s *Store) ballot(owner string, least int64) int64 {
	offsets := make([]int64, 0, len(s.nodes))
	for _, n := range s.nodes {
		if o := n.offset.Load(); o != 0 {
			offsets = append(offsets, o)
		}
	}
	if len(offsets) < s.majority {
		return 0
	}
	slices.Sort(offsets)
	now := offsets[len(offsets)-s.majority] + time.Since(s.epoch).Microseconds()
	return s.ballots.next(owner, max(now, least+1))
}

// clocksDiffer reports whether the clocks that are known differ, and a node that can tell
// which of them are right has not told its own yet: a bare majority may have one wrong clock
// in two.
func (s *Store) clocksDiffer() bool {
	var least, most int64
	missing := false
	for _, n := range s.nodes {
		switch o := n.offset.Load(); {
		case o == 0:
			missing = missing || !n.suspected()
		case least == 0:
			least, most = o, o
		default:
			least, most = min(least, o), max(most, o)
		}
	}
	return missing && most-least > apart.Microseconds()
}

// off is by how much a node's clock differs from the clock in the middle of the nodes'
// clocks, if by more than is allowed: negative if it lags. It is zero for a clock that is
// right, or not known.
func (s *Store) off(n *node) time.Duration {
	known := make([]*node, 0, len(s.nodes))
	for _, n := range s.nodes {
		if n.offset.Load() != 0 {
			known = append(known, n)
		}
	}
	if n.offset.Load() == 0 {
		return 0
	}
	slices.SortFunc(known, func(a, b *node) int { return cmp.Compare(a.offset.Load(), b.offset.Load()) })
	middle := known[len(known)/2]
	least, most := n.offset.Load()-middle.offset.Load()-middle.lag.Load(), n.offset.Load()+n.lag.Load()-middle.offset.Load()
	off := time.Duration(0)
	switch allowed := apart.Microseconds(); {
	case least > allowed:
		off = time.Duration(least) * time.Microsecond
	case most < -allowed:
		off = time.Duration(most) * time.Microsecond
	}
	return off.Round(10 * time.Millisecond)
}

// ballots are the last ballots of owners. It forgets an owner that was released or got no
// vote at all, and an owner that neither proposed nor renewed for the time kept: by then its
// lease has ended, and the clocks are beyond its ballots. Its mutex may be taken under
// the mutex of an election, and takes no other.
type ballots struct {
	kept time.Duration

	mu         sync.Mutex
	young, old map[string]int64 // old: seen before turned, and not since
	turned     time.Time
}

// next is the owner's next ballot, at least the one given.
func (b *ballots) next(owner string, least int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); b.young == nil || now.Sub(b.turned) > b.kept {
		b.young, b.old, b.turned = make(map[string]int64), b.young, now
	}
	ballot := max(least, b.seen(owner)+1)
	b.young[owner] = ballot
	return ballot
}

// of is the owner's last ballot; zero if it has none, or was forgotten.
func (b *ballots) of(owner string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	ballot := b.seen(owner)
	if ballot != 0 {
		b.young[owner] = ballot
	}
	return ballot
}

func (b *ballots) seen(owner string) int64 { return max(b.young[owner], b.old[owner]) }

// drop forgets the owner unless it has had another ballot since.
func (b *ballots) drop(owner string, last int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen(owner) == last {
		b.remove(owner)
	}
}

func (b *ballots) forget(owner string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remove(owner)
}

func (b *ballots) remove(owner string) {
	delete(b.young, owner)
	delete(b.old, owner)
}
