package core

import "errors"

// What is wrong with the body of a request, beside its length (ErrBodyLimit).
var (
	// ErrBody says that the body of a request did not come whole, or cannot be
	// read: the client broke off, or did not keep to the encoding that it had
	// announced.
	ErrBody = errors.New("interlock: body broken off or malformed")

	// ErrBodyTimeout says that the body did not come within the time that the
	// server gives it (http.Server.ReadTimeout, for one).
	ErrBodyTimeout = errors.New("interlock: body did not come in time")
)
