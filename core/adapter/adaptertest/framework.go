package adaptertest

import (
	"testing"

	"github.com/interlock-go/interlock/core"
)

// Framework is a framework with its adapter, for [Run]. The rows ask for the fields, and name no
// framework.
type Framework struct {
	// Label is the name of the framework in the output.
	Label string
	// Start serves a service with the framework and the adapter, until the test ends, and returns
	// a client. Most end with [Service.ServeHTTP].
	Start func(testing.TB, *Service) Client

	// HTTP is a framework on net/http: its handlers have an http.ResponseWriter and a
	// *http.Request, and Start returns a [*HTTPClient]. There are rows about methods, bodies,
	// flushed parts and connections then.
	HTTP bool
	// Statuses is another framework that answers with statuses of HTTP. Without HTTP and Statuses
	// the codes are gRPC's.
	Statuses bool
	// Parts: the output of a handler arrives part by part.
	Parts bool
	// Idempotent: the adapter has idempotent endpoints, too.
	Idempotent bool
	// Untyped: the adapter does not know which parameters a route has. A template with a
	// parameter that the route does not have is then a mistake of the client.
	Untyped bool
	// Colons: a parameter of a route is :id, and not {id}.
	Colons bool
	// Sets: middleware leaves a user by the framework's own means ([Service.User]).
	Sets bool
	// Native is the type of the method Native of core.Request, as %T prints it. It is only for
	// frameworks on net/http.
	Native string

	// Cannot declares rows of [Run] that the framework cannot hold: the name of the row, and why.
	// The adapter documents what its users miss.
	Cannot map[string]string
	// CannotIdempotent declares rows of package endpointtest in the same way.
	CannotIdempotent map[string]string
}

// locks are the layers of rules, the outermost first.
func locks(rules ...*core.Guard) (layers []Layer) {
	for _, rule := range rules {
		layers = append(layers, Layer{Lock: rule})
	}
	return layers
}
