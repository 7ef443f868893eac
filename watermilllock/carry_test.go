package watermilllock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/watermilllock"
)

// A process can die after it has sent a message and before it has stored that. The attempt after
// that sends the message again.
func TestAHandlerThatRunsAgainSendsTheSameMessages(t *testing.T) {
	w := newWorld(t)
	attempt := func(failure error) (uuids []string) {
		_, _ = once.Do(t.Context(), w.engine, "order-7", 0, func(ctx context.Context, _ int) (int, error) {
			for _, topic := range []string{"settlements", "settlements", "receipts"} {
				msg := message.NewMessage("random", nil)
				if err := watermilllock.Carry(ctx, topic, msg, once.Along{}); err != nil {
					t.Error(err)
				}
				uuids = append(uuids, msg.UUID)
			}
			return 0, failure
		})
		return uuids
	}
	first, second := attempt(errors.New("died")), attempt(nil)
	if len(first) != 3 || fmt.Sprint(first) != fmt.Sprint(second) {
		t.Errorf("%q, then %q; want the same three UUIDs", first, second)
	}
	if first[0] == first[1] || first[0] == first[2] || first[1] == first[2] || first[0] == "random" {
		t.Errorf("%q; want three UUIDs that are derived", first)
	}
}

func TestAMessageTakesWhatGoesAlong(t *testing.T) {
	w := newWorld(t)
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	lease, err := w.locker.Lock(trace.ContextWithSpanContext(t.Context(), span), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	lock, claim := w.tickets("account/7")
	claimText, _ := claim.MarshalText()
	for name, c := range map[string]struct {
		ctx   context.Context
		along once.Along
		want  message.Metadata
	}{
		"nothing":                      {t.Context(), once.Along{}, message.Metadata{}},
		"the trace":                    {lease.Context(), once.Along{}, message.Metadata{"traceparent": "00-01000000000000000000000000000000-0200000000000000-01"}},
		"tickets":                      {t.Context(), once.Along{Lock: lock, Claim: claim}, message.Metadata{"Interlock-Lock-Ticket": lock.Text(), "Interlock-Claim-Ticket": string(claimText)}},
		"fences outside of a lock":     {t.Context(), once.Along{Fences: true}, message.Metadata{}},
		"fences of the locks, a trace": {lease.Context(), once.Along{Fences: true}, message.Metadata{"traceparent": "00-01000000000000000000000000000000-0200000000000000-01", core.FencesHeader: fmt.Sprint("account/42=", lease.Token())}},
	} {
		msg := &message.Message{UUID: "mine"} // without metadata
		err := watermilllock.Carry(c.ctx, "settlements", msg, c.along)
		if err != nil || fmt.Sprint(msg.Metadata) != fmt.Sprint(c.want) || msg.UUID != "mine" {
			t.Errorf("%s: %v, %s %v; want %v", name, err, msg.UUID, msg.Metadata, c.want)
		}
	}
	msg := message.NewMessage("mine", nil)
	if err := watermilllock.Carry(idempotency.WithKey(t.Context(), "order-7"), "settlements", msg, once.Along{}); err != nil || msg.UUID != "order-7" {
		t.Errorf("%v, %s; want the key of the context", err, msg.UUID)
	}
}

// The rule of a consumer reads the tokens of a message as if a request had brought them.
func TestAMessageOfAnOutdatedHolderIsPutAside(t *testing.T) {
	w := newWorld(t)
	var latest int64
	rule := core.Fenced("account/{account}", func(_ context.Context, fences []core.Fence) error {
		if fences[0].Token < latest {
			return core.ErrLost
		}
		return nil
	})
	runs := 0
	h := watermilllock.Guard(rule)(func(msg *message.Message) ([]*message.Message, error) {
		if runs++; len(core.Fences(msg.Context())) != 1 {
			t.Errorf("fences %v; want that of the message", core.Fences(msg.Context()))
		}
		return nil, nil
	})
	lease, err := w.locker.Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set("account", "42")
	if err := watermilllock.Carry(lease.Context(), "settlements", msg, once.Along{Fences: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := h(msg); err != nil || runs != 1 {
		t.Errorf("%v after %d runs", err, runs)
	}
	latest = lease.Token() + 1
	_, err = h(msg)
	var refused *once.RefusedError
	if !errors.As(err, &refused) || refused.Refusal.Reason != reason.StaleToken || !once.Permanent(err) || runs != 1 {
		t.Errorf("%v, permanent: %v, after %d runs; want %s for good", err, once.Permanent(err), runs, reason.StaleToken)
	}
}

func TestTheContextOfAHandlerKnowsTheProducerOfItsMessage(t *testing.T) {
	w := newWorld(t)
	rule := core.Serialize(w.locker, "account/{account}", core.Wait(time.Minute))
	want := observe.Producer{Parent: "00-01000000000000000000000000000000-0200000000000000-01", State: "a=b"}
	for name, middleware := range map[string]message.HandlerMiddleware{
		"Guard":      watermilllock.Guard(rule),
		"Idempotent": watermilllock.Idempotent(w.engine, watermilllock.Key(func(m *message.Message) string { return m.UUID })),
	} {
		msg := message.NewMessage("order-7", nil)
		for key, value := range map[string]string{"account": "42", "traceparent": want.Parent, "tracestate": want.State} {
			msg.Metadata.Set(key, value)
		}
		_, err := middleware(func(msg *message.Message) ([]*message.Message, error) {
			if p := observe.ProducerOf(msg.Context()); p != want {
				t.Errorf("%s: the producer is %+v; want %+v", name, p, want)
			}
			return nil, nil
		})(msg)
		if err != nil {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

// tickets hands a lock and a request over, as a handler does that answers 202.
func (w *world) tickets(key string) (lock core.Ticket, claim idempotency.Ticket) {
	w.Helper()
	rule := core.Serialize(w.locker, key)
	h := httplock.Idempotent(w.engine.With(idempotency.Under(rule)))(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var errs [2]error
		lock, errs[0] = core.HandOver(r.Context(), time.Hour)
		claim, errs[1] = idempotency.HandOver(r.Context(), time.Hour)
		if err := errors.Join(errs[:]...); err != nil {
			w.Error(err)
		}
		rw.WriteHeader(http.StatusAccepted)
	}))
	r := httptest.NewRequestWithContext(w.Context(), http.MethodPost, "/payments", nil)
	r.Header.Set(idempotency.KeyHeader, "order-17")
	h.ServeHTTP(httptest.NewRecorder(), r)
	return lock, claim
}

// A message with a ticket is delivered twice, as after a crash of its consumer. The rule of the
// consumer goes on with the lock, and the job answers the request.
func TestAConsumerGoesOnWithTheLockAndTheRequestOfItsMessage(t *testing.T) {
	w := newWorld(t)
	lock, claim := w.tickets("account/42")
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set("account", "42")
	if err := watermilllock.Carry(t.Context(), "settlements", msg, once.Along{Lock: lock, Claim: claim}); err != nil {
		t.Fatal(err)
	}
	var tokens []int64
	h := watermilllock.Guard(core.Serialize(w.locker, "account/{account}", core.Wait(0)))(func(msg *message.Message) ([]*message.Message, error) {
		tokens = append(tokens, core.LeaseFromContext(msg.Context()).Token())
		var claim idempotency.Ticket
		if err := claim.UnmarshalText([]byte(msg.Metadata[once.ClaimTicket])); err != nil {
			return nil, err
		}
		err := w.engine.TakeOver(msg.Context(), claim, func(context.Context) (endpoint.Response, error) {
			return endpoint.Response{Status: http.StatusCreated}, nil
		})
		return nil, err
	})
	_, first := h(msg)
	_, second := h(msg)
	if first != nil || !errors.Is(second, idempotency.ErrTicketFinished) || len(tokens) != 2 || tokens[0] <= lock.Token() || tokens[1] <= tokens[0] {
		t.Errorf("%v, then %v, under the tokens %v after %d; want the answer stored once, and greater tokens", first, second, tokens, lock.Token())
	}
	msg.Metadata.Set(once.LockTicket, lock.Text()[:20])
	if _, err := h(msg); !errors.Is(err, core.ErrTicket) || !once.Permanent(err) || len(tokens) != 2 {
		t.Errorf("with half a ticket: %v after %d runs; want %v for good", err, len(tokens), core.ErrTicket)
	}
}

// The first attempt of a request sends its message and fails, so its ticket has run out: the
// consumer acknowledges the message. The message of the second attempt has the ticket that counts.
func TestTheMessageWithTheTicketThatCountsIsConsumed(t *testing.T) {
	for name, inPayload := range map[string]bool{"in the metadata": false, "in the payload": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			paid := make(chan struct{}, 10)
			w.process("settlements", watermilllock.Idempotent(w.engine), func(msg *message.Message) ([]*message.Message, error) {
				text := []byte(msg.Metadata[once.ClaimTicket])
				if inPayload {
					text = msg.Payload
				}
				var claim idempotency.Ticket
				if err := claim.UnmarshalText(text); err != nil {
					return nil, err
				}
				err := w.engine.TakeOver(msg.Context(), claim, func(context.Context) (endpoint.Response, error) {
					paid <- struct{}{}
					return endpoint.Response{Status: http.StatusCreated}, nil
				})
				if errors.Is(err, idempotency.ErrTicketRanOut) || errors.Is(err, idempotency.ErrTicketFinished) {
					err = nil
				}
				return nil, err
			})
			attempt := func(status int) (sent *message.Message) {
				h := httplock.Idempotent(w.engine)(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					claim, err := idempotency.HandOver(r.Context(), time.Hour)
					sent = message.NewMessage("random", []byte("30 EUR"))
					along := once.Along{Claim: claim}
					if inPayload {
						sent.Payload, _ = claim.MarshalText()
						along = once.Along{}
					}
					if err := errors.Join(err, watermilllock.Carry(r.Context(), "settlements", sent, along)); err != nil {
						t.Error(err)
					}
					rw.WriteHeader(status)
				}))
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", nil)
				r.Header.Set(idempotency.KeyHeader, "order-17")
				h.ServeHTTP(httptest.NewRecorder(), r)
				return sent
			}
			first, second := attempt(http.StatusServiceUnavailable), attempt(http.StatusAccepted)
			for _, msg := range []*message.Message{first, second, second} {
				w.acknowledged(w.deliver("settlements", msg.UUID, string(msg.Payload), msg.Metadata))
			}
			if len(paid) != 1 {
				t.Errorf("paid %d times by the messages %s, whose ticket has run out, and %s, twice; want once", len(paid), first.UUID, second.UUID)
			}
		})
	}
}

// Metadata copied to another message does not name its work.
func TestACopiedKeyDoesNotNameAMessage(t *testing.T) {
	w := newWorld(t)
	lock, _ := w.tickets("account/42")
	_, _ = once.Do(t.Context(), w.engine, "order-7", 0, func(ctx context.Context, _ int) (int, error) {
		msg := message.NewMessage("random", nil)
		if err := watermilllock.Carry(ctx, "settlements", msg, once.Along{Lock: lock}); err != nil {
			t.Error(err)
		}
		key := once.KeyOf(msg.UUID, msg.Metadata)
		if key == msg.UUID || key != msg.Metadata[once.MessageKey] {
			t.Errorf("the key is %q of the message %q with %v; want the one that it was sent with", key, msg.UUID, msg.Metadata)
		}
		if key := once.KeyOf("another", msg.Metadata); key != "another" {
			t.Errorf("the key of another message with the metadata is %q; want its own ID", key)
		}
		again := &message.Message{Metadata: msg.Metadata}
		delete(again.Metadata, once.LockTicket)
		if err := watermilllock.Carry(ctx, "settlements", again, once.Along{}); err != nil || again.Metadata[once.MessageKey] != "" {
			t.Errorf("%v, with %v; want no key of the message before", err, again.Metadata)
		}
		return 0, nil
	})
}
