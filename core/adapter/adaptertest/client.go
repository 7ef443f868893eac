package adaptertest

import "context"

// Client calls a service. It is safe for concurrent use.
type Client interface {
	// Call makes a call and waits for all of the answer.
	Call(ctx context.Context, req Request) Outcome
	// Open makes a call and returns when the answer begins. It is only for clients that get
	// answers in parts.
	Open(ctx context.Context, req Request) (Stream, error)
}

// Stream is an answer that comes in parts.
type Stream interface {
	// Next returns the next part, and io.EOF after the last. HTTP parts end
	// with a line.
	Next() (string, error)
	// Close gives the rest up.
	Close()
}

// Request is a request of a client.
type Request struct {
	// Values are the parameters' values.
	Values map[string]string
	// Path is used instead of Values by HTTP clients: already escaped, without
	// the first slash.
	Path string
	// Method is for HTTP requests; empty is POST.
	Method string
	// Header are further headers, in gRPC metadata.
	Header [][2]string
	// Body is the body of an HTTP request.
	Body string
	// Amount is a field of the message in gRPC, and Padding the length of a field that the
	// service does not know; 0: without it.
	Amount  int64
	Padding int
}

// Outcome is how a call ended.
type Outcome struct {
	// Ran says that a handler was entered while the call was made. It is about
	// this call where no other one may have begun meanwhile.
	Ran bool
	// OK says that the answer is a success. Text is the text of the answer, or of the
	// handler's failure.
	OK   bool
	Text string
	// Code is the protocol's word for the status: "423", "Aborted". It is
	// empty where an HTTP client got no answer.
	Code string
	// Replayed says that the answer is a stored one.
	Replayed bool
	// Reason is core's, as clients read it; Domain names the owner of the reason.
	Reason, Domain string
	// Detail is the text for people.
	Detail string
	// Retry says when the client is invited to try again, "" for not; Pushback is the hint of
	// gRPC to its clients' retry policies.
	Retry, Pushback string
}

// Result is the answer of a handler, in every protocol.
type Result int

// The results.
const (
	OK       Result = iota // 201, OK
	Declined               // 403, FAILED_PRECONDITION: it never will be carried out
	Busy                   // 429, RESOURCE_EXHAUSTED: it may be later
	Failed                 // 500, INTERNAL: the outcome is unknown
	None                   // no answer at all
)

// results are the codes of the results in both protocols.
var results = map[string]Result{
	"201": OK, "403": Declined, "429": Busy, "500": Failed,
	"OK": OK, "FailedPrecondition": Declined, "ResourceExhausted": Busy, "Internal": Failed,
}

// Result returns the result that an outcome has the code of, and None for every
// other code.
func (o Outcome) Result() Result {
	if result, known := results[o.Code]; known {
		return result
	}
	return None
}
