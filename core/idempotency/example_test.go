package idempotency_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/interlock-go/interlock/core/idempotency"
)

// What an adapter does: it describes the request, runs the handler with its
// answer captured, and sends what the verdict says.
func ExampleEngine_Do() {
	engine, err := idempotency.New(newFake(), idempotency.Scope(scope))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close(context.Background())

	balance := 100
	for _, body := range []string{"pay 30", "pay 30", "pay 99"} {
		call := post(`"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		call.body = body
		var captured idempotency.Response
		verdict := engine.Do(context.Background(), call, idempotency.Handler{
			Run: func(ctx context.Context, _ *idempotency.Attempt) (idempotency.Response, bool) {
				if err := idempotency.MarkEffect(ctx); err != nil {
					captured = idempotency.Response{Status: http.StatusServiceUnavailable}
					return captured, true
				}
				balance -= 30
				captured = idempotency.Response{Status: http.StatusCreated, Body: fmt.Appendf(nil, "balance %d", balance)}
				return captured, true
			},
		})
		switch {
		case verdict.Refusal != nil:
			fmt.Println("refused:", verdict.Refusal.Reason)
		case verdict.Replay != nil:
			fmt.Printf("replayed: %d %s\n", verdict.Replay.Status, verdict.Replay.Body)
		default:
			fmt.Printf("carried out: %d %s\n", captured.Status, captured.Body)
		}
	}
	// Output:
	// carried out: 201 balance 70
	// replayed: 201 balance 70
	// refused: idempotency-key-reused
}

func ExampleParseKey() {
	for _, values := range [][]string{{`"a key"`}, {"8e03978e"}, {`"8e03978e"`}, {"a key"}, {"a", "b"}, {}} {
		key, err := idempotency.ParseKey(values)
		fmt.Println(key, err)
	}
	// Output:
	// a key <nil>
	// 8e03978e <nil>
	// 8e03978e <nil>
	//  interlock: bad lock key: malformed idempotency key: byte 1 is not one of a key without quotes: spaces, commas and braces are accepted in double quotes
	//  interlock: bad lock key: malformed idempotency key: given more than once
	//  interlock: bad lock key: no idempotency key
}
