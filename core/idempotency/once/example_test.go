package once_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
)

// A consumer that gets the same message again has the result of the first time.
func ExampleDo() {
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
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
func ExamplePer() {
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
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

// The code of the documentation that stands in no Example.
func _(ctx context.Context, engine *idempotency.Engine, sendReports func(context.Context) error) error {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		return err
	}
	err = once.Per(ctx, engine, "send-reports", 24*time.Hour, sendReports, once.In(berlin))
	return err
}
