package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// abandoned lists the requests that no attempt carries on.
func (w *world) abandoned(e *idempotency.Engine, olderThan time.Duration) (all []idempotency.Abandoned) {
	w.Helper()
	for a, err := range e.Abandoned(w.Context(), olderThan) {
		if err != nil {
			w.Fatalf("Abandoned: %v", err)
		}
		all = append(all, a)
	}
	return all
}

// A request is carried to its end though its client never comes again.
func TestAJobCarriesAnAbandonedRequestOn(t *testing.T) {
	inBubble(t, func(w *world) {
		p, resumable := newTrip(), []idempotency.Option{idempotency.Name("trips"), idempotency.Resumable()}
		process := w.store.Process()
		w.dies(w.engineOn(process, resumable...), p, "mail", p.handler("charge", "book", "mail"))
		process.Kill() // or its renewals would go on
		w.Cleanup(process.End)
		e := w.engine(resumable...)
		if all := w.abandoned(e, time.Minute); len(all) != 0 {
			w.Errorf("abandoned for a minute: %+v; want none yet", all)
		}
		time.Sleep(2 * time.Minute)
		if all := w.abandoned(w.engine(idempotency.Name("cars"), idempotency.Resumable()), time.Minute); len(all) != 0 {
			w.Errorf("another endpoint finds %+v", all)
		}
		all := w.abandoned(e, time.Minute)
		if len(all) != 1 || all[0].Step != "book" || all[0].Since < time.Minute || all[0].Ticket == (idempotency.Ticket{}) || all[0].Record != w.record().ID {
			w.Fatalf("abandoned: %+v; want the request, after the step book, with a ticket", all)
		}
		text, err := all[0].Ticket.MarshalText()
		var sent idempotency.Ticket
		if err := errors.Join(err, sent.UnmarshalText(text)); err != nil || sent != all[0].Ticket {
			w.Errorf("the ticket as a text: %v", err)
		}
		broken := errors.New("no mail today")
		job := func(ctx context.Context) (endpoint.Response, error) {
			results, err := p.carryOut(ctx, "charge", "book", "mail")
			return endpoint.Response{Status: 201, Body: []byte(results)}, err
		}
		p.at["mail"] = func(context.Context) (string, error) { return "", broken }
		w.take(e, sent, broken, job)
		p.at["mail"] = func(ctx context.Context) (string, error) {
			w.take(e, sent, idempotency.ErrTicketTaken, w.none)
			return fmt.Sprint("mailed, generation ", idempotency.Generation(ctx)), nil
		}
		w.take(e, sent, nil, job)
		w.take(e, sent, idempotency.ErrTicketFinished, w.none)
		w.called(p, "charge book mail mail mail")
		w.want(serve(w.Context(), e, post("k"), w.unwanted), "replay 201 charge-1 book-2 mailed, generation 2")
		if all := w.abandoned(e, 0); len(all) != 0 {
			w.Errorf("after its end: %+v", all)
		}
		time.Sleep(25 * time.Hour)
		w.take(e, sent, idempotency.ErrTicketRanOut, w.none) // the record has expired, and no new one is made
		if r := w.record(); r != nil {
			w.Errorf("the ticket of a record that has expired leaves %+v", r)
		}
	})
}

// A retry that comes first has the request, and the job finds that out at once.
func TestARetryAndAJobDoNotCarryOnTogether(t *testing.T) {
	inBubble(t, func(w *world) {
		p := newTrip()
		e := w.engine(idempotency.Resumable(), idempotency.WaitReplay(time.Minute))
		w.dies(e, p, "book", p.handler("charge", "book"))
		ticket := w.abandoned(e, 0)[0].Ticket
		p.at["book"] = func(context.Context) (string, error) {
			begin := time.Now()
			w.take(e, ticket, idempotency.ErrTicketTaken, w.none)
			if time.Since(begin) > 0 {
				w.Error("the job waits for the retry")
			}
			return "booked", nil
		}
		w.want(serve(w.Context(), e, post("k"), p.handler("charge", "book")), "201 charge-1 booked")
		w.take(e, ticket, idempotency.ErrTicketFinished, w.none)
	})
}

// Only a request that a retry would carry on after a step is abandoned.
func TestRequestsThatAreNotAbandoned(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		fails := func(key string, steps func(ctx context.Context)) {
			serve(w.Context(), e, post(key), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				steps(ctx)
				return endpoint.Response{Status: 503}, true
			})
		}
		charge := func(ctx context.Context) { _, _ = idempotency.Step(ctx, "charge", nothing) }
		fails("no step", func(context.Context) {})
		serve(w.Context(), e, post("answered"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			charge(ctx)
			return endpoint.Response{Status: 201}, true
		})
		fails("a step under way", func(ctx context.Context) {
			charge(ctx)
			_, _ = idempotency.Step(ctx, "book", func(context.Context) (int, error) { return 0, errors.New("no answer") }, idempotency.Once())
		})
		fails("open", charge)
		time.Sleep(time.Minute)
		if all := w.abandoned(e, 0); len(all) != 1 || all[0].Step != "charge" || all[0].Ticket != (idempotency.Ticket{}) {
			w.Errorf("abandoned: %+v; want one request, without a ticket", all)
		}
		for _, err := range w.engineOn(struct{ idempotency.Store }{w.store}).Abandoned(w.Context(), 0) {
			if !errors.Is(err, core.ErrConfig) {
				w.Errorf("a store that lists nothing: %v; want %v", err, core.ErrConfig)
			}
		}
	})
}
