package adapter

import "errors"

// The errors of a [Request]. An adapter wraps them with the circumstances; a guard
// matches them with errors.Is. A KeyFunc that gets such an error returns it.
var (
	// ErrNoParam says that the matched route does not have a parameter that the
	// template of a guard asks for. The guard and the route do not fit together:
	// this is a mistake of the server, and the client gets no more details.
	ErrNoParam = errors.New("interlock: route has no such parameter")

	// ErrBodyLimit says that a body is longer than the reader accepts.
	ErrBodyLimit = errors.New("interlock: body too large")

	// ErrBody says that the body of a request did not come whole, or cannot be
	// read: the client broke off, or did not keep to the encoding that it had
	// announced.
	ErrBody = errors.New("interlock: body broken off or malformed")

	// ErrBodyTimeout says that the body did not come within the time that the
	// server gives it (for example http.Server.ReadTimeout).
	ErrBodyTimeout = errors.New("interlock: body did not come in time")
)
