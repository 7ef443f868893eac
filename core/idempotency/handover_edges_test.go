package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

var errBank = errors.New("the bank is away")

// fails is a job that fails.
func fails(context.Context) (endpoint.Response, error) { return endpoint.Response{}, errBank }

// A worker with a lease of three seconds has a ticket of a minute, and fails. Its message is delivered
// again half a minute later.
func TestAJobThatFailsLeavesTheTicketItsTime(t *testing.T) {
	inBubble(t, func(w *world) {
		e, worker := w.engine(), w.engine(idempotency.Lease(3*time.Second))
		ticket := w.handed(e, "k")
		w.take(worker, ticket, errBank, fails)
		<-time.After(30 * time.Second)
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "interim 202 accepted")
		w.look(e, idempotency.StageInProgress, "202 accepted")
		w.take(worker, ticket, nil, paid)
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "replay 201 paid")
	})
}

// And the ticket is good for no longer: a job that took it late, with a long lease, gives back what is left.
func TestAJobThatFailsDoesNotLengthenTheTicket(t *testing.T) {
	inBubble(t, func(w *world) {
		e, worker := w.engine(), w.engine(idempotency.Lease(time.Hour))
		ticket := w.handed(e, "k")
		<-time.After(59 * time.Second)
		w.take(worker, ticket, errBank, fails)
		<-time.After(2 * time.Second)
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "200 run 1")
		w.take(worker, ticket, idempotency.ErrTicketFinished, w.none)
	})
}

// A job hands over for a month and fails, or gives no interim answer: the message that it came with is
// delivered again, and goes on.
func TestAJobThatHandsOverAndFailsLeavesTheTicketThatItTook(t *testing.T) {
	for name, end := range map[string]func() (endpoint.Response, error){
		"an error":             func() (endpoint.Response, error) { return endpoint.Response{}, errBank },
		"not a final answer":   func() (endpoint.Response, error) { return endpoint.Response{Status: 503}, nil },
		"a panic":              func() (endpoint.Response, error) { panic("bank on fire") },
		"an answer of nothing": func() (endpoint.Response, error) { return endpoint.Response{Status: 42}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine()
				ticket := w.handed(e, "k")
				var second idempotency.Ticket
				func() {
					defer func() { _ = recover() }()
					err := e.TakeOver(w.Context(), ticket, func(ctx context.Context) (answer endpoint.Response, err error) {
						if second, err = idempotency.HandOver(ctx, 31*24*time.Hour); err != nil {
							t.Error(err)
						}
						return end()
					})
					if err == nil {
						t.Error("a job that failed: no error")
					}
				}()
				w.take(e, second, idempotency.ErrTicketRanOut, w.none)
				w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "interim 202 accepted")
				w.take(e, ticket, nil, paid)
				w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "replay 201 paid")
			})
			inBubble(t, func(w *world) { // and without the message a retry is carried out after the time of the first ticket
				e := w.engine()
				ticket := w.handed(e, "k")
				func() {
					defer func() { _ = recover() }()
					_ = e.TakeOver(w.Context(), ticket, func(ctx context.Context) (endpoint.Response, error) {
						if _, err := idempotency.HandOver(ctx, 31*24*time.Hour); err != nil {
							t.Error(err)
						}
						return end()
					})
				}()
				<-time.After(61 * time.Second)
				w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "200 run 1")
			})
		})
	}
}

// The commit of a transaction hands the claim over: ticket, effects and interim answer are stored
// together, or none of them.
func TestACommitHandsTheClaimOver(t *testing.T) {
	gives := func(w *world, l *ledger, to *idempotency.Ticket, h handler) handler {
		return l.pays(w, w.giving(to, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			if _, err := idempotency.HandOver(ctx, time.Minute); err == nil {
				w.Error("a second HandOver: no error")
			}
			if err := idempotency.MarkEffect(ctx); err == nil {
				w.Error("MarkEffect after HandOver: no error")
			}
			w.take(w.engineOn(w.store), *to, idempotency.ErrTicketTaken, w.none) // a message outside of the transaction
			return h(ctx, a)
		}))
	}
	inBubble(t, func(w *world) {
		l := &ledger{store: w.store}
		e := w.engine()
		var ticket idempotency.Ticket
		w.want(serve(w.Context(), e, post("k"), gives(w, l, &ticket, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			<-time.After(2 * time.Minute) // the claim is renewed
			return replies(202, "accepted")(ctx, a)
		})), "202 accepted")
		<-time.After(59 * time.Second)
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "interim 202 accepted")
		w.take(e, ticket, nil, paid)
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "replay 201 paid")
	})
	for name, h := range failures {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				l := &ledger{store: w.store}
				e := w.engine()
				var ticket idempotency.Ticket
				w.failing(e, gives(w, l, &ticket, h))
				w.take(e, ticket, idempotency.ErrTicketRanOut, w.none)
				w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "200 run 1")
			})
		})
	}
	for name, failure := range map[string]error{"rolled back": record.ErrRolledBack, "aborted": record.ErrAborted} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				l := &ledger{store: w.store, commit: failure}
				e := w.engine()
				var ticket idempotency.Ticket
				w.want(serve(w.Context(), e, post("k"), gives(w, l, &ticket, replies(202, "accepted"))), "idempotency-rolled-back")
				w.take(e, ticket, idempotency.ErrTicketRanOut, w.none)
				w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "200 run 1")
			})
		})
	}
	inBubble(t, func(w *world) { // the process dies before the commit
		l := &ledger{store: w.store}
		e := w.engine()
		var ticket idempotency.Ticket
		w.want(serve(w.Context(), e, post("k"), gives(w, l, &ticket, func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
			w.store.LapseClaims()
			w.take(e, ticket, idempotency.ErrTicketRanOut, w.none)
			w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "200 run 1")
			return endpoint.Response{Status: 202, Body: []byte("accepted")}, true
		})), "replay 200 run 1")
	})
}
