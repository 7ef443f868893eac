package adapter

// Request is what a guard asks of a request, in every protocol. Package core has it
// as core.Request. An adapter is this interface and one call of Guard.Do. A guard
// reads only what a template or a KeyFunc asks for. It calls the methods on the
// goroutine of the request.
//
// An adapter hands values over decoded exactly once and otherwise as they came. The
// guard escapes them itself, so that no value can be mistaken for a separator.
type Request interface {
	// Route returns the pattern of the matched route (in gRPC the full method). It
	// returns false when no route matched: the guard then lets the request through
	// without a lock, and the framework answers with its 404.
	Route() (pattern string, matched bool)

	// Param returns a parameter of the route (in gRPC a field of the request
	// message; the name of a nested field has dots). [ErrNoParam] says that the
	// matched route has no such parameter, which is a mistake of the server. Any
	// other error says that the value is malformed. A malformed or empty value is a
	// mistake of the client.
	Param(name string) (string, error)

	// Header returns all values of a header (in gRPC of the incoming metadata),
	// none if it is missing. The name is in canonical form (X-Tenant).
	Header(name string) []string

	// Query returns all values of a query parameter, none if it is missing or if
	// the protocol has no query.
	Query(name string) []string

	// Body returns the whole body (in gRPC the message in deterministic wire
	// format) and leaves it readable for the handler. [ErrBodyLimit] says that the
	// body is longer than limit bytes, [ErrBody] and [ErrBodyTimeout] that it did
	// not come whole. core.ErrConfig says that the body is not there any more,
	// because something in front of the guard has read it; Body never returns the
	// rest of a body. If middleware in front has parsed a form, Body returns a body
	// with the same fields.
	Body(limit int64) ([]byte, error)

	// Value returns what middleware in front has stored under a key, or nil: in gin
	// and echo by c.Set, and in all frameworks in the context of the request
	// ([context.WithValue]). A value from c.Set comes first.
	Value(key any) any

	// Native returns the framework's own request: *http.Request, *gin.Context,
	// echo.Context, or the gRPC request message.
	Native() any
}

// Reader is a [Request] that can say whether it only reads, so that a guard with
// core.ShareReads lets it run together with others. A request that is no Reader counts
// as a writer.
type Reader interface{ ReadsOnly() bool }
