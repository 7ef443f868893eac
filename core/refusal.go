package core

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/reason"
)

// Refusal says that a request gets an answer of the guard's in place of the
// handler's. An adapter renders it by its Reason, from one table for its protocol.
type Refusal struct {
	// Reason decides the status.
	Reason reason.Reason
	// Ran says that the handler ran, so that its effect may have happened. The
	// answer must not invite the client to try again.
	Ran bool
	// Rule is the name of the guard that refused ([Guard.Name]).
	Rule string
	// Profile is the form of answers of HTTP adapters (idempotency.Profile). It is
	// [reason.IETFDraft] for a refusal of a guard alone.
	Profile reason.Profile `json:",omitempty"`
	// Err is the error that caused the refusal. Its text may contain the key and addresses
	// of servers: never show it to a client, and log [Refusal.LogError] instead.
	Err error `json:"-"`

	keys []string // if they were made
}

// Retryable reports whether the client may send the same request again a little
// later: the handler did not run, and the reason passes by itself.
func (r *Refusal) Retryable() bool {
	if r.Ran {
		return false
	}
	switch r.Reason {
	case reason.Held, reason.Full, reason.QueueFull, reason.PrincipalLimit, reason.Unavailable, reason.Closing, reason.NotReplicated,
		reason.InFlight, reason.NoRecord, reason.RolledBack:
		return true
	}
	return false
}

// retryAfter is short, and the same for all refusals: when the holder will be done is not known, and
// its TTL is how long a dead holder blocks, not how long a live holder works. It is the least time
// that HTTP can say.
const retryAfter = time.Second

// RetryAfter returns the least time after which the client may send the request again, 0 if it is
// not [Refusal.Retryable]. It is the same in all protocols. No server knows when the lock will be
// free, so a client pauses longer after each refusal: a hint must not replace its own backoff.
func (r *Refusal) RetryAfter() time.Duration {
	if !r.Retryable() {
		return 0
	}
	return retryAfter
}

// ReasonOf returns the reason for an error of a [Guard] or a [Locker]. ctx is the
// context of the request; its own end counts only if it has ended. ReasonOf returns
// "" for nil, and [reason.Internal] for an error from elsewhere.
func ReasonOf(ctx context.Context, err error) reason.Reason {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrHeldByCaller): // the cause of a wait that ended, joined with other errors
		return reason.HeldByCaller
	case errors.Is(err, ErrTicketRevoked):
		return reason.StaleToken
	case errors.Is(err, ErrTicket): // of another store, which may have lost the lock
		return reason.Misconfigured
	case errors.Is(err, errStaleToken): // before ErrLost, which the fence's error matches
		return reason.StaleToken
	case errors.Is(err, errTokenMissing):
		return reason.TokenMissing
	case errors.Is(err, errTokenMalformed):
		return reason.TokenMalformed
	case errors.Is(err, adapter.ErrBodyTimeout): // before ErrKey: a KeyFunc may wrap it in that
		return reason.BodyTimeout
	case errors.Is(err, adapter.ErrBody):
		return reason.BodyIncomplete
	case errors.Is(err, ErrKey):
		return reason.BadKey
	case errors.Is(err, ErrPrincipalLimit):
		return reason.PrincipalLimit
	case errors.Is(err, adapter.ErrBodyLimit):
		return reason.BodyTooLarge
	case errors.Is(err, adapter.ErrNoParam), errors.Is(err, ErrConfig), errors.Is(err, ErrUpgrade):
		return reason.Misconfigured
	case errors.Is(err, ErrQueueFull): // before ErrHeld, which it matches too
		return reason.QueueFull
	case errors.Is(err, ErrSuperseded): // likewise
		return reason.Superseded
	case errors.Is(err, ErrFull): // likewise
		return reason.Full
	case errors.Is(err, ErrHeld):
		return reason.Held
	case errors.Is(err, ErrMaxHold):
		return reason.MaxHold
	case errors.Is(err, ErrLost):
		return reason.Lost
	case errors.Is(err, ErrNotReplicated):
		return reason.NotReplicated
	case errors.Is(err, ErrKeyOccupied):
		return reason.KeyOccupied
	case errors.Is(err, ErrClosed):
		return reason.Closing
	case errors.Is(err, ErrUnavailable):
		// A store that does not answer is why the wait ended, even where the
		// error carries a context's as well.
		return reason.Unavailable
	}
	// The remaining case is the end of the request's own context: its cause can be any
	// error. A time limit inside a function of the user does not count as that.
	switch ctx.Err() {
	case nil:
		return reason.Internal
	case context.DeadlineExceeded:
		return reason.Deadline
	default:
		return reason.Canceled
	}
}

// refusal is the answer to a request if its handler did not run.
func (g *Guard) refusal(ctx context.Context, err error) *Refusal {
	return &Refusal{Reason: ReasonOf(ctx, err), Rule: g.config.name, Err: err}
}
