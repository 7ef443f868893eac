package clock_test

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
)

// A server that has moved away is noticed after 64 round trips at the latest.
func TestTheLeastOfTheLastTripsCounts(t *testing.T) {
	var at clock.Trips
	if got := at.Least(); got != 0 {
		t.Errorf("%v without a trip", got)
	}
	at.Note(300 * time.Millisecond) // with the time of a new connection
	at.Note(time.Millisecond)
	at.Note(2 * time.Millisecond)
	for range 29 {
		at.Note(50 * time.Millisecond)
	}
	for n := range 32 {
		if got := at.Least(); got != time.Millisecond {
			t.Fatalf("%v after %d long trips; want the shortest", got, n)
		}
		at.Note(50 * time.Millisecond)
	}
	if got := at.Least(); got != 50*time.Millisecond {
		t.Errorf("%v after 64 trips; want what all of them take now", got)
	}
}
