package natsstore

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// toFirst is the end of the subject of the answer to the first message of several.
const toFirst = "-first"

// replies has the answers to requests of a process come by one subscription.
type replies struct {
	nc *nats.Conn

	mu     sync.Mutex
	sub    *nats.Subscription
	base   string // of the subjects of the answers
	last   int
	waited map[string]func(*nats.Msg) bool
}

// ask has send send a request, and calls on for each message that answers it, until on reports the last one or ctx ends.
func (s *replies) ask(ctx context.Context, send func(reply string) error, on func(*nats.Msg) bool) error {
	done := make(chan struct{})
	subject, err := s.wait(func(m *nats.Msg) bool {
		last := on(m)
		if last {
			close(done)
		}
		return last
	})
	if err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waited, subject)
	}()
	if err := send(subject); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wait notes who waits for an answer, and returns the subject of that.
func (s *replies) wait(on func(*nats.Msg) bool) (subject string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sub == nil {
		base := s.nc.NewInbox() + "."
		if s.sub, err = s.nc.Subscribe(base+"*", s.came); err != nil {
			return "", notSent(err)
		}
		_ = s.sub.SetPendingLimits(-1, -1) // a subscription that has just begun is valid
		s.base, s.waited = base, map[string]func(*nats.Msg) bool{}
	}
	s.last++
	subject = s.base + strconv.Itoa(s.last)
	s.waited[subject] = on
	return subject, nil
}

func (s *replies) came(m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	subject := strings.TrimSuffix(m.Subject, toFirst)
	if on := s.waited[subject]; on != nil && on(m) {
		delete(s.waited, subject)
	}
}

func (s *replies) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sub != nil {
		_ = s.sub.Unsubscribe() // else the connection is closed, and the subscription has ended
	}
}
