package idempotency

import (
	"cmp"
	"slices"

	"github.com/interlock-go/interlock/core/idempotency/admin"
)

// PendingClaims lists the claims of this process, the oldest first, also those of engines
// made by [Engine.With]. The list can be out of date when it is returned: use it for
// debugging, not for decisions. It costs the requests nothing.
func (e *Engine) PendingClaims() []admin.Claim {
	all := e.background.claims()
	all = append(all, e.renewer.claims()...)
	slices.SortStableFunc(all, func(a, b admin.Claim) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Record, b.Record))
	})
	return all
}

// claims are those whose handlers run, as far as they can be lost or renewed.
func (r *renewer) claims() (all []admin.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.events.Items() {
		if l.running && !l.decided {
			all = append(all, l.attempt.describe(r, admin.Running))
		}
	}
	return all
}

// claims are those that the store has not confirmed.
func (b *background) claims() (all []admin.Claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.renewer.mu.Lock()
	defer b.renewer.mu.Unlock()
	for j := range b.jobs {
		state := admin.Releasing
		if j.commit != nil {
			state = admin.Storing
		}
		all = append(all, j.attempt.describe(b.renewer, state))
	}
	return all
}

// describe describes the claim of an attempt. Called with the renewer's mutex held.
func (a *attempt) describe(r *renewer, state admin.State) admin.Claim {
	return admin.Claim{
		Rule: a.engine.config.name, Record: a.id, State: state, Generation: a.generation,
		Since: a.sent, Deadline: r.clock.Time(a.lease.deadline),
	}
}
