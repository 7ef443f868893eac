package fleet

import (
	"context"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// The kinds of holders.
const (
	// Exclusive is a holder that is alone.
	Exclusive = "exclusive"
	// Places are holders that have the lock at the same time: shared locks or permits.
	// The store does not know which of the two.
	Places = "places"
)

// Lock is the state of one lock in a store.
type Lock struct {
	// Key is the lock's key.
	Key string
	// Kind is [Exclusive] or [Places]; empty if the lock has no holder.
	Kind string
	// Held is the number of holders.
	Held int
	// Holders are the holders: of very many places only some.
	Holders []Holder
	// Waiters are the lockers that wait, in the order of their turns. A locker is
	// there once, for all callers of its process.
	Waiters []Waiter
	// Fence is the last fencing token that the store remembers; 0 if none. A process that
	// passes the lock among its own callers may have given out greater ones.
	Fence int64
	// Kept, unless zero, says that the lock has no holder and is kept for the Waiters that say
	// so, in their turns, and for how long yet: the store refuses the lock to any other process. A
	// lock that is offered to a waiting process has that process as its holder instead.
	Kept time.Duration

	voted bool // it is a quorum's
}

// Free reports whether the lock has no holder, and is kept for no process.
func (l *Lock) Free() bool { return l.Held == 0 && l.Kept == 0 }

// Silent reports whether a process that asks once may be refused because of processes that have ended: the lock
// is kept for lockers, or its holders have given no sign of life for their leases, by their clocks and this one.
// Then the lock is free after the time within, unless one of them comes. A caller learns that if it waits for so long.
func (l *Lock) Silent() (within time.Duration, ok bool) {
	if within = l.Kept; l.Held > len(l.Holders) {
		return 0, false
	}
	for i := range l.Holders {
		h := &l.Holders[i]
		if !h.Whole || h.HandedOver || !h.Sign.IsZero() && time.Since(h.Sign) < h.Left {
			return 0, false
		}
		within = max(within, h.Left)
	}
	return within, within > 0
}

// Holder is an owner that holds a lock.
type Holder struct {
	// Owner is the text that identifies the owner: the locker's id, a colon, and a
	// number, or the hash of a ticket.
	Owner string
	// Attentive says that its process gets a message at once when [Fleet.Release] takes the
	// lock from it (core.Attentive).
	Attentive bool
	// HandedOver says that no process has the lock: it is kept for a ticket (core.Ticket), for
	// the time Left, and Locker is the process that has handed it over. [Fleet.Release] voids
	// the ticket.
	HandedOver bool
	// Locker says which process it is.
	Locker Locker
	// Token is the fencing token of the grant, which [Fleet.Release] takes.
	Token int64
	// Since is the time of the grant to the process, by the server's clock; zero
	// if the token does not tell. The process may have passed the lock among its own
	// callers since.
	Since time.Time
	// Age is the time since then.
	Age time.Duration
	// Left is the rest of the lease; negative if it never ends. No locker makes such a
	// lock.
	Left time.Duration
	// Whole says that the store has no clock: Left is the whole lease, which counts from the last
	// sign of life of the process.
	Whole bool
	// Sign is the time of the process's last sign of life, by the process's clock. It is zero if Whole is false, or
	// the time is not known.
	Sign time.Time
}

// Waiter is a locker that waits for a lock.
type Waiter struct {
	// Locker says which process it is.
	Locker Locker
	// Place says that it wants a place together with other holders (shared, or a permit),
	// and Called that it was called to a free place, and has not come yet.
	Place, Called bool
	// Kept says that the lock is kept for it ([Lock.Kept]).
	Kept bool
}

// Locker is the store's data about a process that takes locks (core.Service,
// core.Unlisted).
type Locker struct {
	// ID is the random id of the locker. The names of its owners begin with it.
	ID string
	// Listed says that there is an entry about it. Without one all other fields are
	// empty: the process is unlisted, uses no locks, has
	// begun less than a second ago, or has ended without closing its locker more
	// than a minute ago.
	Listed bool
	// Host and PID name its process.
	Host string
	PID  int
	// Service and Version are its own name and version; they may be empty.
	Service, Version string
	// Started is the time of the locker's start, by the clock of its host.
	Started time.Time
	// Seen is when the entry was written, by the server's clock, and Quiet the time
	// since. A process that uses locks writes it each 20 s.
	Seen  time.Time
	Quiet time.Duration
	// Protocol is driver.Protocol of its version.
	Protocol int
}

// overdue bounds the time that a locker may be quiet: one announcement was missed, and half the
// time to the next has passed.
const overdue = 30 * time.Second

// Renews reports whether the process of the locker was alive a short while ago: "yes"
// if it wrote its entry in time, "no" if it did not, "unknown" if it has none.
func (l *Locker) Renews() string {
	switch {
	case !l.Listed:
		return "unknown"
	case l.Quiet > overdue:
		return "no"
	}
	return "yes"
}

// Oldest returns when the oldest known grant was made, by the server's clock; the zero
// time if no holder tells.
func (l *Lock) Oldest() (since time.Time) {
	for i := range l.Holders {
		if s := l.Holders[i].Since; since.IsZero() || !s.IsZero() && s.Before(since) {
			since = s
		}
	}
	return since
}

// oldestToken is before all that the library has made of a clock.
var oldestToken = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// lockOf makes the Lock of a view.
func lockOf(ctx context.Context, v *driver.View) Lock {
	l := Lock{Key: v.Key, Held: len(v.Holders) + v.More, Fence: v.Token, Kept: v.Kept, voted: v.Voted}
	var entries map[string]driver.Entry
	if v.Entries != nil {
		entries = v.Entries(ctx)
	}
	for i := range v.Holders {
		if l.Kind = Exclusive; v.Holders[i].Place {
			l.Kind = Places
		}
		l.Holders = append(l.Holders, holderOf(&v.Holders[i], entries, v.Now))
	}
	for w := range v.Waiting.All() {
		l.Waiters = append(l.Waiters, Waiter{
			Locker: lockerOf(w.ID(), entries), Place: w.Place(), Called: w.Called(), Kept: len(l.Waiters) < v.KeptFor,
		})
	}
	return l
}

// holderOf makes the Holder of a view that was made at the store's time now.
func holderOf(v *driver.HolderView, entries map[string]driver.Entry, now time.Time) Holder {
	h := Holder{Owner: v.Owner, Token: v.Token, Left: v.Left, Whole: v.Whole, Sign: v.Sign}
	_, h.Attentive = driver.IsAttentive(v.Owner)
	_, h.HandedOver = driver.IsTicket(v.Owner)
	id, _, _ := strings.Cut(v.Owner, ":")
	if h.Locker = lockerOf(id, entries); !h.Locker.Listed {
		h.Locker.Host, h.Locker.PID = v.Host, v.PID
	}
	// A token is the time of the grant in µs, or a little more.
	if v.Token >= oldestToken && v.Token <= now.Add(time.Minute).UnixMicro() {
		h.Since = time.UnixMicro(v.Token)
		h.Age = max(0, now.Sub(h.Since))
	}
	return h
}

// lockerOf makes the Locker with an id.
func lockerOf(id string, entries map[string]driver.Entry) Locker {
	e, listed := entries[id]
	if listed = listed && e.ID != ""; !listed {
		return Locker{ID: id}
	}
	return Locker{
		ID: id, Listed: true, Host: e.Host, PID: e.PID, Service: e.Service, Version: e.Version,
		Started: e.Started, Seen: e.Seen, Quiet: e.Quiet, Protocol: e.Protocol,
	}
}
