package natsstore

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/interlock-go/interlock/core/casstore"
)

const (
	// together is the number of times that colliding requests are sent in one batch. Then each half is sent alone.
	together = 3
	// under is the maximum number of batches that a process has under way, of the 50 that a stream takes.
	under = 4
)

// send sends some requests in one batch, and gives each its answer. What NATS has refused was not executed, so it is
// sent again: without the requests with conditions that do not hold, or after a pause.
func (s *server) send(ctx context.Context, batch []*request, answered func()) {
	for round := 0; len(batch) > 0; round++ {
		messages, ops := s.compose(batch)
		sequence, err := s.publish(ctx, messages)
		answered()
		differs, refused := errors.Is(err, errDiffers), errors.Is(err, casstore.ErrRefused)
		switch {
		case err == nil:
			s.note(batch, messages, ops, sequence)
			s.complete(ctx, batch, sequence)
			return
		case len(batch) > 1 && (refused || differs && round >= together):
			s.send(ctx, batch[:len(batch)/2], answered)
			s.send(ctx, batch[len(batch)/2:], answered)
			return
		case differs:
			if batch, err = s.compare(ctx, batch, round > 0); err != nil {
				err = fmt.Errorf("%w: %w", errBusy, err)
			}
		case !errors.Is(err, errBusy):
			fail(batch, err)
			return
		}
		if round == 0 && err == nil {
			continue
		}
		pause(ctx, time.Millisecond<<min(round, 5))
		if ctx.Err() != nil {
			if err == nil {
				err = fmt.Errorf("%w: others write the same entries all the time", errBusy)
			}
			fail(batch, err)
			return
		}
	}
}

// pause pauses for a part of a time.
func pause(ctx context.Context, most time.Duration) {
	timer := time.NewTimer(rand.N(most) + 1)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func fail(batch []*request, err error) {
	for _, r := range batch {
		r.end(casstore.Answer{}, err)
	}
}

// publish sends the messages of a transaction. It returns the sequence of the last one.
func (s *server) publish(ctx context.Context, messages []*nats.Msg) (sequence uint64, err error) {
	if now := s.nc.Status(); now != nats.CONNECTED {
		err = fmt.Errorf("no connection to NATS (%v)", now)
		if last := s.nc.LastError(); last != nil { // while the client connects again it has none
			err = fmt.Errorf("no connection to NATS (%v), last: %w", now, last)
		}
		return 0, notSent(err)
	}
	select {
	case s.flights <- struct{}{}:
		defer func() { <-s.flights }()
	case <-ctx.Done():
		return 0, notSent(context.Cause(ctx))
	}
	before, id := s.nc.LastError(), cryptorand.Text()
	var said error
	err = s.replies.ask(ctx, func(reply string) error {
		last := messages[len(messages)-1]
		messages[0].Reply, last.Reply = reply+toFirst, reply
		for i, m := range messages {
			if len(messages) > 1 {
				m.Header.Set("Nats-Batch-Id", id)
				m.Header.Set("Nats-Batch-Sequence", strconv.Itoa(i+1))
			}
			if len(messages) > 1 && m == last {
				m.Header.Set("Nats-Batch-Commit", "1")
			}
			switch err := s.nc.PublishMsg(m); { // a batch without its end is not executed
			case errors.Is(err, nats.ErrMaxPayload):
				return fmt.Errorf("%w: %w", casstore.ErrRefused, err)
			case err != nil:
				return notSent(err)
			}
		}
		return nil
	}, func(m *nats.Msg) bool {
		sequence, said = acked(m)
		if said != nil && strings.HasSuffix(m.Subject, toFirst) && !errors.Is(said, casstore.ErrRefused) {
			said = fmt.Errorf("%w: %w", errBusy, said) // without its beginning a batch is not executed
		}
		return sequence > 0 || said != nil
	})
	if err != nil && errors.Is(err, context.Cause(ctx)) {
		return 0, s.denied(before, messages, err)
	}
	s.sees(sequence)
	return sequence, errors.Join(said, err)
}

// denied returns an error that says so if NATS has refused a message since, for want of a right. NATS does not
// answer to the message then.
func (s *server) denied(before error, messages []*nats.Msg, err error) error {
	if now := s.nc.LastError(); now != before && errors.Is(now, nats.ErrPermissionViolation) { //nolint:errorlint // a new one
		for _, m := range messages {
			if strings.Contains(now.Error(), strconv.Quote(m.Subject)) {
				return fmt.Errorf("%w: %w", casstore.ErrRefused, now)
			}
		}
	}
	return err
}

// note notes what a transaction has written.
func (s *server) note(batch []*request, messages []*nats.Msg, ops []written, last uint64) {
	for _, r := range batch {
		r.answer = casstore.Answer{Done: true, Written: make([]casstore.Revision, len(r.txn.Then))}
	}
	for _, w := range ops {
		m := messages[w.message]
		r, _ := s.read(m.Subject, last-uint64(len(messages)-1-w.message), m.Header, nil)
		w.of.answer.Written[w.op] = r.Revision
		s.learn(r)
	}
}

// compare answers the requests with conditions that do not hold, and returns the others. First it looks at any member:
// only a sequence may be not known.
func (s *server) compare(ctx context.Context, batch []*request, sure bool) (left []*request, err error) {
	from := s.seen.Load()
	if sure || from == 0 {
		if from, err = s.guards(ctx, guard); err != nil {
			return batch, err
		}
	}
	var names []string
	for _, r := range batch {
		for _, c := range r.txn.If {
			names = append(names, c.Name)
		}
		names = append(names, r.txn.Else...)
	}
	v, _, err := s.look(ctx, from, names, nil)
	if err != nil {
		return batch, err
	}
	for _, r := range batch {
		if v.holds(r.txn.If) {
			left = append(left, r)
		}
	}
	if !sure && len(left) < len(batch) {
		return s.compare(ctx, batch, true)
	}
	for _, r := range batch {
		if !v.holds(r.txn.If) {
			r.end(casstore.Answer{Read: v.entries(r.txn.Else)}, nil)
		}
	}
	return left, nil
}

// guards writes a guard. A read that begins after it is not from before.
func (s *server) guards(ctx context.Context, name string) (uint64, error) {
	m := nats.NewMsg(s.subject(name))
	m.Header.Set(headerPlace, "0 0")
	if name != guard { // that is there always, so that each read has an answer
		m.Header.Set(headerTTL, markerLife.String())
	}
	return s.publish(ctx, []*nats.Msg{m})
}
