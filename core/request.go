package core

import "github.com/interlock-go/interlock/core/adapter"

// Request is a request as a guard sees it, the same in every protocol: a [KeyFunc]
// and a [RequestFunc] get it. Its methods are described at [adapter.Request].
//
//	Param(name)   a parameter of the route, in gRPC a field of the message
//	Header(name)  all values of a header, in gRPC of metadata
//	Query(name)   all values of a query parameter
//	Body(limit)   the whole body, which stays readable for the handler
//	Value(key)    what middleware in front has stored
//	Route()       the pattern of the route, in gRPC the full method
//	Native()      the framework's own request
type Request = adapter.Request
