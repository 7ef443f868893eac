package driver

import "strings"

// attentive is the mark at the end of the names of attentive owners.
const attentive = "!"

// Attentive returns the marked name of an owner. A store with [Turns] reports events
// on the owner's lock to its locker ([Wanted]). Because of the mark the store need keep nothing about
// it.
func Attentive(owner string) string { return owner + attentive }

// IsAttentive reports whether [Attentive] has made the name of an owner, and returns the id of
// the owner's locker.
func IsAttentive(owner string) (id string, ok bool) {
	name, ok := strings.CutSuffix(owner, attentive)
	at := strings.LastIndexByte(name, ':')
	if !ok || at <= 0 {
		return "", false
	}
	return name[:at], true
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
