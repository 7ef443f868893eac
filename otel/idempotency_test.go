package otellock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
)

// payment is a request with an idempotency key.
type payment struct {
	request
	key, body string
}

func (payment) Protocol() string                 { return endpoint.HTTP }
func (p payment) Key() (string, error)           { return endpoint.ParseKey([]string{p.key}) }
func (payment) Origin() (string, string, string) { return "", "/payments", "" }
func (payment) Target() (string, string, string) { return "POST", "/payments", "" }
func (p payment) Body(int64) ([]byte, error)     { return []byte(p.body), nil }

func TestRequestsToIdempotentEndpointsAreCountedByWhatBecameOfThem(t *testing.T) {
	p := newProbe(t)
	engine, err := idempotency.New(memstore.New(), idempotency.Name("payment"), idempotency.WithObserver(p.observer),
		idempotency.Scope(func(context.Context, core.Request) (string, error) { return secret, nil }))
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close(context.Background())
	pay := func(key, body string, run func(ctx context.Context) int) {
		ctx, span := p.tracer.Start(t.Context(), "POST /payments")
		defer span.End()
		engine.Do(ctx, payment{key: `"` + key + `"`, body: body}, endpoint.Handler{
			Run: func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				return endpoint.Response{Status: run(ctx)}, true
			},
		})
	}
	answer := func(status int) func(context.Context) int { return func(context.Context) int { return status } }
	pay("secret", "1", answer(500))
	pay("secret", "1", answer(201))
	for range 3 {
		pay("secret", "1", answer(201))
	}
	pay("secret", "2", answer(201))
	pay("", "1", answer(201))
	pay("secret two", "1", func(context.Context) int {
		pay("secret two", "1", answer(201))
		return 201
	})
	p.wantCounts(
		"idempotent.requests{released payment} 1",
		"idempotent.requests{stored payment} 2",
		"idempotent.requests{replayed payment} 3",
		"replays{payment} 3",
		"idempotent.requests{idempotency_key_reused payment} 1",
		"idempotent.requests{idempotency_key_malformed payment} 1",
		"idempotent.requests{idempotency_in_flight payment} 1",
	)
	var outcomes []string
	for _, s := range p.spans.Ended() {
		all := fmt.Sprint(s.Name(), s.Attributes(), s.Status())
		if strings.Contains(all, "secret") || strings.Contains(all, secret) {
			t.Errorf("a span tells a key: %s", all)
		}
		for _, kv := range s.Attributes() {
			if kv.Key == "interlock.idempotent.outcome" || kv.Key == "interlock.idempotent.generation" {
				outcomes = append(outcomes, kv.Value.Emit())
			}
		}
	}
	want := "released 1 stored 1 replayed 0 replayed 0 replayed 0 idempotency_key_reused 0 " +
		"idempotency_key_malformed 0 idempotency_in_flight 0 stored 1"
	if got := strings.Join(outcomes, " "); got != want {
		t.Errorf("spans say %s\nwant      %s", got, want)
	}
	p.settled()
}

func TestAnEngineThatFailsOpenIsCounted(t *testing.T) {
	p := newProbe(t)
	store := memstore.New()
	store.Intercept(failing(fmt.Errorf("%w: %w", core.ErrUnavailable, errors.New("connection refused"))))
	engine, err := idempotency.New(store, idempotency.Name("payment"), idempotency.WithObserver(p.observer),
		idempotency.Global(), idempotency.FailOpen())
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close(context.Background())
	ran := false
	engine.Do(t.Context(), payment{key: "secret"}, endpoint.Handler{Pass: func(context.Context) bool { ran = true; return true }})
	if !ran {
		t.Error("the handler did not run")
	}
	p.wantCounts("bypassed{payment} 1")
	if logs := p.logs.String(); !strings.Contains(logs, "without its lock or record") || strings.Contains(logs, "secret") {
		t.Errorf("logged %s", logs)
	}
}

// A transaction that was rolled back is a release for the engine. The client gets a
// refusal, and an operator wants to tell it from a handler that failed.
func TestAReleaseWithAReasonIsCountedByItsReason(t *testing.T) {
	p := newProbe(t)
	ctx, span := p.tracer.Start(t.Context(), "POST /payments")
	for _, reason := range []reason.Reason{reason.RolledBack, ""} {
		_, observation := p.observer.Start(ctx, observe.Operation{Rule: "payment", Unlocked: true})
		observation.Decided(observe.Decided{Outcome: observe.DecidedReleased, Reason: string(reason), Generation: 1})
	}
	span.End()
	p.wantCounts("idempotent.requests{idempotency_rolled_back payment} 1", "idempotent.requests{released payment} 1")
}
