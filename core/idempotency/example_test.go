package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
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
		var captured endpoint.Response
		verdict := engine.Do(context.Background(), call, endpoint.Handler{
			Run: func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				if err := idempotency.MarkEffect(ctx); err != nil {
					captured = endpoint.Response{Status: http.StatusServiceUnavailable}
					return captured, true
				}
				balance -= 30
				captured = endpoint.Response{Status: http.StatusCreated, Body: fmt.Appendf(nil, "balance %d", balance)}
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

// A consumer that gets the same message again has the result of the first time.
func Example_function() {
	engine, err := idempotency.New(newFake(), idempotency.Global())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close(context.Background())

	type Order struct {
		Account string
		Amount  int
	}
	type Receipt struct{ ID, Reference string }
	errClosed := errors.New("the account is closed")
	charge := func(ctx context.Context, order Order) (Receipt, error) {
		fmt.Println("charging", order.Account)
		if order.Account == "closed" {
			return Receipt{}, once.Final(errClosed) // stored: no later try changes it
		}
		return Receipt{ID: "r-1", Reference: idempotency.DownstreamKey(ctx)}, nil
	}

	for _, message := range []struct {
		ID    string
		Order Order
	}{{"m1", Order{"a", 30}}, {"m1", Order{"a", 30}}, {"m1", Order{"a", 99}}, {"m2", Order{"closed", 1}}, {"m2", Order{"closed", 1}}} {
		receipt, err := once.Do(context.Background(), engine, "charge/"+message.ID, message.Order, charge)
		switch {
		case errors.Is(err, idempotency.ErrInFlight): // another process is at it: ask again
			fmt.Println("later")
		case once.Permanent(err): // put the message aside
			fmt.Println(err)
		default:
			fmt.Println(receipt.ID, err)
		}
	}
	// Output:
	// charging a
	// r-1 <nil>
	// r-1 <nil>
	// interlock: request refused: idempotency-key-reused, rule=idempotency error=interlock: the key was used for another request
	// charging closed
	// the account is closed
	// the account is closed
}

// Every process calls it once a minute; the report is sent once a day.
func Example_period() {
	engine, err := idempotency.New(newFake(), idempotency.Global())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close(context.Background())

	sendReports := func(context.Context) error {
		fmt.Println("sending")
		return nil
	}
	ctx := context.Background()
	for range 3 {
		err := once.Per(ctx, engine, "send-reports", 366*24*time.Hour, sendReports)
		if err != nil && !errors.Is(err, idempotency.ErrInFlight) {
			fmt.Println(err) // it is tried again with the next call
		}
	}
	// Output: sending
}
