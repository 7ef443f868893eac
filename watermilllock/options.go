package watermilllock

import (
	"net/url"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/interlock-go/interlock/core/idempotency/once"
)

// Option changes a middleware. A nil Option has no effect.
type Option func(*options)

type options struct {
	key     func(msg *message.Message) string
	with    []once.Option
	noDelay bool
}

func newOptions(opts []Option) *options {
	o := &options{key: handlerAndUUID}
	for _, option := range opts {
		if option != nil {
			option(o)
		}
	}
	return o
}

// handlerAndUUID is the key of a message unless Key says otherwise. It is empty, which no
// record is made for, if the message has no UUID, and outside of a router: two consumers
// without names would share the records, and the second would consume nothing. The name is
// escaped, so that another name and another UUID never make the same text.
func handlerAndUUID(msg *message.Message) string {
	name := message.HandlerNameFromCtx(msg.Context())
	if msg.UUID == "" || name == "" {
		return ""
	}
	return url.PathEscape(name) + "/" + once.KeyOf(msg.UUID, msg.Metadata)
}

// Key says which messages are the same for [Idempotent]: those with the same key. The key
// names the work and not only its object ("charge/order-7"): with one key for two
// handlers, the second one gets the result of the first. A message with an empty key, or
// with a key of more than 512 bytes, is refused (reason.KeyMalformed). Default:
// the name of the handler in the router, escaped as a part of a path, a slash, and the UUID
// of the message, or the key that it was sent with ([once.KeyOf]). A message outside of a router has no such name, and needs a Key.
func Key(f func(msg *message.Message) string) Option {
	return func(o *options) {
		if f != nil {
			o.key = f
		}
	}
}

// With passes options to [once.Do]. Default: none.
//
//	watermilllock.Idempotent(engine, watermilllock.With(once.Cancelable()))
func With(opts ...once.Option) Option {
	return func(o *options) { o.with = append(o.with, opts...) }
}

// NoDelay returns the error of a message that was refused for the time being at once. Use
// it where the Pub/Sub or a middleware in front delays messages after a nack.
// [once.RefusedError.RetryAfter] says for how long. Default: the middleware waits.
func NoDelay() Option {
	return func(o *options) { o.noDelay = true }
}
