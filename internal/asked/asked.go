// Package asked decides a client's knowledge of a request to an idempotent endpoint that it has
// sent, perhaps several times. The adapters translate the answers of their protocols, and send
// the request again where a [Step] says so. The rule is one for all protocols: after a try that
// was not answered, only an answer that the endpoint marks as its own settles the request. The
// answers of proxies, login pages and middleware in front say nothing about that try.
package asked

import (
	"fmt"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/reason"
)

// Quoted returns a key as a header field has it, or an error that matches
// [endpoint.ErrKeyMalformed].
func Quoted(key string) (string, error) {
	if bare, err := endpoint.ParseKey([]string{key}); err == nil && bare == key {
		return key, nil
	}
	quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
	_, err := endpoint.ParseKey([]string{quoted})
	return quoted, err
}

// Kind is the kind of a try's result.
type Kind int

const (
	// Unsent says that no server was reached.
	Unsent Kind = iota
	// Unanswered says that the request was sent, and no complete answer came.
	Unanswered
	// Success is an answer of success, with or without a mark. An answer without a mark is
	// believed too: most endpoints of other makes have no marks, and a caller that believes a
	// success does not pay twice.
	Success
	// Stored is a marked answer of the handler that each further try gets.
	Stored
	// NotNow is a marked answer of the handler that is not stored.
	NotNow
	// Failed says that the handler failed, or a server in front of it could not get its answer.
	Failed
	// FailedForGood is a replayed failure.
	FailedForGood
	// Busy says that a server without a mark refuses the try for the moment.
	Busy
	// Foreign is any other answer without a mark.
	Foreign
	// Refused is a marked refusal. The Reason of the Answer says why.
	Refused
)

// Answer is the result of a try, in terms of no protocol.
type Answer struct {
	Kind   Kind
	Reason reason.Reason // of Refused
	Ran    bool          // of Refused: the handler ran
	// Status is what an error says of the answer, in words of the protocol.
	Status string
}

// Marked returns the answer of a refusal from the value of [idempotency.ResultHeader], and false
// for an answer of the handler or no mark.
func Marked(value string) (Answer, bool) {
	why, parameter, _ := strings.Cut(value, ";")
	if why == "" || why == idempotency.ResultAnswered {
		return Answer{}, false
	}
	return Answer{Kind: Refused, Reason: reason.Reason(why), Ran: parameter == "ran"}, true
}

// Outcome is the client's knowledge of its request.
type Outcome int

const (
	// Nothing says that nothing was carried out.
	Nothing Outcome = iota
	// Answered says that the answer of the endpoint holds.
	Answered
	// Unknown says that the request may have been carried out.
	Unknown
)

// Step is the next step after a try.
type Step struct {
	// Again says that the request can be sent again.
	Again bool
	// Outcome holds if it is not sent again.
	Outcome Outcome
	// Err is the result in place of the answer. It is nil if the caller gets the answer.
	Err error
}

// Request gathers the outcomes of all tries of a request. It is not safe for concurrent use.
type Request struct {
	before  bool // the key may have been sent before this request
	lost    bool // a try may have been carried out
	foreign bool // the try before had a foreign answer
	why     reason.Reason
}

// New returns a request that was not sent yet. before says that an earlier call, of a process
// that died since perhaps, may have sent the key.
func New(before bool) Request { return Request{before: before} }

// Unknown reports whether the request may have been carried out.
func (r *Request) Unknown() bool { return r.lost || r.before }

// Reason returns the reason of the last answer if it was a marked refusal, else "".
func (r *Request) Reason() reason.Reason { return r.why }

// After notes the result of a try, and returns the next step.
func (r *Request) After(a Answer) Step {
	again := !r.foreign // a stored answer comes back with its mark at once
	r.foreign, r.why = false, a.Reason
	switch a.Kind {
	case Success, Stored:
		r.lost, r.before = false, false
		return Step{Outcome: Answered}
	case FailedForGood:
		r.lost = true
		return r.step(false, a)
	case NotNow:
		// The endpoint had no answer for the key. A lost try can still be on its way.
		r.before = false
		return r.answered(again, a)
	case Foreign:
		return r.answered(again, a)
	case Refused:
		return r.refused(a)
	case Unanswered, Failed:
		r.lost = true
	case Unsent, Busy:
	}
	return r.step(true, a)
}

// answered is the step after an answer that is final, unless the request may have been carried
// out: then it is sent once more.
func (r *Request) answered(again bool, a Answer) Step {
	if !r.Unknown() {
		return Step{Outcome: Answered}
	}
	r.foreign = true
	return r.step(again, a)
}

// refused is the step after a marked refusal.
func (r *Request) refused(a Answer) Step {
	switch a.Reason {
	case reason.OutcomeUnknown:
		r.lost = true
		return Step{Outcome: Unknown, Err: idempotency.ErrOutcomeUnknown}
	case reason.KeyExpired: // a request with the key was begun, and its end is forgotten
		r.lost = true
		return Step{Outcome: Unknown, Err: fmt.Errorf("%w: %w", idempotency.ErrOutcomeUnknown, idempotency.ErrKeyExpired)}
	case reason.ResponseUnavailable, reason.NotAcceptable: // it was carried out
		r.lost, r.before = false, false
		return Step{Outcome: Answered, Err: idempotency.ErrResponseUnavailable}
	case reason.KeyReused:
		// The tries of this request have one body, so none of them was carried out. An earlier
		// request with another body may have been.
		if r.lost = false; r.before {
			return Step{Outcome: Unknown, Err: fmt.Errorf("%w: %w", idempotency.ErrOutcomeUnknown, idempotency.ErrKeyReused)}
		}
		return Step{Outcome: Nothing, Err: idempotency.ErrKeyReused}
	case reason.Superseded: // it would come back as the newest
		if r.lost = r.lost || a.Ran; r.Unknown() {
			return Step{Outcome: Unknown, Err: fmt.Errorf("%w: %w", idempotency.ErrOutcomeUnknown, core.ErrSuperseded)}
		}
		return Step{Outcome: Nothing}
	}
	r.lost = r.lost || a.Ran || a.Reason == reason.InFlight
	passes := (&core.Refusal{Reason: a.Reason}).Retryable() || a.Reason == reason.Deadline
	return r.step(passes || a.Ran && a.Reason != reason.HeldByCaller, a)
}

// step is the step after an answer that does not settle the request.
func (r *Request) step(again bool, a Answer) Step {
	if !r.Unknown() {
		return Step{Again: again, Outcome: Nothing}
	}
	s := Step{Again: again, Outcome: Unknown, Err: idempotency.ErrOutcomeUnknown}
	switch {
	case a.Status != "" && a.Reason != "":
		s.Err = fmt.Errorf("%w: the last answer is %s (%s)", s.Err, a.Status, a.Reason)
	case a.Status != "":
		s.Err = fmt.Errorf("%w: the last answer is %s", s.Err, a.Status)
	}
	if a.Reason == reason.HeldByCaller { // no later try is answered otherwise, while the caller holds the lock
		s.Err = fmt.Errorf("%w: %w", s.Err, core.ErrHeldByCaller)
	}
	return s
}

// InTheWay reports whether a try was refused for a lock of another holder, or for the number of
// locks. A caller that holds a lock does not send the request again: all who wait for its lock
// would wait for each further try.
func InTheWay(why reason.Reason) bool {
	switch why {
	case reason.Held, reason.QueueFull, reason.Full, reason.PrincipalLimit:
		return true
	}
	return false
}

// Patience bounds the tries of a request.
type Patience struct {
	tries   int
	limited bool // by the caller
	began   time.Time
	counted int
}

const (
	defaultTries = 8
	// longestClaim is how long a key stays in flight after the death of its server: the default of
	// idempotency.Lease, and some time for the store to notice.
	longestClaim = 35 * time.Second
)

// NewPatience returns the patience of a request that begins now. tries is how often the caller
// has it sent at most, and 0 leaves that to the default.
func NewPatience(tries int) Patience {
	if tries > 0 {
		return Patience{tries: tries, limited: true, began: time.Now()}
	}
	return Patience{tries: defaultTries, began: time.Now()}
}

// Left counts a try, and reports whether another one is allowed. By default a request in flight
// is sent again for as long as its server can have died: these tries do not count.
func (p *Patience) Left(a Answer) bool {
	if !p.limited && a.Kind == Refused && a.Reason == reason.InFlight && time.Since(p.began) < longestClaim {
		return true
	}
	p.counted++
	return p.counted < p.tries
}
