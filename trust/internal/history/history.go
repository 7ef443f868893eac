// Package history records the actions and observations of a lock's users, over several
// processes that may be stopped or killed at any moment, and judges them: overlaps of
// holds (Overlaps), the lock as an object with leases and tokens (CheckMutex), the lock
// as a thing that several can hold (CheckPlaces), and the results of the writes made
// under it (CheckRegister).
package history

import (
	"cmp"
	"slices"
	"sort"
)

// Kind is the kind of operation.
type Kind uint32

// The kinds of a Record.
const (
	// Acquire asks for a lock and waits for it.
	Acquire Kind = iota + 1
	// TryAcquire asks once.
	TryAcquire
	// Release gives it back.
	Release
	// Claim presents a token to the fenced register and reads its value.
	Claim
	// FencedWrite writes to the fenced register under the token.
	FencedWrite
	// Read reads the register that knows no tokens.
	Read
	// Write writes to it.
	Write
)

// Outcome is how it ended.
type Outcome uint32

// The outcomes of a Record.
const (
	// Unknown is the zero value, since no process writes it for a process that was
	// killed: it may have happened, or may happen later, or not.
	Unknown Outcome = iota
	// Done means that it happened.
	Done
	// Refused means that it did not: the lock was held, the token too old.
	Refused
	// Lost is a release that found the lock lost.
	Lost
)

// Way is the way to hold a lock: alone or with others.
type Way uint32

// The ways to hold a lock.
const (
	// Alone is an exclusive hold.
	Alone Way = iota
	// Share is a hold together with any number of its kind. It keeps exclusive holds out.
	Share
	// Permit is a hold of a limited number.
	Permit
)

// Record is one operation. Times come from Now, in nanoseconds. It is written
// into shared memory as it is: fixed in size, without pointers.
type Record struct {
	Kind    Kind
	Outcome Outcome
	// Subject and Key say which lock: its kind, and its key.
	Subject, Key uint32
	// Hold names the hold of the operation, unique in a history.
	Hold uint64
	// Call is when it began; Return when it ended, 0 if it never was.
	Call, Return int64
	// Token is the fencing token of the hold.
	Token int64
	// Value is the value read or written, unique among the writes; 0 is the first value of a
	// register. Before is, of a write, the value that its writer had read.
	Value, Before uint64
	// Trusted is, of an acquire, until when its holder trusted the lease: the
	// deadline that the holder last knew, and in the end the last moment at which
	// it found the lease good, or the deadline at which it ended.
	Trusted int64
	// Settled says that Trusted is that end.
	Settled uint32
	// Way is how the hold is to be held.
	Way Way
}

// Run is the record of one process from its start to its end.
type Run struct {
	Records []Record
	// Killed is when it was killed, 0 if it ended by itself.
	Killed int64
	// Lease is the longest that a lock outlives its process.
	Lease int64
}

// Hold is a lock's possession, as its holder could know it.
type Hold struct {
	ID    uint64
	Way   Way
	Token int64
	// Call and From are when the acquire was called and had returned.
	Call, From int64
	// Until is when the holder ceased to trust it: at the call of the release,
	// at the end of its lease, or with the process. Both ends are chosen so that
	// a hold never looks longer than it was.
	Until int64
	// Gone is when the lock cannot be held for it any more, by any delay.
	Gone int64
	// Release is the release of it, nil if there was none.
	Release *Record
}

// Lock is the history of one key of one subject.
type Lock struct {
	Subject, Key uint32
	Holds        []Hold // by From
	// Refusals are the refused tries that prove that another had the lock.
	Refusals []Record
	// Claims and Writes belong to the fenced register, Reads and Plain to the
	// other one.
	Claims, Writes, Reads, Plain []Record
}

// Locks sorts the records of several processes by the locks that they are of.
// Slack is by how much anything may be late: a request on its way, a server that
// was stopped.
func Locks(runs []Run, slack int64) []*Lock {
	type name struct{ subject, key uint32 }
	locks := make(map[name]*Lock)
	doubts := make(map[*Lock][]span)
	for _, run := range runs {
		releases := make(map[uint64]*Record)
		for i := range run.Records {
			if r := &run.Records[i]; r.Kind == Release {
				releases[r.Hold] = r
			}
		}
		asked := make(map[*Lock][]*Record)
		for i := range run.Records {
			r := &run.Records[i]
			l := locks[name{r.Subject, r.Key}]
			if l == nil {
				l = &Lock{Subject: r.Subject, Key: r.Key}
				locks[name{r.Subject, r.Key}] = l
			}
			switch r.Kind {
			case Acquire, TryAcquire:
				asked[l] = append(asked[l], r)
				switch {
				case r.Outcome == Done:
					l.Holds = append(l.Holds, run.hold(r, releases[r.Hold], slack))
					// The lock may have been its before: the process was stopped until the
					// lease had ended, or a reply was lost, or a hand-over not confirmed, and
					// it asked again.
					doubts[l] = append(doubts[l], span{r.Call, r.Return})
				case r.Outcome == Refused && r.Kind == TryAcquire && run.over(r)-r.Call >= run.Lease/2:
					// The same of a caller that was refused when it asked again. Half is the
					// lease of some.
					doubts[l] = append(doubts[l], span{r.Call, run.over(r)})
				case r.Kind == Acquire || r.Outcome != Refused:
					// A grant may be on its way to a caller that has left.
					doubts[l] = append(doubts[l], span{r.Call, run.over(r) + run.Lease + slack})
				}
			case Claim:
				l.Claims = append(l.Claims, *r)
			case FencedWrite:
				l.Writes = append(l.Writes, *r)
			case Read:
				l.Reads = append(l.Reads, *r)
			case Write:
				l.Plain = append(l.Plain, *r)
			case Release: // found by its hold
			}
		}
		for l, acquires := range asked {
			l.Refusals = append(l.Refusals, refusals(acquires)...)
		}
	}
	list := make([]*Lock, 0, len(locks))
	for _, l := range locks {
		slices.SortFunc(l.Holds, func(a, b Hold) int { return cmp.Compare(a.From, b.From) })
		l.Refusals = outside(l.Refusals, doubts[l])
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b *Lock) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Key, b.Key))
	})
	return list
}

// refusals are the refused tries of one process during which none of its others
// asked for the lock: those queue in the process, and a later caller is refused
// although the lock may be free.
func refusals(asked []*Record) []Record {
	slices.SortFunc(asked, func(a, b *Record) int { return cmp.Compare(a.Call, b.Call) })
	var alone []Record
	var latest int64 // when those before had all returned
	for i, r := range asked {
		queued := latest >= r.Call || i+1 < len(asked) && asked[i+1].Call <= r.Return
		if r.Kind == TryAcquire && r.Outcome == Refused && !queued {
			alone = append(alone, *r)
		}
		if r.Return == 0 {
			break // killed
		}
		latest = max(latest, r.Return)
	}
	return alone
}

// outside leaves out the records that touch a span.
func outside(records []Record, spans []span) []Record {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	latest := make([]int64, len(spans)+1) // of the first i spans
	for i, s := range spans {
		latest[i+1] = max(latest[i], s.until)
	}
	return slices.DeleteFunc(records, func(r Record) bool {
		n := sort.Search(len(spans), func(i int) bool { return spans[i].from > r.Return })
		return latest[n] >= r.Call
	})
}

// over is when an operation had returned, or could not any more.
func (run Run) over(r *Record) int64 {
	if r.Return == 0 {
		return run.Killed
	}
	return r.Return
}

func (run Run) hold(r, release *Record, slack int64) Hold {
	h := Hold{ID: r.Hold, Way: r.Way, Token: r.Token, Call: r.Call, From: r.Return, Until: r.Trusted, Release: release}
	// A process that was killed could not say when its trust ended: at the
	// latest with its life.
	if r.Settled == 0 && run.Killed > 0 {
		h.Until = min(h.Until, run.Killed)
	}
	switch {
	case release == nil:
		h.Gone = run.Killed + run.Lease + slack
	case release.Outcome == Done:
		h.Until, h.Gone = min(h.Until, release.Call), release.Return
	default:
		// The server may keep it for as long as its lease.
		h.Until, h.Gone = min(h.Until, release.Call), run.over(release)+run.Lease+slack
	}
	return h
}
