package natsstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-go/interlock/core/casstore"
)

const (
	// beat is the interval of the signs of life that NATS sends to a watch. After two without a sign it is asked again, since a new
	// consumer can miss a request.
	beat = time.Second
	// mostSilent is the number of questions without an answer after which the watch counts as dead.
	mostSilent = 3
)

// Watch implements [casstore.Server]. It reads, and then has a consumer that begins after that. The consumer
// is on one member, and its messages are not repeated: the watch fails with that member, and with the connection.
func (s *server) Watch(ctx context.Context, prefix string, report func([]casstore.Change)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	changed := s.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer s.nc.RemoveStatusListener(changed)
	go func() {
		select {
		case <-changed:
			cancel(errCut)
		case <-ctx.Done():
		}
	}()
	begin, stop := context.WithTimeout(ctx, longestWait)
	defer stop()
	from, err := s.guards(begin, guard)
	if err != nil {
		return err
	}
	single := !strings.HasSuffix(prefix, "/")
	names, prefixes := []string{prefix}, []string(nil)
	if !single {
		names, prefixes = prefixes, names
	}
	there, upTo, err := s.look(begin, from, names, prefixes)
	if err != nil {
		return err
	}
	filter := s.filter(prefix)
	consumer, err := s.js.CreateConsumer(begin, s.stream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: upTo + 1, AckPolicy: jetstream.AckNonePolicy,
		FilterSubjects: []string{filter, s.grave(filter)}, InactiveThreshold: 10 * beat, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return err
	}
	defer func() { go s.js.DeleteConsumer(context.Background(), s.stream, consumer.CachedInfo().Name) }() // else NATS does
	first := []casstore.Change{}
	for _, e := range there {
		if e.There() {
			first = append(first, casstore.Change{Entry: e.Entry})
		}
	}
	report(first)
	messages, err := consumer.Messages(jetstream.PullHeartbeat(beat), jetstream.PullExpiry(3*beat))
	if err != nil {
		return err
	}
	defer messages.Stop()
	return (&watching{server: s, below: strings.Count(prefix, "/"), single: single, report: report}).run(ctx, messages)
}

// watching is a watch that has begun.
type watching struct {
	*server
	below  int  // how many parts the watched prefix has
	single bool // it is one entry
	report func([]casstore.Change)

	number int64 // of the transaction
	some   []casstore.Change
}

// run reports changes.
func (w *watching) run(ctx context.Context, messages jetstream.MessagesContext) error {
	next, current, silent := uint64(1), time.Now(), 0
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		} else if errors.Is(err, jetstream.ErrNoHeartbeat) && silent < mostSilent {
			silent++
			continue
		} else if err != nil {
			return err
		}
		silent = 0
		at, err := m.Metadata()
		if err != nil {
			return err
		}
		if at.Sequence.Consumer != next {
			return fmt.Errorf("%w: message %d of the watch; want %d", errHoles, at.Sequence.Consumer, next)
		}
		next++
		if at.NumPending == 0 {
			current = time.Now()
		} else if time.Since(current) > markerLife/2 {
			return errBehind
		}
		if r, ok := w.read(m.Subject(), at.Sequence.Stream, m.Headers(), m.Data()); ok {
			w.came(r)
		}
	}
}

// came adds a message to the report of its transaction, which is complete if no other message of it follows that is
// watched, or when another transaction comes.
func (w *watching) came(r record) {
	number := int64(r.sequence) + int64(r.place.follow)
	if number != w.number {
		w.flush()
	} else if w.single {
		return // the grave of a deletion that was reported
	}
	w.number = number
	if n := len(w.some); n == 0 || !r.gone || w.some[n-1].Name != r.Name { // else it is the grave
		w.some = append(w.some, casstore.Change{Entry: r.Entry, Deleted: r.gone})
	}
	if !r.grave {
		w.learn(r)
	}
	if w.single || r.place.shared < w.below {
		w.flush()
	}
}

func (w *watching) flush() {
	if len(w.some) > 0 {
		w.report(w.some)
		w.some = nil
	}
}
