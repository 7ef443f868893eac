package core

import "errors"

// Request is what a guard asks of a request, whatever the protocol: an adapter
// is this interface and one call of Guard.Do. Nothing is read before a template
// or a KeyFunc asks for it.
//
// Values are handed over decoded exactly once and otherwise as they came: a
// guard escapes them itself, so that no value can be mistaken for a separator.
type Request interface {
	// Route returns the pattern of the matched route (gRPC: the full method),
	// and false when no route matched: the guard then lets the request through
	// unlocked, for the framework to answer it with its 404.
	Route() (pattern string, matched bool)

	// Param returns a parameter of the route (gRPC: a field of the request
	// message, nested ones with dots). ErrNoParam says that the matched route
	// has no such parameter, which is the server's mistake. Any other error
	// says that the value is malformed, and with an empty value is the
	// client's.
	Param(name string) (string, error)

	// Header returns all values of a header (gRPC: of the incoming metadata),
	// none when it is missing. The name is in canonical form (X-Tenant).
	Header(name string) []string

	// Query returns all values of a query parameter, none when it is missing
	// or the protocol has no query.
	Query(name string) []string

	// Body returns the whole body (gRPC: the message in deterministic wire
	// format) and leaves it readable for the handler. ErrBodyLimit says that
	// it is longer than limit bytes, ErrBody and ErrBodyTimeout that it did not
	// come whole. ErrConfig says that it is not there any more, since something
	// in front of the rule has read it: never what is left of a body. A form
	// that was parsed in front is returned as a body with the same fields.
	Body(limit int64) ([]byte, error)

	// Value returns what middleware in front has put under a key, or nil: in gin
	// and echo by c.Set, and in all frameworks into the request's context
	// (context.WithValue). What c.Set has put comes first.
	Value(key any) any

	// Native returns the framework's own request: *http.Request,
	// *gin.Context, echo.Context, or the gRPC request message.
	Native() any
}

var (
	// ErrNoParam says that the matched route does not have a parameter that a
	// rule's template asks for. The rule and the route do not fit together:
	// the server is to blame, and the client is told no more than that.
	ErrNoParam = errors.New("interlock: route has no such parameter")

	// ErrBodyLimit says that a body is longer than the reader was ready to
	// take.
	ErrBodyLimit = errors.New("interlock: body too large")
)
