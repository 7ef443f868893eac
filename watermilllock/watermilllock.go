package watermilllock

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
)

// Idempotent returns a middleware that consumes each message once; see the package
// comment. It is safe for concurrent use. Idempotent panics if engine is nil.
func Idempotent(engine *idempotency.Engine, opts ...Option) message.HandlerMiddleware {
	if engine == nil {
		panic("watermilllock: Idempotent with a nil engine; idempotency.New makes one")
	}
	o := newOptions(opts)
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx, err := once.Received(msg.Context(), msg.Metadata)
			if err != nil {
				return nil, err
			}
			calls := append([]once.Option{once.Metadata(msg.Metadata), once.Codec(marshal, unmarshal)}, o.with...)
			produced, err := once.Do(ctx, engine, o.key(msg), msg, func(ctx context.Context, msg *message.Message) (message.Messages, error) {
				return consume(ctx, msg, next)
			}, calls...)
			o.wait(ctx, err)
			return detach(ctx, produced, msg), err
		}
	}
}

// Guard returns a middleware that runs handlers under a rule: alone ([core.Serialize]),
// together with other sharers ([core.Share]), or as a limited number at once
// ([core.AtMost]). It is safe for concurrent use. Guard panics if rule is nil. Of the
// options only [NoDelay] has a meaning.
//
// If the lock was refused, the error is an [once.RefusedError]. If it was lost
// before a handler failed, the error of the handler is joined to that.
func Guard(rule *core.Guard, opts ...Option) message.HandlerMiddleware {
	if rule == nil {
		panic("watermilllock: Guard with a nil rule; core.Serialize makes one")
	}
	o := newOptions(opts)
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (produced []*message.Message, err error) {
			ctx, err := once.Received(msg.Context(), msg.Metadata)
			if err != nil {
				return nil, err
			}
			request := &adapter.Message{
				Name: message.HandlerNameFromCtx(ctx), Metadata: msg.Metadata, Payload: msg.Payload, Source: msg, Lookup: ctx.Value,
			}
			refusal := rule.Do(ctx, request, func(ctx context.Context) (answered bool) {
				produced, err = consume(ctx, msg, next)
				return err == nil
			})
			if refusal != nil {
				err = errors.Join(once.Refused(refusal), err)
			}
			o.wait(ctx, err)
			return detach(ctx, produced, msg), err
		}
	}
}

// consume runs the handler with ctx as the context of its message.
func consume(ctx context.Context, msg *message.Message, next message.HandlerFunc) (message.Messages, error) {
	outside := msg.Context()
	msg.SetContext(ctx)
	defer msg.SetContext(outside)
	return next(msg)
}

// detach keeps the end of the handler's context from the messages that it produced, which
// are about to be published. A message that comes from the record gets the values of the
// context of the message that was consumed.
func detach(ctx context.Context, produced []*message.Message, msg *message.Message) []*message.Message {
	for _, m := range produced {
		switch {
		case m == nil || m == msg:
		case m.Context() == context.Background():
			m.SetContext(context.WithoutCancel(ctx))
		default:
			m.SetContext(context.WithoutCancel(m.Context()))
		}
	}
	return produced
}

// wait delays a nack until the message may be delivered again with success.
func (o *options) wait(ctx context.Context, err error) {
	var refused *once.RefusedError
	if o.noDelay || !errors.As(err, &refused) || refused.RetryAfter == 0 {
		return
	}
	select {
	case <-time.After(refused.RetryAfter):
	case <-ctx.Done():
	}
}
