package once

import (
	"bytes"
	"context"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/internal/ident"
	"github.com/interlock-go/interlock/core/internal/ticket"
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
	// MessageKey names the key of the work of a message, where the ID is another ([KeyOf]).
	MessageKey = "Interlock-Message-Key"
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

// Put writes to the metadata of a message that is sent to a target under ctx. Both tickets are
// secrets: a reader of the message can go on with the lock and with the request. The error matches
// [idempotency.ErrUnnamedCall], or [core.ErrConfig] if the fences do not fit.
//
// In the handler of an idempotent endpoint, a job or a function of [Do], Put returns the ID of the
// message, which is derived from the request and target ([idempotency.CallKey]); else it is empty.
// The ID covers Along. Each attempt of a handler makes another ticket, and a broker or a consumer
// that took the message with the new ticket for the one with the old ticket would lose the request.
// The ID also covers a payload with the text of a ticket of a request. Without tickets and fences it is the
// same in each attempt.
func (a Along) Put(ctx context.Context, target string, payload []byte, metadata map[string]string) (id string, err error) {
	delete(metadata, MessageKey) // of a message whose metadata was copied
	key, found, done, err := idempotency.CallKey(ctx, target)
	if err != nil {
		return "", err
	}
	done()
	claim, _ := a.Claim.MarshalText() // it never fails
	lock, fences := a.Lock.Text(), ""
	if a.Fences {
		if fences, err = core.FencesFor(ctx); err != nil {
			return "", err
		}
	}
	for name, text := range map[string]string{LockTicket: lock, ClaimTicket: string(claim), core.FencesHeader: fences} {
		if text != "" {
			metadata[name] = text
		}
	}
	if !found {
		return "", nil
	}
	inside := ""
	if bytes.Contains(payload, []byte(ticket.ClaimKind)) {
		inside = string(payload)
	}
	if len(claim) > 0 || inside != "" {
		key = ident.Downstream(key, []string{"claim", string(claim), inside})
	}
	if id = idOf(key, metadata); id != key {
		metadata[MessageKey] = key
	}
	return id, nil
}

// idOf is the ID of a message with a key and with metadata.
func idOf(key string, metadata map[string]string) string {
	lock, fences := metadata[LockTicket], metadata[core.FencesHeader]
	if lock == "" && fences == "" {
		return key
	}
	return ident.Downstream(key, []string{"lock", lock, fences})
}

// KeyOf returns the key of the work of a message with an ID: the key for [Do]. It is the ID, unless
// the message came with the ticket of a lock or with fences. The ID covers them, so that a broker
// does not drop a message for an earlier one whose lock is gone; the key does not, so that the
// work is done once. A key that belongs to another ID, as in copied metadata, does not count.
func KeyOf(id string, metadata map[string]string) string {
	if key := metadata[MessageKey]; key != "" && idOf(key, metadata) == id {
		return key
	}
	return id
}

// Received returns a context for the consumer of a message with this metadata. The middleware of
// watermilllock and asynqlock calls it; a consumer of another broker calls it before [Do] or
// [core.Guard.Do]. A ticket that cannot be read is an error, a [*RefusedError] that stays
// ([Permanent]).
func Received(ctx context.Context, metadata map[string]string) (context.Context, error) {
	var lock core.Ticket
	if err := lock.UnmarshalText([]byte(metadata[LockTicket])); err != nil {
		return ctx, Refused(&core.Refusal{Reason: reason.TokenMalformed, Err: err})
	}
	producer := observe.Producer{Parent: metadata[TraceParent], State: metadata[TraceState]}
	return core.WithTicket(observe.WithProducer(ctx, producer), lock), nil
}
