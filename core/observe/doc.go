// Package observe is for authors of an [Observer]. An Observer receives the events of locks and of
// requests of idempotent endpoints. The package also describes a [Loss] in detail. Users of locks
// need only package core: core.WithObserver takes an Observer that another package has written,
// such as package otellock, and core.OnLost reports losses alone.
//
// An Observer sets the functions that it needs and leaves the others nil:
//
//	func (c *counter) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
//		return ctx, observe.Observation{
//			Acquired: func(a observe.Acquired) {
//				if a.Err != nil {
//					c.refused.Add(1)
//				}
//			},
//		}
//	}
//
// Keys and principals identify users. An Observer must pass on only their hashes ([Hashed]), and
// of an error only the text of its [RootCause].
package observe
