package once

import (
	"context"
	"encoding"
	"fmt"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
)

// Names in the metadata of a message.
const (
	// LockTicket names the ticket of a lock that goes on in the consumer (core.HandOver).
	LockTicket = "Interlock-Lock-Ticket"
	// ClaimTicket names the ticket of a request that goes on in the consumer
	// (idempotency.HandOver).
	ClaimTicket = "Interlock-Claim-Ticket"
	// TraceParent and TraceState name the trace context of the producer (W3C).
	TraceParent = "traceparent"
	TraceState  = "tracestate"
)

// Along is what goes with a message to its consumer. watermilllock.Carry and asynqlock.NewTask
// take it. The zero value is nothing.
type Along struct {
	// Lock is the ticket of a lock. The consumer's rule goes on with the lock.
	Lock encoding.TextMarshaler
	// Claim is the ticket of a request. The consumer passes its text to the UnmarshalText method
	// of a ticket, and that to the TakeOver method of an engine.
	Claim encoding.TextMarshaler
	// Fences sends the keys and fencing tokens of the producer's locks ([core.FencesHeader]), for
	// a consumer with a rule of [core.Fenced].
	Fences bool
}

// Put writes to the metadata of a message that is sent under ctx. Both tickets are secrets: who
// reads the message can go on with the lock and with the request. An error matches
// [core.ErrConfig] if the fences do not fit, or is a ticket's.
func (a Along) Put(ctx context.Context, metadata map[string]string) error {
	for name, ticket := range map[string]encoding.TextMarshaler{LockTicket: a.Lock, ClaimTicket: a.Claim} {
		if ticket == nil {
			continue
		}
		text, err := ticket.MarshalText()
		if err != nil {
			return fmt.Errorf("interlock: the ticket in %s: %w", name, err)
		}
		if len(text) > 0 {
			metadata[name] = string(text)
		}
	}
	if a.Fences {
		fences, err := core.FencesFor(ctx)
		if err != nil {
			return err
		}
		if fences != "" {
			metadata[core.FencesHeader] = fences
		}
	}
	return nil
}

// Received returns a context for the consumer of a message with this metadata. The middleware of
// watermilllock and asynqlock calls it; a consumer of another broker calls it before [Do] or
// [core.Guard.Do].
func Received(ctx context.Context, metadata map[string]string) context.Context {
	return observe.WithProducer(ctx, observe.Producer{Parent: metadata[TraceParent], State: metadata[TraceState]})
}
