package idempotency

import (
	"context"
	"encoding/base64"
	"fmt"
	"iter"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/steplog"
)

// Resumable lets a job carry on a request whose process died, or whose handler failed, after a step
// ([Step]), also if the client never sends it again. The first step stores the [Name] of the endpoint
// with its result, and [Engine.Abandoned] then has a [Ticket] for the request. The job has only the
// stored steps: let the first step of the handler store the input. Default: off.
func Resumable() Option {
	return func(c *config) { c.resumable = true }
}

// Abandoned is a request that no attempt carries on ([Engine.Abandoned]).
type Abandoned struct {
	// Record is the hash of the request in logs, in traces and in the tool.
	Record string
	// Step is the last step with a stored outcome.
	Step string
	// Since is the time since the end of the last lease.
	Since time.Duration
	// Ticket gives the request to a job ([Engine.TakeOver]). It is zero if the endpoint is not
	// [Resumable]. A ticket of [HandOver] is not known here: its message brings it again.
	Ticket Ticket
}

// Abandoned goes through the requests of the endpoint that have stored steps, none under way that must
// not run twice, and no attempt since a lease ended olderThan ago. These are the requests that a retry
// would carry on. With [Resumable] they are the requests of the endpoint with the [Name] of e; requests
// of endpoints that are not Resumable are included, without a ticket. A job calls it from time to time:
//
//	for a, err := range engine.Abandoned(ctx, time.Minute) {
//		if err != nil {
//			return err
//		}
//		err = engine.TakeOver(ctx, a.Ticket, carryOn)
//	}
//
// Several jobs may do so at once: one takes a request, and the others get [ErrTicketTaken], as if a
// retry has it. A retry is as good as a job: the first counts. After a [Retention] without an
// attempt the request is gone, and TakeOver returns [ErrTicketRanOut].
//
// It reads all records of the store: call it for a schedule, and not for each request. An error ends the
// iteration: the store's, or [core.ErrConfig] if the store is no [record.Lister]. The stores of
// this module are.
func (e *Engine) Abandoned(ctx context.Context, olderThan time.Duration) iter.Seq2[Abandoned, error] {
	return func(yield func(Abandoned, error) bool) {
		lister := listerOf(e.store)
		if lister == nil {
			yield(Abandoned{}, fmt.Errorf("%w: %T does not list its records (record.Lister)", core.ErrConfig, e.store))
			return
		}
		for v, err := range lister.ListRecords(ctx, "", true) {
			if err == nil && !isAbandoned(&v, olderThan) {
				continue
			}
			if err == nil {
				v, err = lister.LookRecord(ctx, v.ID) // lists do not have the steps
			}
			if err != nil {
				yield(Abandoned{}, fmt.Errorf("interlock: listing abandoned requests: %w", err))
				return
			}
			a, foreign := e.abandonedOf(&v)
			if isAbandoned(&v, olderThan) && !foreign && !e.config.strict && !yield(a, nil) {
				return
			}
		}
	}
}

// listerOf finds the lister in a store, or in a store that wraps it.
func listerOf(store Store) record.Lister {
	for {
		switch s := store.(type) {
		case record.Lister:
			return s
		case interface{ Unwrap() Store }:
			store = s.Unwrap()
		default:
			return nil
		}
	}
}

// isAbandoned reports whether a retry would carry the request of a record on.
func isAbandoned(v *record.View, olderThan time.Duration) bool {
	return v.State == record.StateGranted && v.Step != "" && v.Open == "" && -v.Left >= olderThan
}

// abandonedOf describes a record. foreign says that it belongs to another endpoint.
func (e *Engine) abandonedOf(v *record.View) (a Abandoned, foreign bool) {
	a = Abandoned{Record: v.ID, Step: v.Step, Since: max(0, -v.Left)}
	all, err := steplog.Read(string(v.Log))
	if err != nil {
		return a, true // no attempt can read it either
	}
	for _, entry := range all {
		of := ticketParts{hops: 1}
		if n, err := base64.RawURLEncoding.Decode(of.id[:], []byte(v.ID)); entry.Kind != steplog.Origin || err != nil || n != len(of.id) ||
			len(entry.Payload) != 1+len(of.fingerprint) {
			continue
		}
		foreign = entry.Name != e.config.name
		for protocol, letter := range ticketProtocols {
			if letter == entry.Payload[0] {
				of.protocol = protocol
				copy(of.fingerprint[:], entry.Payload[1:])
				a.Ticket = of.ticket()
			}
		}
	}
	return a, foreign
}

// originEntry is the entry of a request that a job may carry on.
func (a *attempt) originEntry() steplog.Entry {
	return steplog.Entry{
		Kind: steplog.Origin, Name: a.engine.config.name, Payload: string(ticketProtocols[a.protocol]) + string(a.fingerprint[:]),
	}
}
