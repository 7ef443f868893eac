package watermilllock

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"

	"github.com/interlock-go/interlock/core/idempotency/once"
)

// Carry prepares a message that is about to be published to a topic, under ctx. It writes what goes
// along to the metadata: tickets, fencing tokens, and the trace context of ctx. The spans of the
// locks of the consumer link to that trace.
//
//	msg := message.NewMessage(watermill.NewUUID(), payload)
//	if err := watermilllock.Carry(ctx, "settlements", msg, once.Along{Lock: ticket}); err != nil {
//		return err
//	}
//	err = publisher.Publish("settlements", msg)
//
// In the handler of an idempotent endpoint, a job or a function of package once it gives the
// message a UUID that is derived from the request ([idempotency.CallKey]): a handler that runs
// again after a crash sends the same message again, and [Idempotent] consumes it once. The n-th
// message to a topic has its own UUID. A handler that sends from several goroutines names each
// message by [idempotency.WithCall]. With [idempotency.WithKey] the UUID is that key. A message with
// a ticket or fences is another message in each attempt, with a UUID of its own ([once.Along.Put]).
func Carry(ctx context.Context, topic string, msg *message.Message, along once.Along) error {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	id, err := along.Put(ctx, "publish "+topic, msg.Payload, msg.Metadata)
	if err != nil {
		return fmt.Errorf("interlock: the message was not prepared: %w", err)
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(msg.Metadata))
	if id != "" {
		msg.UUID = id
	}
	return nil
}
