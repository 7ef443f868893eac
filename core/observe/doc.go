// Package observe is what the author of an [Observer] reads: of a type that is told
// what happens to locks and to requests of idempotent endpoints. It also describes
// a [Loss] in detail. Users of locks need only package core: core.WithObserver
// takes an Observer that another package has written, such as package otellock, and
// core.OnLost reports losses alone.
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
// Keys and principals identify users. What an Observer passes on holds their hashes
// ([Hashed]), and of an error the text of its [RootCause] alone.
package observe
