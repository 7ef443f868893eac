package driver

import "strings"

// Notifier is what a [Store] implements that can tell a locker at once that something has
// happened to a lock which the locker holds: another process waits for the lock, or an
// operator has released it. Without it, the locker finds that out with its next renewal.
type Notifier interface {
	// Notify calls hear when the locker with the id should ask the store about the lock of a
	// key, which an [Attentive] owner of the locker holds or may hold. The name of an owner is the
	// locker's id, a colon, a number and the mark of Attentive. The store calls hear when a
	// refused request enters its waiting locker into the list of the lock and the list is empty,
	// and when the waiting locker asks again. If there are very many holders it may call hear for
	// none. A store that is a [Queuer] also calls hear when a caller comes that is [Newest]: for
	// the holders, and for the locker that was the first of the list, with the number 0 in the
	// name of the owner.
	//
	// A call of hear is only a hint: it can be lost, late, repeated or forged. The locker renews
	// the lease, and believes the answer. An empty key says that hints may have been lost.
	//
	// A locker calls Notify once. It returns at once; hear may be called from any goroutine. The
	// function stop ends the calls, and does not wait for a call of hear.
	Notify(id string, hear func(key, owner string)) (stop func())
}

// attentive is the mark at the end of the names of attentive owners.
const attentive = "!"

// Attentive returns the marked name of an owner. A store that is a [Notifier] reports events
// on the owner's lock to its locker. Because of the mark the store need keep nothing about
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
