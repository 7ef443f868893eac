// Package connectlock has server interceptors for connect (connectrpc.com/connect/v2) that
// run the calls for one resource one after the other, in this process and in all other
// processes that use the same store. They serve all protocols of a connect handler: Connect,
// gRPC and gRPC-Web.
//
// The package is package grpclock on the transport of connect: rules, options, refusals and
// records are as in grpclock, which describes them. A service may be served by connect
// and by grpc-go at the same time, with the same rules on the same store.
//
//	locker, err := core.New(store)
//	rules, err := grpclock.FromProto(locker) // by the option interlock.v1.serialize
//	protection := connectlock.Protect(rules, nil)
//	server := connect.NewServer(authenticate, protection.Interceptor())
//	bankv1connect.RegisterBankHandler(server, bank)
//	err = protection.Validate(server)
//	connecthttp.Mount(mux, server)
//
// [grpclock.FromProto] makes the rules that protos declare. Package grpclock shows how a
// proto declares them, and how protoc and buf find the option; the plugin for the code of
// connect is connectrpc.com/connect/v2/cmd/protoc-gen-connect-go. A map literal has the
// rules of a proto that is not yours, by procedure:
//
//	rules := grpclock.Rules{bankv1connect.BankDebitProcedure: core.Serialize(locker, "account/{account_id}")}
//
// [Protection.Validate] compares the rules with the server, and finds a lock that a proto
// declares and nobody takes. Put the interceptor after authentication and recovery, in the
// order that package grpclock gives. A rule that is also given to package httplock makes
// the same key there. {header.Name} is a field of the HTTP header. A whole service is
// examples/connect in the repository.
//
// # What clients see
//
// Refusals are a connect.Error with the code of package grpclock, a fixed text, and the
// details ErrorInfo and, where the handler did not run and the client may call again,
// RetryInfo. Clients of all protocols get the same details, and the trailer
// grpc-retry-pushback-ms (-1) where no try can succeed. [grpclock.Render] replaces refusals: its function returns a
// connect.Error or a status of gRPC.
//
// Errors of a handler stay the handler's: the interceptors pass them on unchanged. An error
// from another server that the handler makes its own, with the details of a refusal, loses
// RetryInfo, because this handler has run.
//
// # Unary methods
//
// The interceptor receives the message before it takes the lock, so a client that sends
// slowly holds no lock. The reply is sent after the lock is released. GET requests of
// methods that declare NO_SIDE_EFFECTS are calls as others: without a rule they take no
// lock, and a rule has to be shared ([core.Shared]) or of permits. They need no key, and
// [grpclock.Methods] must not name them.
//
// # Streams
//
// A stream holds its locks until its handler returns. The first message, if the rule needs a
// field, is received before the handler runs. Over HTTP/1.1, net/http cannot end a read of
// the request's body: if the first message of a stream does not come in time, the stream is
// refused, but the refusal leaves when the client sends more or closes. Set
// http.Server.ReadTimeout, or serve HTTP/2.
//
// # Idempotent methods
//
// [grpclock.Methods] run a unary handler once for each idempotency key: the field request_id of
// the message, or the header Idempotency-Key.
//
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(userKey{})))
//	methods := grpclock.Methods{bankv1connect.BankPayProcedure: engine}
//	protection := connectlock.Protect(rules, methods)
//
// A replay has the header Idempotent-Replayed: true. The stored answer of an error that is
// no connect.Error has a code only, as its client got it.
//
// # Call
//
// [UnaryClientRetry] sends a unary call again that the server refused with RetryInfo.
// [UnaryClientIdempotencyKey] gives each call a key, which is the same in all tries, and inside
// a handler in all attempts. If a call may have been carried out, its error is an
// idempotency.RequestError with the key.
//
//	client := connect.NewClient(transport, connectlock.UnaryClientIdempotencyKey(), connectlock.UnaryClientRetry())
package connectlock
