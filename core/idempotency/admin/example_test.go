package admin_test

import (
	"fmt"

	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// The bank knows the payment: from now on requests with its key get this answer, once the
// resolution is given to Engine.Resolve.
func ExampleCarriedOut() {
	found := admin.CarriedOut(endpoint.HTTP, endpoint.Response{Status: 201, Body: []byte("paid")})

	protocol, answer, _ := found.Answer()
	fmt.Printf("%s %d %s\n", protocol, answer.Status, answer.Body)
	// Output: http 201 paid
}
