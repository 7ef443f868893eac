package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/interlock-go/interlock/core"
)

// Step carries out one step of a handler, a job ([Engine.TakeOver]) or a function (package once), and
// stores its result with the claim before it returns. A handler that runs again after a crash, a
// failure or a hand-over gets the stored result, and f is not called:
//
//	charge, err := idempotency.Step(ctx, "charge", func(ctx context.Context) (string, error) {
//		return bank.Charge(ctx, amount, idempotency.DownstreamKey(ctx))
//	})
//
// The context of f derives from ctx. In f [DownstreamKey] and [CallKey] derive keys for this step,
// which are the same in each attempt. If the process dies in f, the next attempt calls f again with
// the same keys: the called service must deduplicate by them. For a service that does not, see [Once].
//
// The result is encoded as JSON ([StepCodec] changes that), and Step returns the decoded result in each
// attempt, also in the first. An error of f is not stored: the next attempt calls f again, and so
// does a further Step with the name in this attempt. An error marked by [Final] is stored, and
// Step returns it as a [*StepError]. A panic passes through, and stores nothing.
//
// name has 1 to 64 letters, digits and the characters . _ - / : and is the same in all attempts,
// also in the attempts of the next version of the program: under a new name the step is carried
// out again. Steps may run at the same time under different names. These are errors that match
// [core.ErrConfig]: a name that is not valid; a second step with a name in one attempt; a step inside a
// step; a step for which the record has no room ([MaxStepBytes]). Then f was not called.
//
// If f had its effect, and its result cannot be encoded or is too long, Step stores that f is done
// and returns the result of f together with [ErrStepNotStored]. Later attempts get that error
// with the zero value. If the store does not confirm the result, the error matches
// [core.ErrUnavailable]; a further Step with the name in this attempt stores the result of f and
// does not call f again. Other errors: see [MarkEffect], and [ErrDamaged]. If the claim is
// lost, nothing is stored. In a request that was let through without a record ([Optional],
// [FailOpen]) Step only calls f.
//
// In f a transaction of the store (pgstore.Tx) belongs to the step: its rows and the result are
// committed together, or neither is. The next step has another transaction.
//
// Each step costs one request to the store, two with Once, and none if its result is stored.
func Step[T any](ctx context.Context, name string, f func(ctx context.Context) (T, error), opts ...StepOption) (T, error) {
	var value, stored T
	r, err := enterStep(ctx, name, opts)
	if err != nil {
		return value, fmt.Errorf("interlock: step %q: %w", name, err)
	}
	defer r.leave()
	if r.entered || r.state == through {
		err = r.run(func(ctx context.Context) (any, error) {
			var failure error
			value, failure = f(ctx)
			return value, failure
		})
		if err != nil || r.state == through {
			return value, err
		}
	}
	if err = r.result(&stored); !errors.Is(err, ErrStepNotStored) {
		return stored, err
	}
	return value, r.said(err)
}

// StepOption changes one call of [Step]. A nil StepOption has no effect.
type StepOption func(*stepOptions)

type stepOptions struct {
	once      bool
	marshal   func(v any) ([]byte, error)
	unmarshal func(data []byte, v any) error
	err       error
}

// Once says that the service that a step calls does not deduplicate. The record then says that the
// step begins, before it does (one request more), and no attempt carries the step out a second time. If
// the process dies in the step, or the step fails, the outcome is unknown: requests with the key are
// refused ([reason.OutcomeUnknown]) after the lease, and an operator settles the step
// ([Engine.Resolve] with admin.StepDone or admin.NotCarriedOut). A step that knows from its error that
// nothing has happened returns it marked by [NotDone]. One step with Once runs at a time.
func Once() StepOption {
	return func(o *stepOptions) { o.once = true }
}

// StepCodec says how the result of a step is encoded; see once.Codec. Each attempt has the same
// codec. Default: encoding/json.
func StepCodec(marshal func(v any) ([]byte, error), unmarshal func(data []byte, v any) error) StepOption {
	return func(o *stepOptions) {
		if o.marshal, o.unmarshal = marshal, unmarshal; marshal == nil || unmarshal == nil {
			o.err = fmt.Errorf("%w: StepCodec: neither function may be nil", core.ErrConfig)
		}
	}
}

func stepOptionsOf(opts []StepOption) stepOptions {
	o := stepOptions{marshal: json.Marshal, unmarshal: json.Unmarshal}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// MaxStepBytes bounds the length of the stored steps of a request, in bytes: each takes its result in
// its encoded form, and about 20 bytes with a name of 8. Default: 64 KiB.
func MaxStepBytes(n int64) Option {
	return func(c *config) { c.size(&c.maxSteps, "MaxStepBytes", n) }
}

// ErrStepNotStored says that a step was carried out, and that its result is not stored: it was too
// long ([MaxStepBytes]), or could not be encoded or sealed.
var ErrStepNotStored = errors.New("interlock: the step was carried out, and its result is not stored")

// ErrFinal is matched by errors that stay as they are, however often the work is repeated: errors
// marked by [Final], a [*StepError], and the stored errors of package once.
var ErrFinal = errors.New("interlock: the error is final")

// Final marks an error of a [Step] as its outcome: it is stored, and later attempts get it and do not
// call the function. Use it for what no later try changes: the card is declined, the flight is full.
// An error that wraps the returned one is marked, too. Its text is stored, and the text that a
// method Code() string of an error in its chain returns ([StepError]). In a transaction of the
// step (pgstore.Tx) the rows are committed with it. Final(nil) is nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &finalError{err}
}

type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// Is reports a match with [ErrFinal].
func (e *finalError) Is(target error) bool { return target == ErrFinal }

// NotDone marks an error of a [Step] with [Once] that had no effect, and will have none: the
// connection was refused, the service answered 503. The step can be carried out again. NotDone(nil)
// is nil.
func NotDone(err error) error {
	if err == nil {
		return nil
	}
	return &notDone{err}
}

type notDone struct{ error }

func (e *notDone) Unwrap() error { return e.error }

// StepError is the stored error of a [Step]. It matches [ErrFinal]. In the attempt that ran the step it
// wraps the error of its function. Later attempts have Text and Code alone: errors.Is finds no error
// of the application in them.
type StepError struct {
	// Step is the name of the step.
	Step string
	// Text is the text of the error.
	Text string
	// Code is the result of a method Code() string of the error; empty if it has none.
	Code string
	// Replayed says that an earlier attempt ran the step.
	Replayed bool

	err error // nil if it is replayed
}

// Error returns the text.
func (e *StepError) Error() string { return e.Text }

// Unwrap returns the error of the function; nil in a later attempt.
func (e *StepError) Unwrap() error { return e.err }

// Is reports a match with [ErrFinal].
func (e *StepError) Is(target error) bool { return target == ErrFinal }

// codeOf returns the code of an error.
func codeOf(err error) string {
	var coded interface{ Code() string }
	if errors.As(err, &coded) {
		return coded.Code()
	}
	return ""
}
