package bubble_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/interlock-go/interlock/internal/bubble"
)

// With the race detector of Go 1.26 and more than one processor this crashes.
func TestGoroutinesMayLookAtDueTimersAtOnce(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			var all sync.WaitGroup
			for range 64 {
				all.Go(func() {
					for range 50 {
						select {
						case <-time.NewTimer(0).C:
						default:
							t.Error("a timer of no time was not due")
						}
					}
				})
			}
			all.Wait()
		})
	}
}
