package idempotency

import (
	"cmp"
	"slices"
	"time"
)

// PendingClaim describes a request whose record this process has not settled yet.
type PendingClaim struct {
	// Rule is the name of the endpoint ([Name]); it may be empty.
	Rule string
	// Record is the name of the record: a hash of the principal and the key. The
	// name of its key in Redis ends with it.
	Record string
	// State says what is still to be done.
	State PendingState
	// Generation is 1 for the first attempt at the request, and more for one that
	// took over from a process that fell silent.
	Generation int64
	// Since is when the claim was sent; the zero time if it was not answered.
	Since time.Time
	// Deadline is until when the claim is good without another renewal; the zero time
	// if the handler did not run.
	Deadline time.Time
}

// PendingState says what is still to be done for a claim.
type PendingState string

// The states of a [PendingClaim].
const (
	// PendingRunning: the handler runs.
	PendingRunning PendingState = "running"
	// PendingStoring: the client has its answer, and the store has not confirmed it yet.
	PendingStoring PendingState = "storing"
	// PendingReleasing: the request was not carried out, and the store has not confirmed
	// that its key is free.
	PendingReleasing PendingState = "releasing"
)

// PendingClaims lists the claims of this process, the oldest first, also those of engines
// made by [Engine.With]. The list can be out of date when it is returned: use it for
// debugging, not for decisions. It costs the requests nothing.
func (e *Engine) PendingClaims() []PendingClaim {
	all := e.background.claims()
	all = append(all, e.renewer.claims()...)
	slices.SortStableFunc(all, func(a, b PendingClaim) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Record, b.Record))
	})
	return all
}

// claims are those whose handlers run, as far as they can be lost or renewed.
func (r *renewer) claims() (all []PendingClaim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.events.Items() {
		if l.running && !l.decided {
			all = append(all, l.attempt.describe(r, PendingRunning))
		}
	}
	return all
}

// claims are those that the store has not confirmed.
func (b *background) claims() (all []PendingClaim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.renewer.mu.Lock()
	defer b.renewer.mu.Unlock()
	for j := range b.jobs {
		state := PendingReleasing
		if j.commit != nil {
			state = PendingStoring
		}
		all = append(all, j.attempt.describe(b.renewer, state))
	}
	return all
}

// describe describes the claim of an attempt. Called with the renewer's mutex held.
func (a *Attempt) describe(r *renewer, state PendingState) PendingClaim {
	return PendingClaim{
		Rule: a.engine.config.name, Record: a.id, State: state, Generation: a.generation,
		Since: a.sent, Deadline: r.clock.Time(a.lease.deadline),
	}
}
