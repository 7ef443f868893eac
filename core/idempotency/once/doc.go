// Package once runs a function once for a key, and stores its result ([Do]), or once in
// each period over all processes ([Per]). It is an idempotent request without a
// protocol, for consumers of messages, jobs and schedules:
//
//	engine, err := idempotency.New(store, idempotency.Global())
//	receipt, err := once.Do(ctx, engine, "charge/"+message.ID, message.Order, charge)
//
// The engine is an [idempotency.Engine], with its options. The context of the function
// works like the context of a handler, with idempotency.MarkEffect,
// idempotency.Generation and idempotency.DownstreamKey.
//
// [Permanent] and [RefusedError] say what a consumer does with a message that was not
// carried out. [Refused] makes the same error for a consumer that uses a guard alone.
package once
