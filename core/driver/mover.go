package driver

import "strings"

// Mover is what a [Store] implements that moves a held lock from one owner to another in one atomic
// step: an Acquire with [AcquireRequest.From].
//
// The request is granted only while From holds the lock exclusively, or has its place, and the kind
// of the request is the kind of that hold. From stops being the holder then, and Owner is the
// holder, with a new and greater token and its own TTL; it may be shorter than the rest of From's lease.
// The list of waiting lockers, the places of others and a barrier stay as they are. If the lock may
// now end earlier than the waiting lockers have learned, the store signals them, as after a release:
// they ask, and learn the new time. A repeated request, where Owner holds the lock already, is
// granted again with the same token, and the lease is not changed.
//
// Any other request with From is refused: it never waits, and enters no list. Acquire returns an error
// that matches [ErrNotOwner]: [ErrPassedOn] for as long as [AcquireRequest.Noted] says, [ErrRevoked],
// or else [ErrDeleted] or [ErrTakenOver]. An owner that was only offered the lock ([Offerer]), and has
// not renewed it yet, does not hold it.
type Mover interface {
	// Space names the set of locks that the store keeps: stores with different names never have
	// a lock in common. It asks no server.
	Space() string
}

// ticketMark begins the second half of the name of an owner that keeps a lock for a ticket. All other
// owners have a number there.
const ticketMark = ":t"

// TicketOwner returns the name of an owner that keeps a lock for a ticket, which the locker with the
// id has made. The name does not show the secret of the ticket, only a hash.
func TicketOwner(id, hash string) string { return id + ticketMark + hash }

// IsTicket reports whether an owner keeps a lock for a ticket, and returns the id of the locker that
// has made the ticket.
func IsTicket(owner string) (id string, ok bool) {
	id, _, ok = strings.Cut(owner, ticketMark)
	return id, ok
}
