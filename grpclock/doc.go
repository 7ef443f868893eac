// Package grpclock has gRPC server interceptors that run the calls for one resource
// one after the other, in this process and in all other processes that use the same
// store. It also has client interceptors for programs that call such a server.
//
// # Declare
//
// A method declares in its proto which calls exclude each other, with the option of
// package [lockpb]. protoc-gen-go is the only code generator that it needs.
//
//	import "interlock/v1/serialize.proto";
//
//	rpc Debit(DebitRequest) returns (DebitResponse) {
//	  option (interlock.v1.serialize) = {key: "account/{account_id}" wait: {seconds: 2}};
//	}
//
// A placeholder is the proto name of a field of the request message. {account.id}
// names a field of a nested message. {msg.header.id} names a field with a name that
// begins like another source of the template. The field is a string, an integer, a
// bool or an enum (by its number). If the field is not set, the call is refused. If
// the field has no presence, zero is refused too: declare the field optional if zero
// is a resource. {header.x-tenant} is metadata, and {ctx.user} is a
// [core.ContextFunc].
//
// If the method accepts several texts of a string field for one resource, such as 42
// and 042, write that in the placeholder: {account_id:int} (see [core.Form]). Values
// of integer fields are canonical already; a form makes their keys equal to the keys of
// a rule that also serves HTTP.
//
// protoc finds the proto if the directory of lockpb is on its include path:
//
//	protoc -I . -I "$(go list -f '{{.Dir}}' github.com/interlock-go/interlock/grpclock/lockpb)" \
//	  --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative bank.proto
//
// The plugins are google.golang.org/protobuf/cmd/protoc-gen-go and
// google.golang.org/grpc/cmd/protoc-gen-go-grpc, each installed by go install with
// @latest. Where there is no protoc, pip install grpcio-tools brings it as
// python -m grpc_tools.protoc.
//
// buf reads only files of its workspace: copy interlock/v1/serialize.proto into a module of
// the workspace, under this path. In buf.gen.yaml exclude the directory interlock from the
// inputs (exclude_paths), because package lockpb is its code. In managed mode disable
// go_package for the path interlock, too, so that the generated code imports lockpb.
//
// # Serve
//
//	locker, err := core.New(store)
//	rules, err := grpclock.FromProto(locker)
//	protection := grpclock.Protect(rules, nil)
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, protection.Unary()),
//		grpc.ChainStreamInterceptor(protection.Stream()),
//	)
//	bankpb.RegisterBankServer(server, bank)
//	err = protection.Validate(server)
//
// [FromProto] and [Protection.Validate] return errors at start-up for rules that cannot
// work, such as a field that the message does not have, and for a lock that a proto
// declares and no rule takes: a method without a rule, or streams without the interceptor
// of streams. Give one Protection all rules and methods of a server. For a proto that is
// not yours, write the rule in Go:
//
//	grpclock.Rules{"/vendor.v1.Bank/Debit": core.Serialize(locker, "account/{account_id}")}
//
// Put the interceptors after authentication, because a client that can name a
// resource can make other clients wait for it. Put them after recovery: a panic
// passes through after the release. Methods without a rule run without a lock. The
// selector of go-grpc-middleware can leave out more methods. A rule that is also
// given to package httplock makes the same key there, so that a request and a call
// exclude each other.
//
// The handler runs under the lease. Its context ends with cause [core.ErrLost] when
// the lock can no longer be trusted. [core.LeaseFromContext] returns the lease with
// the fencing token for the handler's writes.
//
// # The order
//
// From the outside to the inside:
//
//	recovery, logging, tracing
//	a time limit that answers while the handler still runs
//	authentication, authorization, rate limits
//	Protection.Unary: first the key, then the lock
//	what makes a status of an error
//	the handler
//
// A replay does not run interceptors after it: only an interceptor in front of it notices a
// right that was revoked since then.
//
// # Streams
//
// A stream holds its locks until it ends. If the rule needs a field, it is a field
// of the first message. The interceptor receives that message before the handler
// runs ([FirstMessageWait] limits the wait), and the handler receives it again. A
// rule that needs only metadata waits for no message. After a loss, RecvMsg and
// SendMsg return errors. A RecvMsg or SendMsg that is waiting for the client notices
// the loss only after the client sends or receives something.
//
// # What clients see
//
//	INVALID_ARGUMENT    a value of the key is missing, malformed or too long; the
//	                    fencing tokens are malformed
//	RESOURCE_EXHAUSTED  the message is longer than core.ReadBody or a
//	                    core.KeyFunc allows
//	ABORTED             another call held the lock for as long as the rule waits
//	                    (5 s), or too many calls wait already; RetryInfo
//	RESOURCE_EXHAUSTED  the principal holds or waits for as many locks as
//	                    core.PerPrincipal allows; RetryInfo
//	DEADLINE_EXCEEDED   another call held the lock until the call's own deadline
//	UNAVAILABLE         the store is unreachable, too few replicas have the lock,
//	                    or this process is closing; RetryInfo
//	ABORTED             the caller of the call holds the lock itself
//	                    (core.HeldHeader); pushback -1
//	FAILED_PRECONDITION the caller's lock has had another holder since
//	                    (core.Fenced); pushback -1
//	FAILED_PRECONDITION the call has no fencing token of the lock (core.Fenced)
//	ABORTED             a newer call has come (core.Newest), before the handler of
//	                    this one began or had answered; pushback -1
//	ABORTED             the lease was lost, or MaxHold passed, before the handler
//	                    succeeded; no RetryInfo, push-back -1
//	INTERNAL            the rule and the method do not fit together; the lock's
//	                    key in Redis holds a value that is no lock
//	CANCELED            the client left while its call waited
//
// All statuses have fixed text and an ErrorInfo of domain "interlock" ([Domain]).
// Its reason is the same as in the HTTP problems, and its metadata "method" is the full
// method. RetryInfo means that the handler did not run; its delay is the least, since no server
// knows when the lock will be free. The trailer grpc-retry-pushback-ms is -1 or absent: clients with a
// retry policy in their service config keep their own backoff. [Render] replaces all of these
// statuses.
//
// A handler may itself call such a server and return the refusal that it received.
// That handler has run, so the interceptors remove RetryInfo from the error and set
// the trailer to -1, whether the method has a rule or not. A server without these
// interceptors passes the RetryInfo on; [UnaryClientRetry] compares the method and
// does not follow it.
//
// If a handler returns an error after its lease was lost, the call fails with the
// loss and not with that error: most often it is the end of the handler's context in
// another form. If the handler succeeded, its reply is sent; the application learns
// of the loss through [core.OnLost] and the observer. With [core.CheckAnswer] the
// interceptor asks the store before it sends a success. If the lock was lost, it
// sends ABORTED instead.
//
// # Idempotent methods
//
// [Methods] run the handler once for each idempotency key. A client that sends
// the call again gets the stored reply, or the stored status with its details,
// from each process. The key is the field request_id of the message
// (AIP-155), or else the metadata idempotency-key ([IdempotencyKey]).
//
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(userKey{})))
//	methods := grpclock.Methods{"/interlock.test.v1.Bank/Debit": engine}
//	protection := grpclock.Protect(rules, methods)
//
// The engine uses the same store as the locks. [idempotency.Scope] names the owner
// of a key, so that a client cannot read the reply of another client by guessing its
// key. Here the owner is the value that authentication in front stored under
// userKey{} in the call's context ([context.WithValue]). If that value is not a
// string, write a short function; [core.RequestFunc] shows one.
//
// A method that moves money calls [idempotency.MarkEffect] just before it does so.
// It sends a derived key to the service that it calls
// ([idempotency.DownstreamKey]). This key is the same in every attempt. If
// MarkEffect returns an error, the method must not continue. Without the mark, if a
// process dies half-way, the next call with the key runs the handler again.
//
//	if err := idempotency.MarkEffect(ctx); err != nil {
//		return nil, status.Error(codes.Unavailable, "not now")
//	}
//	err := ledger.Pay(ctx, idempotency.DownstreamKey(ctx), 100)
//
// The handler's context ends neither when its client leaves nor at the call's
// deadline: the work has begun, and the client gets the result when it asks again.
// The context ends when the claim is lost, or after [idempotency.MaxHold] (5 min).
// Metadata that the handler sends waits until the reply is stored, and a replay
// sends it again.
//
// [idempotency.Under] adds a lock around the handler. The engine takes the claim
// first and the lock second. At the end it stores the reply and releases the lock in
// one round trip. A replay takes no lock. A method under Under needs no other rule.
//
//	pay := engine.With(idempotency.Under(core.Serialize(locker, "account/{id}")))
//
// Streams cannot be replayed, and are refused when the server starts: [Protect]
// panics if the proto of the stream is linked into the program, and
// [Protection.Validate] returns an error in any case. The same is true of a method that
// declares NO_SIDE_EFFECTS.
//
// # What clients of idempotent methods see
//
//	INVALID_ARGUMENT    the key is missing (unless Optional), malformed or given
//	                    twice; there is no principal
//	ABORTED             the first call is still in flight; RetryInfo
//	FAILED_PRECONDITION the key was used for another method or message, or for an
//	                    HTTP request; it has expired (with Tombstone)
//	RESOURCE_EXHAUSTED  the message is longer than 1 MiB (MaxRequest)
//	DATA_LOSS           the outcome of the first call is unknown; or it succeeded
//	                    and its reply was too long to be stored
//	UNAVAILABLE         the store is unreachable; the handler did not run; RetryInfo
//	ABORTED             the claim was lost, or MaxHold passed, before the handler
//	                    succeeded; no RetryInfo, push-back -1
//
// and the refusals of the lock under it. None of these is stored, and all have an
// ErrorInfo as above. Every other answer is the handler's own, or the stored one
// with the metadata idempotent-replayed: true. After CANCELED, UNKNOWN,
// DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, INTERNAL, UNAVAILABLE,
// UNAUTHENTICATED or a panic, a retry runs the handler again, unless the handler had
// marked its effect. An error that is not a status counts as UNKNOWN: put an
// interceptor that makes statuses from such errors after [Protection.Unary].
//
// # A REST gateway
//
// The interceptors belong to the [grpc.Server]. A direct call of the service's methods passes
// them: such a call has no lock and no record, and its effect happens twice. The functions
// RegisterXxxHandlerServer of grpc-gateway do that, and [Protection.Validate] does not see it.
// Give the gateway a connection to the server, which may be in memory (package bufconn), and
// RegisterXxxHandler:
//
//	err = bankpb.RegisterBankHandler(ctx, mux, conn)
//
// A handler that calls [idempotency.MarkEffect] or [core.Commit] has no effect in such a
// call: they return [idempotency.ErrNoAttempt] and [core.ErrNoLease]. A test of a service
// sends one request through its gateway, and in the handler asks for
// [core.LeaseFromContext] and [idempotency.Generation]: nil and 0 say that the interceptors
// were passed.
//
// The gateway hands only some HTTP header fields on, and Idempotency-Key is not among them:
// the call is refused, since its key is missing. The field request_id of the message needs
// no header. For the header there is [GatewayHeader]:
//
//	mux := runtime.NewServeMux(runtime.WithIncomingHeaderMatcher(grpclock.GatewayHeader(runtime.DefaultHeaderMatcher)))
//
// A client that cannot wait for that sends Grpc-Metadata-Idempotency-Key. A replay is marked
// by Grpc-Metadata-Idempotent-Replayed, unless WithOutgoingHeaderMatcher says otherwise.
// httplock.Transport reads it. Refusals have no mark in HTTP behind a gateway.
//
// # Call
//
// [UnaryClientRetry] sends a call again that the server refused with RetryInfo.
// [UnaryClientIdempotencyKey] gives each logical call a key, which is the same in
// all tries, and inside a handler in all attempts. If a call may have been carried out, its
// error is an [idempotency.RequestError] with the key. A handler that returns such an error
// answers UNKNOWN, which is not stored.
//
//	grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry())
package grpclock
