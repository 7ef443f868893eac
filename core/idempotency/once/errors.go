package once

import (
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
)

// Final marks an error of a function ([Do]) as its answer: it is stored and replayed,
// and the function does not run again for its key. Use it for what no later try
// changes: the account is closed, the message cannot be parsed. An error that wraps
// the returned one is marked too, and so are a [StoredError] of a function inside and the final
// error of a step ([idempotency.StepError]). It is [idempotency.Final]. Final(nil) is nil.
//
// In a transaction of the request (pgstore.Tx) a marked error is an answer, too: the
// writes of the function are committed with it. A function that must undo its writes
// undoes them before it returns, or returns an error without the mark.
//
// The store keeps the text of the error, in plain text unless there is a
// [idempotency.Seal].
func Final(err error) error { return idempotency.Final(err) }

func isFinal(err error) bool { return errors.Is(err, idempotency.ErrFinal) }

// StoredError is an error of a function that is the stored answer of its key ([Do]).
// A further call with the key gets the same text and does not run the function.
//
// In the call that ran the function it wraps the error that the function returned. A
// replay has the text alone: values of errors do not cross processes, so [errors.Is]
// finds no error of the application in it. A caller that has to tell such errors
// apart puts that into the result, and returns no error.
type StoredError struct {
	// Text is the text of the error.
	Text string
	// Replayed says that an earlier call ran the function.
	Replayed bool

	err error // nil in a replay
}

// Error returns the text.
func (e *StoredError) Error() string { return e.Text }

// Unwrap returns the error that the function returned; nil in a replay.
func (e *StoredError) Unwrap() error { return e.err }

// Is reports a match with [idempotency.ErrFinal].
func (e *StoredError) Is(target error) bool { return target == idempotency.ErrFinal }

// returned is an error of the function for the call that ran it.
func returned(failure error) error {
	if isFinal(failure) {
		return &StoredError{Text: failure.Error(), err: failure}
	}
	return failure
}

// RefusedError says that there is no result of a function ([Do]). The function did not
// run, or ran ([core.Refusal.Ran]) and what became of it is not known. Its text names
// neither a key nor an address of a server.
type RefusedError struct {
	// Refusal has the reason.
	Refusal *core.Refusal
	// RetryAfter is the time until the next try: a second if the reason passes by itself,
	// the [idempotency.Lease] if the function ran and lost its claim. 0 says that
	// it is not known, or that there is no use in it ([Permanent]).
	RetryAfter time.Duration

	failure error // of the function; nil if it did not run, or returned none
}

// Refused returns a refusal as the error that [Do] returns for it, a [*RefusedError].
// It is for consumers that use a guard alone ([core.Guard.Do]). Refused(nil) is nil.
func Refused(refusal *core.Refusal) error {
	if refusal == nil {
		return nil
	}
	return newRefused(refusal)
}

func newRefused(r *core.Refusal) *RefusedError {
	return &RefusedError{Refusal: r, RetryAfter: r.RetryAfter()}
}

// Error returns the text of [core.Refusal.LogError], and the error of the function.
func (e *RefusedError) Error() string {
	if e.failure == nil {
		return e.Refusal.String()
	}
	return fmt.Sprintf("%v; the function returned: %v", e.Refusal, e.failure)
}

// Unwrap returns the cause of the refusal, and the error of the function.
func (e *RefusedError) Unwrap() []error {
	var all []error
	for _, err := range []error{e.Refusal.Err, e.failure} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// Permanent reports whether an error of [Do] stays as it is, however often the call is
// repeated: the consumer puts the message aside. That is so for a [*StoredError] and for
// an error marked with [Final], and for a refusal with one of these reasons:
// [reason.OutcomeUnknown], [reason.KeyReused], [reason.ResponseUnavailable],
// [reason.KeyExpired], [reason.KeyMissing], [reason.KeyMalformed], [reason.BadKey],
// [reason.BodyTooLarge], [reason.StaleToken], [reason.TokenMissing] and
// [reason.TokenMalformed]. An unknown outcome ends when an operator calls
// [idempotency.Engine.Resolve]: then the message can be consumed again.
func Permanent(err error) bool {
	if isFinal(err) {
		return true
	}
	var refused *RefusedError
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.Refusal.Reason {
	case reason.OutcomeUnknown, reason.KeyReused, reason.ResponseUnavailable, reason.KeyExpired,
		reason.KeyMissing, reason.KeyMalformed, reason.BadKey, reason.BodyTooLarge,
		reason.StaleToken, reason.TokenMissing, reason.TokenMalformed: // a message keeps its token
		return true
	}
	return false
}
