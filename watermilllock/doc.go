// Package watermilllock is middleware for Watermill
// (github.com/ThreeDotsLabs/watermill): it consumes a message once, and the messages for
// one resource one after the other, in all processes on the same store.
//
//	poison, err := middleware.PoisonQueueWithFilter(publisher, "orders.poison", once.Permanent)
//	if err != nil {
//		return err
//	}
//	router.AddMiddleware(poison, watermilllock.Idempotent(engine.With(idempotency.Under(perAccount))))
//
// A Pub/Sub delivers a message at least once. It delivers it again after a crash, and also
// while a handler still works: the one on Redis streams after MaxIdleTime, a minute.
// [Idempotent] keeps one record for each handler and message: a second delivery is
// acknowledged and not consumed again.
//
// # What becomes of a message
//
//	the handler returns nil         stored with the messages that it produced: ack; a
//	                                duplicate publishes the same messages again, with the
//	                                same UUIDs, since the first may have died before it did
//	an error                        not stored: nack, and the handler runs again
//	once.Final                      stored: the error, also for a duplicate
//	a panic                         not stored, after MarkEffect stored as an error
//
//	another process consumes it     nack after a second
//	the lock of the rule is held    nack after a second
//	the store is unreachable        nack after a second; the handler does not run
//	the claim or the lock was lost  nack after the lease
//	the outcome is unknown          an error; an operator calls Engine.Resolve
//	the UUID or the name of the     an error
//	handler is empty; it was used
//	with another payload; the
//	result is not to be had; the
//	metadata makes no key
//
// Watermill has no nack with a delay: the Pub/Sub delivers the message again at once, or
// after its own delay (NackResendSleep). So the middleware waits before it returns,
// until the context of the message ends; meanwhile the subscriber gets no other message.
// [NoDelay] leaves that to the Pub/Sub.
//
// An error of the last kinds, and a stored error, stays the same however often the message
// is delivered ([once.Permanent]). Without a poison queue it is delivered for ever. Put
// middleware.PoisonQueueWithFilter in front, as above, and middleware.Retry after it: a
// try of Retry in front of Idempotent asks the store each time.
//
// # The record of a message
//
// The key is the name of the handler and the UUID of the message ([Key] changes that). A
// publisher that sends a message again must give it the same UUID ([Carry]). A handler that gets
// another name consumes everything anew. Outside of a router a handler has no name, and
// messages are refused without Key. The payload counts
// ([idempotency.ErrKeyReused]), the metadata does not, since middleware changes it.
//
// An engine with [idempotency.Global] fits messages. A function given to
// [idempotency.Scope] reads the metadata by core.Request.Header.
//
// The context of the message is the context of a request under the engine while the handler runs:
// it does not end with the subscriber, so a handler that was begun comes to its end within
// [idempotency.MaxHold]. [With] and [once.Cancelable] change that.
//
// # Locks
//
// [Guard] runs handlers under a rule, and keeps no record. A rule reads the metadata, by
// {account} and by {header.Account}, so that one rule serves HTTP and messages. A
// [core.KeyFunc] finds the *message.Message by core.Request.Native.
package watermilllock
