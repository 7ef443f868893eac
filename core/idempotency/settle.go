package idempotency

import "github.com/interlock-go/interlock/core/reason"

// facts are all that counts for a claim when its handler has ended. A panic, and runtime.Goexit,
// are an answer that failed.
type facts struct {
	success  bool     // by the status of the answer
	class    class    // of the answer
	overflow overflow // of the answer
	long     bool     // the answer came whole, and is longer than MaxResponse
	silent   bool     // there is no answer, or the answer must not leave
	marked   bool     // MarkEffect: the effect may have happened
	lost     bool     // the claim was not renewed, or a lock around the handler was lost
	lockLost bool     // it was a lock: another holder may have begun
	inner    bool     // the answer comes from a call inside that was refused, or lost its lock or claim
	innerRan bool     // and the handler of that call has run
	handed   bool     // HandOver: a job may have the claim, and the answer is an interim one
	stepOpen bool     // a step with Once may have had its effect, and has no stored outcome
	unit     unitState
	policy
}

// unitState is the progress of the handler's transaction.
type unitState int

const (
	unitNone       unitState = iota
	unitOpen                 // the engine has to end it
	unitCommitted            // with the answer
	unitOvertaken            // rolled back: another attempt has taken over
	unitRolledBack           // by the engine
	unitRefused              // rolled back by the database
	unitAborted              // rolled back by the database, since a statement of the handler failed
	unitEnded                // by the handler
	unitUnclear              // the database does not answer
)

// plan is what becomes of a claim, and of its client.
type plan struct {
	does action
	gets share
	why  reason.Reason // of gets == refusal
}

// action is a decision about a claim.
type action int

const (
	commitUnit   action = iota // store the answer and commit the transaction, both or neither
	rollBack                   // roll the transaction back
	store                      // store the answer
	storeNone                  // store that there is no answer to be had
	abandon                    // give the claim up: the next duplicate is carried out
	abandonLater               // the same, when the database says that the transaction was not committed
	mark                       // mark the effect, so that no attempt carries the request out again, and leave
	leave                      // leave the claim to the end of its lease
	keep                       // the record is decided already
)

// share is the kind of the client's answer.
type share int

const (
	ownAnswer share = iota // the answer of the handler; if another attempt has taken over, its answer
	winners                // the answer of the attempt that has taken over
	lossOf                 // the refusal for the loss
	inners                 // the answer of the handler, which is a refusal by the call inside
	refusal                // a refusal of the engine, with a reason
)

// settle decides what becomes of a claim when its handler has ended. A transaction ends first:
// while it is open, the plan says only how, and settle decides again by its new state. If the
// claim was handed over, to store is to store an interim answer, and abandon changes nothing once
// a job has the claim: in both cases the store compares the ticket.
// docs/idempotency.md has the table.
func settle(f facts) plan {
	switch {
	case f.unit == unitOpen && f.commits() && !f.long:
		return plan{does: commitUnit}
	case f.unit == unitOpen:
		return plan{does: rollBack}
	case f.unit == unitCommitted || f.overflow == sentDecided:
		return plan{does: keep, gets: ownAnswer}
	case f.unit == unitOvertaken || f.overflow == takenOver:
		return plan{does: keep, gets: winners}
	case f.unit == unitEnded:
		return plan{mark, refusal, reason.OutcomeUnknown}
	case f.unit == unitUnclear:
		return f.undone(abandonLater, reason.InFlight)
	case f.unit == unitRolledBack && f.tooLarge():
		return f.undone(abandon, reason.ResponseTooLarge)
	case f.unit == unitRefused, f.unit == unitAborted && f.success,
		f.unit == unitRolledBack && (f.overflow == brokenOff || f.lost && !f.inner): // no effect, for any answer
		return f.undone(abandon, reason.RolledBack)
	case f.handed && f.overflow == brokenOff:
		return plan{keep, refusal, reason.InFlight} // the job goes on, and stores its answer
	case f.overflow == brokenOff:
		// The handler may have had its effect: to run it again could have the effect twice, and to
		// store the part would pass it for the whole.
		return plan{storeNone, refusal, reason.ResponseUnavailable}
	case f.lost && (f.overflow == withheld || f.silent && f.overflow == fits):
		// The handler gave up since its context ended, or for its own reasons: its effects are
		// not known.
		return plan{does: leave, gets: lossOf}
	case f.inner && (f.innerRan || f.unsure()):
		return plan{does: leave, gets: inners}
	case f.inner:
		return plan{does: abandon, gets: inners}
	case f.handed && f.stores(f.class, f.marked) && (f.long || f.overflow == sentUndecided):
		return plan{does: keep, gets: ownAnswer} // without an interim answer
	case f.stores(f.class, f.marked) && (f.long || f.overflow == sentUndecided):
		return plan{does: storeNone, gets: ownAnswer}
	case f.stores(f.class, f.marked):
		return plan{does: store, gets: ownAnswer}
	case f.lost:
		return plan{does: leave, gets: ownAnswer}
	case f.stepOpen && f.overflow == fits:
		return plan{leave, refusal, reason.OutcomeUnknown}
	case f.stepOpen:
		return plan{does: leave, gets: ownAnswer}
	}
	return plan{does: abandon, gets: ownAnswer}
}

// commits reports whether the answer of the handler commits its transaction, unless the answer is
// too long. A claim that was only not renewed still counts if no other attempt has taken over:
// the commit compares its token. A lock that was lost does not.
func (f facts) commits() bool {
	return (f.class == final || f.class == invalid) && f.stores(f.class, f.marked) &&
		f.overflow == fits && !f.inner && !f.lockLost && (!f.lost || !f.silent)
}

// tooLarge reports whether a transaction was not committed for the length of the answer: no part
// of it could leave before the commit.
func (f facts) tooLarge() bool { return f.overflow == oversized || f.long && f.commits() }

// undone is the plan for a transaction without effect. A marked effect may have happened
// elsewhere: then the outcome is unknown.
func (f facts) undone(does action, why reason.Reason) plan {
	if f.unsure() {
		return plan{leave, refusal, reason.OutcomeUnknown}
	}
	return plan{does, refusal, why}
}

// unsure reports whether an effect may have happened that no attempt is to have again.
func (f facts) unsure() bool { return f.marked || f.stepOpen }
