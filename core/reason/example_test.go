package reason_test

import (
	"fmt"

	"github.com/interlock-go/interlock/core/reason"
)

func ExampleReason_Text() {
	fmt.Println(reason.Held)
	fmt.Println(reason.Held.Text())
	// Output:
	// held
	// The resource is locked by another request. Nothing was done.
}
