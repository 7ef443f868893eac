package record_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
)

// A store grants the record to the first attempt. A duplicate finds it in flight, and
// gets the stored response after the commit.
func ExampleStore() {
	var store record.Store = memstore.New()
	ctx := context.Background()
	claim := func(token string) record.ClaimReply {
		reply, err := store.Claim(ctx, record.ClaimRequest{
			ID: "payment", Token: token, Lease: time.Minute, Retention: time.Hour,
		})
		if err != nil {
			log.Fatal(err)
		}
		return reply
	}

	first := claim("a")
	fmt.Println(first.State == record.StateGranted, first.Generation)
	fmt.Println(claim("b").State == record.StateInFlight)
	_, err := store.Commit(ctx, record.CommitRequest{
		ID: "payment", Token: "a", Generation: first.Generation, Response: []byte("paid"), Retention: time.Hour,
	})
	if err != nil {
		log.Fatal(err)
	}
	duplicate := claim("c")
	fmt.Println(duplicate.State == record.StateCompleted, duplicate.Response)
	// Output:
	// true 1
	// true
	// true paid
}
