package lock

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// slow is a store that grants requests when the test wants it to.
type slow struct {
	driver.Store
	grant chan struct{}
}

func (s *slow) Acquire(context.Context, driver.AcquireRequest) (driver.Reply, error) {
	sent := time.Now()
	<-s.grant
	return driver.Reply{Granted: true, Token: 1, Sent: sent}, nil
}

func (*slow) Release(context.Context, driver.ReleaseRequest) (driver.Waiting, error) {
	return driver.Waiting{}, nil
}

// Callers share a hold that the first of them asks for. Its goroutine makes them
// holders, while their goroutines go to sleep. The race detector must find nothing
// there.
func TestSharersThatWaitForTheFirstOnesAnswerShareNoMemoryWithIt(t *testing.T) {
	const callers = 50
	s := &slow{grant: make(chan struct{})}
	table := NewTable(s, 20*time.Millisecond, 10_000)
	terms := &Terms{Kind: driver.Shared, Lease: time.Minute, Wait: time.Minute}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			w := &Waiter{Terms: terms, Holder: &player{}}
			soon := table.Clock.Now().Add(terms.Wait)
			if err := table.Acquire(context.Background(), w, "k", 0, soon); err != nil {
				t.Error(err)
				return
			}
			table.Release(context.Background(), w)
		})
	}
	for table.Waiters("k") < callers {
		runtime.Gosched()
	}
	close(s.grant)
	wg.Wait()
	if err := table.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
