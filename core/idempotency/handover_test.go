package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
)

// giving is a handler that hands its request over for a minute, and goes on as h.
func (w *world) giving(to *idempotency.Ticket, h handler) handler {
	return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
		t, err := idempotency.HandOver(ctx, time.Minute)
		if err != nil {
			w.Errorf("HandOver: %v", err)
		}
		*to = t
		return h(ctx, a)
	}
}

// replies is a handler that answers.
func replies(status int, body string) handler {
	return func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
		return endpoint.Response{Status: status, Body: []byte(body)}, true
	}
}

// handed sends a request that is handed over, and returns the ticket.
func (w *world) handed(e *idempotency.Engine, key string) (ticket idempotency.Ticket) {
	w.Helper()
	w.want(serve(w.Context(), e, post(key), w.giving(&ticket, replies(202, "accepted"))), "202 accepted")
	return ticket
}

// paid is a job that has its effect.
func paid(ctx context.Context) (endpoint.Response, error) {
	if err := idempotency.MarkEffect(ctx); err != nil {
		return endpoint.Response{}, err
	}
	return endpoint.Response{Status: 201, Body: []byte("paid")}, nil
}

// take takes a request over; want is nil or the error to match.
func (w *world) take(e *idempotency.Engine, t idempotency.Ticket, want error, job func(context.Context) (endpoint.Response, error)) {
	w.Helper()
	if err := e.TakeOver(w.Context(), t, job); !errors.Is(err, want) {
		w.Errorf("TakeOver: %v; want %v", err, want)
	}
}

// none is a job that must not run.
func (w *world) none(context.Context) (endpoint.Response, error) {
	w.Error("a job runs without a claim")
	return endpoint.Response{}, nil
}

// look checks how far a request is.
func (w *world) look(e *idempotency.Engine, stage idempotency.Stage, answer string) {
	w.Helper()
	p, err := e.Look(w.Context(), "alice", "k")
	got := ""
	if p.Answer != nil {
		got = fmt.Sprintf("%d %s", p.Answer.Status, p.Answer.Body)
	}
	if p.Stage != stage || got != answer || err != nil {
		w.Errorf("Look: %q with %q, %v; want %q with %q", p.Stage, got, err, stage, answer)
	}
}

func TestAJobAnswersARequestThatWasHandedOver(t *testing.T) {
	for _, protocol := range []string{endpoint.HTTP, endpoint.GRPC} {
		inBubble(t, func(w *world) {
			e, worker := w.engine(), w.engine(idempotency.Lease(3*time.Second))
			q := post("k")
			q.protocol = protocol
			accepted, done := "202 accepted", "201 paid"
			job, answer := paid, replies(202, "accepted")
			if protocol == endpoint.GRPC {
				accepted, done, answer = "0 accepted", "0 paid", replies(0, "accepted")
				job = func(ctx context.Context) (endpoint.Response, error) {
					return endpoint.Response{Body: []byte("paid")}, idempotency.MarkEffect(ctx)
				}
			}
			var ticket idempotency.Ticket
			var downstream string
			w.look(e, idempotency.StageFree, "")
			w.want(serve(w.Context(), e, q, w.giving(&ticket, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
				downstream = idempotency.DownstreamKey(ctx)
				w.look(e, idempotency.StageInProgress, "")
				w.want(serve(w.Context(), w.engine(), q, answers(200, new(int))), "idempotency-in-flight")
				return answer(ctx, a)
			})), accepted)
			<-time.After(50 * time.Second) // longer than the lease of the handler
			w.want(serve(w.Context(), e, q, answers(200, new(int))), "interim "+accepted)
			w.look(e, idempotency.StageInProgress, accepted)
			w.take(worker, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
				if g, d := idempotency.Generation(ctx), idempotency.DownstreamKey(ctx); g != 1 || d != downstream {
					t.Errorf("the job has generation %d and the downstream key %q; want 1, and the handler's", g, d)
				}
				<-time.After(30 * time.Second) // the claim is renewed
				w.take(e, ticket, idempotency.ErrTicketTaken, w.none)
				w.want(serve(w.Context(), e, q, answers(200, new(int))), "interim "+accepted)
				return job(ctx)
			})
			w.want(serve(w.Context(), e, q, answers(200, new(int))), "replay "+done)
			w.look(e, idempotency.StageFinished, done)
			w.take(worker, ticket, idempotency.ErrTicketFinished, w.none)
		})
	}
}

func TestTheFinalAnswerStaysWhereTheJobIsFasterThanTheHandler(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		var ticket idempotency.Ticket
		w.want(serve(w.Context(), e, post("k"), w.giving(&ticket, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			w.take(e, ticket, nil, paid)
			<-time.After(time.Minute)
			if err := ctx.Err(); err != nil {
				t.Errorf("the context of a handler that handed over has ended: %v", context.Cause(ctx))
			}
			return replies(202, "accepted")(ctx, a)
		})), "202 accepted")
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "replay 201 paid")
	})
	inBubble(t, func(w *world) { // and between: the job has the claim when the handler answers
		e := w.engine()
		var ticket idempotency.Ticket
		taken, answered := make(chan struct{}), make(chan struct{})
		go serve(w.Context(), e, post("k"), w.giving(&ticket, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			go w.take(e, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
				close(taken)
				<-answered
				return paid(ctx)
			})
			<-taken
			return replies(202, "accepted")(ctx, a)
		}))
		synctest.Wait()
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "interim 202 accepted")
		close(answered)
		synctest.Wait()
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "replay 201 paid")
	})
}

// failures are the ends of a handler that take its ticket back.
var failures = map[string]handler{
	"500":    replies(500, "broken"),
	"409":    replies(409, "later"),
	"panics": func(context.Context, endpoint.Attempt) (endpoint.Response, bool) { panic("bank on fire") },
	"silent": func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
		return endpoint.Response{Status: 500}, false
	},
}

func TestAHandlerThatFailsTakesItsTicketBack(t *testing.T) {
	for name, fails := range failures {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine()
				var ticket idempotency.Ticket
				w.failing(e, w.giving(&ticket, fails))
				w.take(e, ticket, idempotency.ErrTicketRanOut, w.none)
				w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "200 run 1")
				w.take(e, ticket, idempotency.ErrTicketFinished, w.none)
			})
		})
	}
}

// failing sends a request to a handler that may panic.
func (w *world) failing(e *idempotency.Engine, h handler) {
	defer func() { _ = recover() }()
	serve(w.Context(), e, post("k"), h)
}

func TestAHandlerThatFailsDoesNotTakeTheClaimOfItsJob(t *testing.T) {
	for name, fails := range failures {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine()
				var ticket idempotency.Ticket
				running := make(chan struct{})
				w.failing(e, w.giving(&ticket, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
					go w.take(e, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
						close(running)
						<-time.After(time.Minute)
						return paid(ctx)
					})
					<-running
					return fails(ctx, a)
				}))
				w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "idempotency-in-flight")
				<-time.After(2 * time.Minute)
				w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "replay 201 paid")
			})
		})
	}
}

func TestAnAnswerThatCannotBeTheInterimOneLeavesTheClaimToTheJob(t *testing.T) {
	for name, c := range map[string]struct {
		h     handler
		first string
	}{
		"too long": {replies(202, strings.Repeat("x", 101)), "202 " + strings.Repeat("x", 101)},
		"sent early": {func(_ context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			if !a.TooLarge(202) {
				t.Error("an answer over the limit is held back")
			}
			return endpoint.Response{Status: 202}, true
		}, "202 "},
		"broken off": {func(_ context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			a.BrokenOff(errors.New("the disk is full"))
			return endpoint.Response{Status: 202}, true
		}, "ran, then idempotency-in-flight"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine(idempotency.MaxResponse(100))
				var ticket idempotency.Ticket
				w.want(serve(w.Context(), e, post("k"), w.giving(&ticket, c.h)), c.first)
				w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "idempotency-in-flight")
				w.take(e, ticket, nil, paid)
				w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "replay 201 paid")
			})
		})
	}
}

func TestARetryIsCarriedOutAfterTheTimeOfATicketThatNoJobBrought(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		ticket := w.handed(e, "k")
		<-time.After(61 * time.Second)
		w.look(e, idempotency.StageFree, "")
		var second idempotency.Ticket
		w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			if g := idempotency.Generation(ctx); g != 2 {
				t.Errorf("generation %d; want 2: the request may have been begun", g)
			}
			return w.giving(&second, replies(202, "accepted again"))(ctx, a)
		}), "202 accepted again")
		w.take(e, ticket, idempotency.ErrTicketRanOut, w.none)
		w.take(e, second, nil, paid)
		late := w.handed(e, "l")
		<-time.After(time.Hour)
		w.take(e, late, nil, paid) // no retry was quicker
		gone := w.handed(e, "m")
		<-time.After(25 * time.Hour)
		w.take(e, gone, idempotency.ErrTicketRanOut, w.none)
	})
}

// The job of a process that dies: its claim lapses, and a second job has the ticket.
func TestATicketIsTakenAgainAfterADeadJob(t *testing.T) {
	inBubble(t, func(w *world) {
		e, other := w.engine(), w.engine()
		ticket := w.handed(e, "k")
		w.take(e, ticket, idempotency.ErrTicketFinished, func(context.Context) (endpoint.Response, error) {
			w.store.LapseClaims()
			w.take(other, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
				if g := idempotency.Generation(ctx); g != 2 {
					t.Errorf("generation %d; want 2", g)
				}
				return paid(ctx)
			})
			return endpoint.Response{Status: 201, Body: []byte("too late")}, nil
		})
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "replay 201 paid")

		ticket = w.handed(e, "l")
		w.take(e, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
			answer, err := paid(ctx)
			w.store.LapseClaims()
			w.take(other, ticket, idempotency.ErrOutcomeUnknown, w.none)
			w.want(serve(w.Context(), e, post("l"), answers(200, new(int))), "idempotency-outcome-unknown")
			return answer, err
		})
		w.want(serve(w.Context(), e, post("l"), answers(200, new(int))), "replay 201 paid")

		ticket = w.handed(e, "m")
		w.take(e, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
			w.store.LapseClaims()
			w.want(serve(w.Context(), e, post("m"), answers(200, new(int))), "interim 202 accepted") // the ticket is good
			return paid(ctx)
		})
		ticket = w.handed(e, "n")
		<-time.After(time.Minute) // its time is over
		w.take(e, ticket, core.ErrLost, func(ctx context.Context) (endpoint.Response, error) {
			w.store.LapseClaims()
			w.want(serve(w.Context(), e, post("n"), answers(200, new(int))), "200 run 1")
			_, err := paid(ctx)
			return endpoint.Response{}, err
		})
		w.take(e, ticket, idempotency.ErrTicketFinished, w.none)
	})
}

func TestAJobThatFailsGivesItsClaimBackToTheTicket(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		ticket := w.handed(e, "k")
		fails := errors.New("the bank is away")
		w.take(e, ticket, fails, func(context.Context) (endpoint.Response, error) { return endpoint.Response{}, fails })
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "interim 202 accepted")
		for _, status := range []int{503, 409, 42} {
			if err := e.TakeOver(w.Context(), ticket, func(context.Context) (endpoint.Response, error) {
				return endpoint.Response{Status: status}, nil
			}); err == nil || errors.Is(err, core.ErrConfig) != (status == 42) {
				t.Errorf("status %d: %v; want an error that the answer is not final", status, err)
			}
		}
		func() {
			defer func() { _ = recover() }()
			w.take(e, ticket, nil, func(context.Context) (endpoint.Response, error) { panic("bank on fire") })
		}()
		w.take(e, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
			if g := idempotency.Generation(ctx); g != 1 {
				t.Errorf("generation %d; want 1: no attempt fell silent", g)
			}
			return endpoint.Response{Body: []byte("done")}, nil
		})
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "replay 200 done")

		ticket = w.handed(e, "l")
		w.take(e, ticket, fails, func(ctx context.Context) (endpoint.Response, error) {
			return endpoint.Response{}, errors.Join(idempotency.MarkEffect(ctx), fails)
		})
		w.take(e, ticket, idempotency.ErrTicketFinished, w.none)
		w.want(serve(w.Context(), e, post("l"), answers(200, new(int))),
			`replay 500 {"type":"about:blank","title":"Internal Server Error","status":500}`)
	})
}

func TestTheContextOfAJobEndsWithItsClaim(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.MaxHold(time.Hour))
		ticket := w.handed(e, "k")
		w.take(e, ticket, core.ErrLost, func(ctx context.Context) (endpoint.Response, error) {
			w.store.TakeClaims(time.Hour)
			<-ctx.Done()
			return endpoint.Response{}, context.Cause(ctx)
		})
	})
	inBubble(t, func(w *world) {
		e := w.engine()
		ticket := w.handed(e, "k")
		w.take(e, ticket, core.ErrMaxHold, func(ctx context.Context) (endpoint.Response, error) {
			<-ctx.Done()
			return endpoint.Response{}, context.Cause(ctx)
		})
		if err := e.Close(w.Context()); err != nil {
			t.Error(err)
		}
		w.take(e, ticket, core.ErrClosed, w.none)
	})
}

func TestMarkEffectAfterHandOverIsAnError(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		var ticket idempotency.Ticket
		w.want(serve(w.Context(), e, post("k"), w.giving(&ticket, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			if err := idempotency.MarkEffect(ctx); !errors.Is(err, core.ErrLost) || ctx.Err() != nil {
				t.Errorf("%v, and the context has %v; want core.ErrLost, and no end of the context", err, ctx.Err())
			}
			return replies(202, "accepted")(ctx, a)
		})), "202 accepted")
		w.take(e, ticket, nil, paid)
	})
}

// A mark of the handler stays: the ticket is good, and nothing else carries the request out.
func TestARequestThatIsMarkedCanBeHandedOver(t *testing.T) {
	for name, opts := range map[string][]idempotency.Option{"marked": nil, "strict": {idempotency.Strict()}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine(opts...)
				var ticket idempotency.Ticket
				w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
					if name == "marked" {
						if err := idempotency.MarkEffect(ctx); err != nil {
							t.Error(err)
						}
					}
					return w.giving(&ticket, replies(202, "accepted"))(ctx, a)
				}), "202 accepted")
				<-time.After(2 * time.Minute)
				w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "idempotency-outcome-unknown")
				w.look(e, idempotency.StageUnknown, "")
				w.take(e, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
					w.store.LapseClaims()
					w.take(e, ticket, idempotency.ErrOutcomeUnknown, w.none)
					return paid(ctx)
				})
			})
		})
	}
}

func TestAClaimThatCannotBeHandedOver(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.Optional())
		give := func(ctx context.Context, keep time.Duration, want error) {
			w.Helper()
			if ticket, err := idempotency.HandOver(ctx, keep); !errors.Is(err, want) || ticket != (idempotency.Ticket{}) {
				w.Errorf("HandOver: %v, %v; want no ticket, and %v", ticket, err, want)
			}
		}
		give(w.Context(), time.Minute, idempotency.ErrNoAttempt)
		q := post("k")
		q.key = nil
		serve(w.Context(), e, q, func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			give(ctx, time.Minute, record.ErrNoRecord)
			return endpoint.Response{Status: 200}, true
		})
		left := make(chan context.Context, 1)
		serve(w.Context(), e, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			left <- ctx
			for _, keep := range []time.Duration{-1, 0, time.Microsecond, 32 * 24 * time.Hour} {
				give(ctx, keep, core.ErrConfig)
			}
			if _, err := idempotency.HandOver(ctx, time.Minute); err != nil {
				w.Error(err)
			}
			give(ctx, time.Minute, core.ErrConfig) // a second time
			return endpoint.Response{Status: 202}, true
		})
		give(<-left, time.Minute, core.ErrLost)
		serve(w.Context(), e, post("l"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			a.TooLarge(200)
			give(ctx, time.Minute, core.ErrConfig)
			return endpoint.Response{Status: 200}, true
		})
		serve(w.Context(), e, post("m"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			w.store.TakeClaims(time.Hour)
			give(ctx, time.Minute, core.ErrLost)
			return endpoint.Response{Status: 200}, true
		})
		_, _ = once.Do(w.Context(), e, "k", 1, func(ctx context.Context, _ int) (int, error) {
			give(ctx, time.Minute, core.ErrConfig)
			return 1, nil
		}, once.Scoped("alice"))
	})
}

// The store may have handed over; no caller has the ticket.
func TestAfterAnErrorOfHandOverTheClaimIsTheHandlers(t *testing.T) {
	for name, fault := range map[string]memstore.Fault{"lost request": memstore.LostRequest, "lost reply": memstore.LostReply} {
		for _, status := range []int{200, 503} {
			t.Run(fmt.Sprint(name, status), func(t *testing.T) {
				inBubble(t, func(w *world) {
					e := w.engine()
					w.store.Intercept(during(memstore.Mark, fault))
					h := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
						if _, err := idempotency.HandOver(ctx, time.Minute); !errors.Is(err, core.ErrUnavailable) {
							t.Errorf("HandOver: %v; want core.ErrUnavailable", err)
						}
						<-time.After(time.Minute) // the claim is renewed
						return endpoint.Response{Status: status, Body: []byte("done")}, true
					}
					w.want(serve(w.Context(), e, post("k"), h), fmt.Sprintf("%d done", status))
					want := "replay 200 done"
					if status == 503 {
						want = "200 run 1"
					}
					w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), want)
				})
			})
		}
	}
}

func TestADuplicateThatWaitsGetsTheInterimAnswerAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.WaitReplay(time.Minute))
		var ticket idempotency.Ticket
		begun, got := make(chan struct{}), make(chan string)
		go serve(w.Context(), e, post("k"), w.giving(&ticket, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			close(begun)
			<-time.After(10 * time.Second)
			return replies(202, "accepted")(ctx, a)
		}))
		<-begun
		began := time.Now()
		go func() { got <- serve(w.Context(), e, post("k"), answers(200, new(int))) }()
		w.want(<-got, "interim 202 accepted")
		if waited := time.Since(began); waited != 10*time.Second {
			t.Errorf("after %v; want the interim answer when it is stored", waited)
		}
		w.take(e, ticket, nil, paid)
	})
}

func TestTheKeysOfTheCallsOfAJobAreNotTheHandlers(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		var ticket, next idempotency.Ticket
		seen := map[string]string{}
		note := func(ctx context.Context, who string) {
			for range 2 {
				key := keyOf(ctx, t, "POST /payments")
				if other := seen[key]; other != "" {
					t.Errorf("%s and %s have one key for two calls", other, who)
				}
				seen[key] = who
			}
		}
		named := map[string]bool{}
		serve(w.Context(), e, post("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			note(ctx, "handler")
			named[keyOf(idempotency.WithCall(ctx, "fee"), t, "POST /payments")] = true
			return w.giving(&ticket, replies(202, "accepted"))(ctx, a)
		})
		fails := errors.New("the process dies")
		var first string
		w.take(e, ticket, fails, func(ctx context.Context) (endpoint.Response, error) {
			first = keyOf(ctx, t, "POST /payments")
			return endpoint.Response{}, fails
		})
		w.take(e, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
			note(ctx, "job")
			if seen[first] != "job" {
				t.Error("a job that runs again has other keys")
			}
			named[keyOf(idempotency.WithCall(ctx, "fee"), t, "POST /payments")] = true
			var err error
			next, err = idempotency.HandOver(ctx, time.Minute)
			return endpoint.Response{Status: 202, Body: []byte("half")}, err
		})
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "interim 202 half")
		w.take(e, ticket, idempotency.ErrTicketRanOut, w.none)
		w.take(e, next, nil, func(ctx context.Context) (endpoint.Response, error) {
			note(ctx, "second job")
			named[keyOf(idempotency.WithCall(ctx, "fee"), t, "POST /payments")] = true
			return paid(ctx)
		})
		if len(seen) != 6 || len(named) != 1 {
			t.Errorf("%d keys of numbered calls and %d of the named one; want 6 and 1", len(seen), len(named))
		}
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "replay 201 paid")
	})
}

func TestATransactionIsCommittedWithTheInterimAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		l := &ledger{store: w.store}
		e := w.engine()
		var ticket idempotency.Ticket
		w.want(serve(w.Context(), e, post("k"), w.giving(&ticket, l.pays(t, replies(202, "accepted")))), "202 accepted")
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "interim 202 accepted")
		w.take(e, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
			var answer endpoint.Response
			l.pays(t, func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
				answer = endpoint.Response{Status: 201, Body: []byte("paid")}
				return answer, true
			})(ctx, nil)
			return answer, nil
		})
		w.want(serve(w.Context(), e, post("k"), answers(200, new(int))), "replay 201 paid")
		w.want(fmt.Sprint(l.ended, l.effect), "[committed committed] [paid paid]")

		l.ended, l.effect = nil, nil
		w.want(serve(w.Context(), e, post("l"), w.giving(&ticket, l.pays(t, replies(500, "broken")))), "500 broken")
		w.want(fmt.Sprint(l.ended, l.effect), "[rolled back] []")
		w.take(e, ticket, idempotency.ErrTicketRanOut, w.none)
	})
	inBubble(t, func(w *world) { // the database does not say whether it has committed
		l := &ledger{store: w.store, commit: errors.New("the connection broke")}
		e := w.engine()
		var ticket idempotency.Ticket
		w.want(serve(w.Context(), e, post("k"), w.giving(&ticket, l.pays(t, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			r := w.record()
			if _, err := w.store.Commit(ctx, record.CommitRequest{ // it has
				ID: r.ID, Token: r.Token, Interim: true, Response: []byte("accepted"), Retention: time.Hour,
			}); err != nil {
				t.Error(err)
			}
			return replies(202, "accepted")(ctx, a)
		}))), "idempotency-in-flight")
		synctest.Wait()
		w.take(e, ticket, nil, paid)
	})
}

func TestAHandlerLearnsThatItsClaimWasLostAfterHandOver(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		var ticket idempotency.Ticket
		w.want(serve(w.Context(), e, post("k"), w.giving(&ticket, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			w.store.Empty()
			return replies(202, "accepted")(ctx, a)
		})), "ran, then idempotency-outcome-unknown")
		w.take(e, ticket, idempotency.ErrTicketRanOut, w.none)
		w.want(serve(w.Context(), e, post("l"), w.giving(&ticket, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			<-time.After(2 * time.Minute)
			w.want(serve(w.Context(), w.engine(), post("l"), answers(200, new(int))), "200 run 1") // a retry was quicker
			return replies(202, "accepted")(ctx, a)
		})), "replay 200 run 1")
	})
}

func TestTheLockOfAHandlerIsReleasedWithTheInterimAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		locker, err := core.New(w.store)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = locker.Close(context.Background()) }()
		e := w.engine(idempotency.Under(core.Serialize(locker, "account")))
		ticket := w.handed(e, "k")
		if owner, _, held := w.store.Holder("account"); held {
			t.Errorf("%s has the lock after the handler", owner)
		}
		w.take(e, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
			if _, _, held := w.store.Holder("account"); held {
				t.Error("a job takes the lock of the engine, which has no request to make a key of")
			}
			return paid(ctx)
		})
	})
}
