package lanes_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/lanes"
)

type request struct {
	lanes.Request
	name string
}

// system answers when the test says so, and notes the batches.
type system struct {
	lanes.Lanes[*request]
	sent   chan string
	answer chan struct{}
}

func newSystem(early bool) *system {
	s := &system{sent: make(chan string, 10), answer: make(chan struct{})}
	s.Under = 1
	s.Next = func(waiting []*request) (batch, left []*request) {
		n := min(len(waiting), 2)
		return waiting[:n:n], waiting[n:]
	}
	s.Send = func(ctx context.Context, batch []*request, more func()) {
		text := ""
		for _, r := range batch {
			text += r.name
		}
		s.sent <- text
		if early {
			more()
			more()
		}
		select {
		case <-s.answer:
		case <-ctx.Done():
			s.sent <- "ended"
			<-s.answer
		}
		for _, r := range batch {
			r.End()
		}
	}
	return s
}

// ask sends requests one after the other, and returns their outcomes.
func (s *system) ask(ctx context.Context, names ...string) (outcomes chan error) {
	outcomes = make(chan error, len(names))
	for _, name := range names {
		go func() { outcomes <- s.Do(&request{lanes.Begin(ctx), name}) }()
		synctest.Wait()
	}
	return outcomes
}

func (s *system) batches() (all []string) {
	synctest.Wait()
	for len(s.sent) > 0 {
		all = append(all, <-s.sent)
	}
	return all
}

// Requests that wait share the next transaction. It need not wait for the return of the last one, if that says so.
func TestRequestsThatWaitShareATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(false)
		outcomes := s.ask(t.Context(), "a", "b", "c", "d")
		for _, want := range []string{"[a]", "[bc]", "[d]"} {
			if got := fmt.Sprint(s.batches()); got != want {
				t.Errorf("sent is %v; want %v", got, want)
			}
			s.answer <- struct{}{}
		}
		for range 4 {
			if err := <-outcomes; err != nil {
				t.Errorf("the outcome of a request is %v; want none", err)
			}
		}
		s = newSystem(true)
		s.ask(t.Context(), "a", "b")
		if got := fmt.Sprint(s.batches()); got != "[a b]" {
			t.Errorf("sent is %v; want that b does not wait for the answer to a", got)
		}
		close(s.answer)
	})
}

// A caller that leaves learns whether its request was sent. A transaction ends when its last caller has left.
func TestACallerThatLeavesLearnsWhetherItsRequestWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(false)
		first, leave := context.WithCancel(t.Context())
		sent := s.ask(first, "a")
		second, also := context.WithTimeout(t.Context(), time.Second)
		defer also()
		waits := s.ask(second, "b")
		if err := <-waits; !errors.Is(err, driver.ErrNotReady) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request that was not sent ends with %v; want ErrNotReady, and why", err)
		}
		if err := s.Do(&request{lanes.Begin(second), "late"}); !errors.Is(err, driver.ErrNotReady) {
			t.Errorf("a request of a caller that has left ends with %v; want ErrNotReady", err)
		}
		leave()
		if err := <-sent; errors.Is(err, driver.ErrNotReady) || !errors.Is(err, context.Canceled) {
			t.Errorf("a request that was sent ends with %v; want why, and not ErrNotReady", err)
		}
		if got := fmt.Sprint(s.batches()); got != "[a ended]" {
			t.Errorf("sent is %v; want a alone, and that it has ended with its caller", got)
		}
		close(s.answer)
	})
}
