package observe

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Loss describes a lost lease: the lock, the holder, the time and the reason. It
// can be logged as it is. Printed, logged by log/slog or marshaled, it shows no key
// and no principal, only their hashes ([Hashed]).
type Loss struct {
	// Key is the key of the lock.
	Key Hashed
	// Rule is the name of the guard, or of the lock (core.Name); it may be empty.
	Rule string
	// Owner identifies the holder in the store: the random id of this process's
	// locker, a colon and a number. While the lock is held, the store has this text
	// in the lock.
	Owner string
	// Route is the pattern of the route of the request that held the lock, in gRPC
	// the full method. Empty if the lock was not taken by a guard.
	Route string
	// Principal is the principal of the request that held the lock, if the guard
	// knows it (core.PerPrincipal); else empty.
	Principal Hashed
	// Token is the fencing token of the lost grant.
	Token int64
	// Held is the time from the grant to the loss.
	Held time.Duration
	// Reason says why the lease was lost.
	Reason LossReason
	// Answered says whether the client of the request had its answer when the loss
	// was noticed. "yes": the answer was on its way, and cannot be taken back. "no":
	// no part of it had left yet; unless the handler answers nevertheless, the client
	// gets the refusal for a lost lease (see also core.CheckAnswer). Empty: the lock
	// was not taken by a guard.
	Answered string
	// Err is the error of the last renewal; nil if there was none. Its text may
	// contain the key and addresses of servers. [Loss.String] and [Loss.LogValue]
	// show only its [RootCause], and not that if it contains the key.
	Err error
}

// LossReason says why a lease was lost.
type LossReason string

// The reasons for a loss.
const (
	// LossExpired: a fixed lease (core.TTL) ended before it was released.
	LossExpired LossReason = "expired"
	// LossDeleted: the store says that no owner holds the lock. It was deleted or
	// evicted, or a failover lost it.
	LossDeleted LossReason = "deleted"
	// LossTakenOver: the store says that another owner holds the lock.
	LossTakenOver LossReason = "taken_over"
	// LossRevoked: an operator has released the lock (Fleet.Release of package core/fleet,
	// "interlock release"). Another owner may hold it since.
	LossRevoked LossReason = "revoked"
	// LossNotOwner: deleted or taken over, and the store does not say which (the nodes of a
	// quorum may differ).
	LossNotOwner LossReason = "not_owner"
	// LossUnavailable: no renewal succeeded before the deadline. The store could
	// not be reached, or this process was stopped, for too long.
	LossUnavailable LossReason = "unavailable"
	// LossMaxHold: the lock was held for as long as core.MaxHold allows.
	LossMaxHold LossReason = "max_hold"
	// LossClosed: the locker was closed before the lock was released; see
	// Locker.Close of package core.
	LossClosed LossReason = "closed"
)

// fields are what there is to say about the loss, without what identifies a person.
func (l Loss) fields() []slog.Attr {
	attrs := []slog.Attr{
		slog.String("reason", string(l.Reason)), slog.String("key_hash", l.Key.Hash()), slog.Duration("held", l.Held),
		slog.Int64("token", l.Token), slog.String("owner", l.Owner),
	}
	more := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	more("rule", l.Rule)
	more("route", l.Route)
	more("principal_hash", l.Principal.Hash())
	more("answered", l.Answered)
	if l.Err != nil {
		// The wrapping errors name the key, and the innermost error may.
		if text := RootCause(l.Err).Error(); !strings.Contains(text, string(l.Key)) {
			more("error", text)
		}
	}
	return attrs
}

// LogValue implements [slog.LogValuer]. The value shows no key and no principal.
func (l Loss) LogValue() slog.Value { return slog.GroupValue(l.fields()...) }

// String describes the loss in one line, which shows no key and no principal.
func (l Loss) String() string {
	var b strings.Builder
	b.WriteString("lease lost:")
	for _, a := range l.fields() {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
	}
	return b.String()
}
