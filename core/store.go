package core

import "github.com/interlock-go/interlock/core/driver"

// Store is a backend that keeps locks. redisstore.New makes the one on Redis. Its
// methods are for the authors of stores; see [driver.Store].
type Store = driver.Store

// What a [Store] is asked and what it answers; see package driver.
type (
	// AcquireRequest asks for a lock.
	AcquireRequest = driver.AcquireRequest
	// Reply is the outcome of a try.
	Reply = driver.Reply
	// Renewal asks to extend one lease.
	Renewal = driver.Renewal
	// ReleaseRequest gives up a lock.
	ReleaseRequest = driver.ReleaseRequest
	// Signal tells a waiting locker that a lock may be free.
	Signal = driver.Signal
)
