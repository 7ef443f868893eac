package core

import (
	"context"
	"fmt"
	"reflect"
)

// RequestFunc finds a value of a request that the protocols carry in different
// ways: above all the principal (the user, the tenant, the API key), as
// authentication in front has left it. The same function serves [ContextFunc],
// [PerPrincipal] and idempotency.Scope. It works in every framework if it reads by
// [adapter.Request.Value]:
//
//	func principal(_ context.Context, req core.Request) (string, error) {
//		user, _ := req.Value("user").(*User) // c.Set("user", user), or context.WithValue
//		if user == nil {
//			return "", nil
//		}
//		return user.ID, nil
//	}
//
// [FromContext] is the function for a value that is a string. A RequestFunc must
// never return what a client may choose.
//
// ctx is the context of the request. In gin and echo it does not contain what c.Set
// has put into the framework's own context.
//
// An empty value refuses the request as a mistake of the client, and is logged
// through [slog.Default] at most once a minute: most often the function looks
// in the wrong place, or authentication does not stand in front. If the mistake is
// really the client's, the function returns an error that matches [ErrKey], which
// is not logged. Any other error is the server's ([reason.Internal]), and is logged.
//
// Many requests call a RequestFunc at the same time.
type RequestFunc func(ctx context.Context, req Request) (string, error)

// FromContext returns the [RequestFunc] for a value that middleware in front has
// stored under a key: by c.Set in gin and echo, by [context.WithValue] in all
// frameworks. See [adapter.Request.Value].
//
//	idempotency.Scope(core.FromContext(gin.AuthUserKey))
//	core.PerPrincipal(core.FromContext("user"), 3, 10)
//	core.ContextFunc("user", core.FromContext(userKey{}))
//
// The value is a string, or of a type made of it (type UserID string). If nothing
// is stored under the key, the value is empty. A value of another type is an error
// of the server, which names the type; write a RequestFunc for it.
func FromContext(key any) RequestFunc {
	return func(_ context.Context, req Request) (string, error) {
		v := req.Value(key)
		if s, ok := v.(string); ok || v == nil {
			return s, nil
		}
		if s := reflect.ValueOf(v); s.Kind() == reflect.String {
			return s.String(), nil
		}
		return "", fmt.Errorf("interlock: FromContext(%v): the value is of type %T, and a string is accepted; "+
			"write a RequestFunc that makes one of it", key, v)
	}
}

// errNothingFound says that a RequestFunc returned an empty value.
var errNothingFound = fmt.Errorf("%w: a function found nothing", ErrKey)
