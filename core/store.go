package core

import "github.com/interlock-go/interlock/core/driver"

// Store is a backend that keeps locks; redisstore.New makes the one on Redis.
// Its methods are for the authors of stores: see package driver.
type Store = driver.Store

// The requests and replies of a Store; see package driver.
type (
	AcquireRequest = driver.AcquireRequest
	Reply          = driver.Reply
	Renewal        = driver.Renewal
	ReleaseRequest = driver.ReleaseRequest
	Signal         = driver.Signal
)
