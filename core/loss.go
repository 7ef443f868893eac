package core

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
)

// Loss describes a lost lease: who lost what, after how long, and why. It can be
// logged as it is: printed, logged by log/slog or marshaled it shows no key and
// no principal, only their hashes.
type Loss struct {
	// Key is the lock's key.
	Key Hashed
	// Rule is the name of the rule that held it.
	Rule string
	// Owner is who held it in the store: the random id of this process's locker,
	// a colon and a number. It is what the store has in the lock while that is
	// held.
	Owner string
	// Route is the pattern of the route whose request held it, in gRPC the full
	// method. Empty where the lock was not taken under a guard.
	Route string
	// Principal is whose request held it, where the rule knows (PerPrincipal).
	Principal Hashed
	// Token is the fencing token of the lost grant.
	Token int64
	// Held is the time from the grant to the loss.
	Held time.Duration
	// Reason says why.
	Reason LossReason
	// Answered says whether the request's client had got its answer when the
	// loss was noticed.
	Answered Answered
	// Err is the last renewal's error, if any. It may hold the key and
	// addresses of servers; String and LogValue leave it out then.
	Err error
}

// LossReason says why a lease was lost.
type LossReason string

// The reasons for a loss.
const (
	// LossExpired: a fixed lease (TTL) ended before it was released.
	LossExpired LossReason = "expired"
	// LossDeleted: the store says that nobody holds the lock; it was deleted or
	// evicted, or a failover lost it.
	LossDeleted LossReason = "deleted"
	// LossTakenOver: the store says that somebody else holds it.
	LossTakenOver LossReason = "taken_over"
	// LossNotOwner: one of these two; the store does not say which (a quorum,
	// whose nodes may differ).
	LossNotOwner LossReason = "not_owner"
	// LossUnavailable: the store could not be reached, or this process was
	// stopped, for so long that no renewal succeeded before the deadline.
	LossUnavailable LossReason = "unavailable"
	// LossMaxHold: MaxHold was reached.
	LossMaxHold LossReason = "max_hold"
	// LossClosed: the locker was closed before the lock was released.
	LossClosed LossReason = "closed"
)

// Answered says how far the answer to a request was.
type Answered string

// What is known of an answer.
const (
	// AnsweredUnknown: the lock was not taken for a request (no guard).
	AnsweredUnknown Answered = ""
	// AnsweredNo: nothing had left yet. Unless the handler answers regardless,
	// the client gets the refusal for a lost lease (see also CheckAnswer).
	AnsweredNo Answered = "no"
	// AnsweredYes: the answer was on its way, and cannot be taken back.
	AnsweredYes Answered = "yes"
)

// lossOf is the reason for an error that matches ErrNotOwner.
func lossOf(err error) LossReason {
	switch {
	case errors.Is(err, ErrTakenOver):
		return LossTakenOver
	case errors.Is(err, ErrDeleted):
		return LossDeleted
	}
	return LossNotOwner
}

// denied reports whether it was the store that said so: then there is nothing in
// it to be cleaned up.
func (r LossReason) denied() bool {
	return r == LossNotOwner || r == LossDeleted || r == LossTakenOver
}

// loss describes the loss of a turn.
func (t *turn) loss(reason LossReason, err error) Loss {
	loss := Loss{
		Key: Hashed(t.key()), Rule: t.cfg.name, Owner: t.ten.owner(), Token: t.token,
		Held: t.entry.shard.locker.clock.now().sub(t.since), Reason: reason, Err: err,
	}
	if v := visitOf(t.lease.parent); v != nil {
		loss.Route, loss.Principal, loss.Answered = v.route, v.principal, AnsweredNo
		if v.answered.Load() {
			loss.Answered = AnsweredYes
		}
	}
	return loss
}

// fields are what there is to say about the loss, without what identifies
// anybody.
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
	more("answered", string(l.Answered))
	if l.Err != nil {
		// What wraps the innermost error names the key, and that one may.
		if text := rootCause(l.Err).Error(); !strings.Contains(text, string(l.Key)) {
			more("error", text)
		}
	}
	return attrs
}

// LogValue implements slog.LogValuer.
func (l Loss) LogValue() slog.Value { return slog.GroupValue(l.fields()...) }

// String describes the loss in one line.
func (l Loss) String() string {
	var b strings.Builder
	b.WriteString("lease lost:")
	for _, a := range l.fields() {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
	}
	return b.String()
}

// Hashed is a text that identifies somebody: a key, a principal. However it is
// printed, logged by log/slog or marshaled, it shows as its hash (KeyHash). The
// text itself is string(h), for who asks for it; as the key of a map encoding/json
// asks.
type Hashed string

// KeyHash is what stands for a key where it would tell too much: the first 64
// bits of its SHA-256, as 16 hexadecimal digits. It is the same in every process
// and release, so that a key is found by it. It hides the key from the eye, not
// from somebody who can try out all the keys there are.
func KeyHash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

// Hash returns the hash; of an empty text it is empty.
func (h Hashed) Hash() string {
	if h == "" {
		return ""
	}
	return KeyHash(string(h))
}

// String returns the hash.
func (h Hashed) String() string { return h.Hash() }

// Format implements fmt.Formatter, for all verbs: some would get past String.
func (h Hashed) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, h.Hash()) }

// LogValue implements slog.LogValuer.
func (h Hashed) LogValue() slog.Value { return slog.StringValue(h.Hash()) }

// MarshalText implements encoding.TextMarshaler, for JSON and the like.
func (h Hashed) MarshalText() ([]byte, error) { return []byte(h.Hash()), nil }
