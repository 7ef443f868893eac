package once

import (
	"context"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
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

// Along is what goes with a message to its consumer. watermilllock.Carry, asynqlock.NewTask
// and riverlock.Carry take it. The zero value is nothing.
type Along struct {
	// Lock is the ticket of a lock. A rule of the consumer that needs this lock goes on with it
	// ([core.WithTicket]).
	Lock core.Ticket
	// Claim is the ticket of a request. The consumer reads it by its UnmarshalText method, and
	// passes it to [idempotency.Engine.TakeOver].
	Claim idempotency.Ticket
	// Fences sends the keys and fencing tokens of the producer's locks ([core.FencesHeader]), for
	// a consumer with a rule of [core.Fenced].
	Fences bool
}

// Put writes to the metadata of a message that is sent under ctx. Both tickets are secrets: who
// reads the message can go on with the lock and with the request. The error matches
// [core.ErrConfig]: the fences do not fit.
func (a Along) Put(ctx context.Context, metadata map[string]string) error {
	if text := a.Lock.Text(); text != "" {
		metadata[LockTicket] = text
	}
	if text, _ := a.Claim.MarshalText(); len(text) > 0 { // it never fails
		metadata[ClaimTicket] = string(text)
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
// [core.Guard.Do]. A ticket that cannot be read is an error, a [*RefusedError] that stays
// ([Permanent]).
func Received(ctx context.Context, metadata map[string]string) (context.Context, error) {
	var ticket core.Ticket
	if err := ticket.UnmarshalText([]byte(metadata[LockTicket])); err != nil {
		return ctx, Refused(&core.Refusal{Reason: reason.TokenMalformed, Err: err})
	}
	producer := observe.Producer{Parent: metadata[TraceParent], State: metadata[TraceState]}
	return core.WithTicket(observe.WithProducer(ctx, producer), ticket), nil
}
