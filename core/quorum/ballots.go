package quorum

import (
	"slices"
	"sync"
	"time"
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
