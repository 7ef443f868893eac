// Package grpclock has gRPC server interceptors that run the calls for one
// resource one after the other, in this process and in every other on the same
// store, and client interceptors for those that call such a server.
//
// # Declare
//
// A method says in its proto which calls exclude each other, with the option of
// package lockpb. No code is generated for it beyond what protoc-gen-go does.
//
//	import "interlock/v1/serialize.proto";
//
//	rpc Debit(DebitRequest) returns (DebitResponse) {
//	  option (interlock.v1.serialize) = {key: "account/{account_id}" wait: {seconds: 2}};
//	}
//
// A placeholder is a field of the request message by its name in the proto,
// {account.id} one of a nested message, {msg.header.id} one whose name begins
// like a source of the template. It is a string, an integer, a bool or an enum
// (by its number). A field that is not set refuses the call, and so does zero
// where the field has no presence: declare it optional if zero is a resource.
// {header.x-tenant} is metadata, {ctx.user} a core.ContextFunc.
//
// If the method takes several texts of a string field for one resource, 42 and
// 042, the placeholder says so, {account_id:int}; see core.Form. Values of integer
// fields are canonical already; a form makes their keys those of a rule that serves
// HTTP too.
//
// The proto is found with the directory of lockpb on protoc's include path:
//
//	protoc -I . -I "$(go list -f '{{.Dir}}' github.com/interlock-go/interlock/grpclock/lockpb)" ...
//
// # Serve
//
//	locker, err := core.New(store)
//	rules, err := grpclock.FromProto(locker)
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, grpclock.UnaryServerInterceptor(rules)),
//		grpc.ChainStreamInterceptor(grpclock.StreamServerInterceptor(rules)),
//	)
//	bankpb.RegisterBankServer(server, bank)
//	err = rules.Validate(server)
//
// FromProto and Validate fail at start-up on what cannot work, such as a field
// that the message does not have. Rules for protos of others are written down:
//
//	grpclock.Rules{"/vendor.v1.Bank/Debit": core.Serialize(locker, "account/{account_id}")}
//
// The interceptors go behind authentication, since whoever can name a resource
// can keep others waiting for it, and behind recovery: a panic passes through,
// after the release. Methods without a rule run unlocked, and so do all streams
// of a server that was given the unary interceptor alone; the selector of
// go-grpc-middleware leaves out more. A guard that is also given to httplock
// makes the same key there, so that a request and a call exclude each other.
//
// The handler runs under the lease: its context ends with cause core.ErrLost
// when the lock can no longer be trusted, and core.LeaseFromContext finds the
// fencing token for what it writes.
//
// # Streams
//
// A stream holds its locks until it ends. If the rule asks for a field, that is
// one of the first message: the interceptor receives it before the handler runs
// (FirstMessageWait bounds that) and the handler receives it again. A rule on
// metadata alone waits for no message. After a loss RecvMsg and SendMsg fail; one
// that is waiting for the client does not notice before the client moves.
//
// # What clients see
//
//	INVALID_ARGUMENT    a value of the key is missing, malformed or too long
//	RESOURCE_EXHAUSTED  a core.KeyFunc met a message above its limit
//	ABORTED             locked by another call for as long as the rule waits
//	                    (5 s); too many wait already; RetryInfo
//	RESOURCE_EXHAUSTED  the caller holds or waits for as many locks as
//	                    core.PerPrincipal allows; RetryInfo
//	DEADLINE_EXCEEDED   locked by another call until the call's own deadline
//	UNAVAILABLE         the store is unreachable; with RetryInfo: too few
//	                    replicas, this process is closing
//	ABORTED             the lease was lost before the handler succeeded;
//	                    no RetryInfo, push-back -1
//	INTERNAL            the rule and the method do not fit together; the lock's
//	                    key in Redis is no lock
//	CANCELED            the client left while its call waited
//
// All have fixed text and an ErrorInfo of domain "interlock" whose reason is that
// of the HTTP problems and whose metadata "method" is the full method. RetryInfo
// means that the handler did not run; the trailer grpc-retry-pushback-ms says the
// same to clients with a retry policy in their service config. Render replaces
// them all.
//
// A handler that calls such a server itself, and returns the refusal it got, has
// run: the interceptors take RetryInfo from the error, and set the trailer to -1,
// whether the method has a rule or not. A server without these interceptors hands
// the hint on; UnaryClientRetry looks at the method, and does not follow it.
//
// A handler that returns an error after its lease was lost, whichever, has failed
// for that reason: what it returns is most often the end of its context in some
// disguise. One that succeeded is left alone, and core.OnLost and the observer are
// told. With core.CheckAnswer the store is asked before a success leaves, and one
// whose lock was lost becomes ABORTED.
//
// # Idempotent methods
//
// Idempotent carries a call out once for each idempotency key, and answers those
// that are sent again, in whichever process they arrive, with the stored reply, or
// the stored status with its details. The key is the field request_id of the
// message (AIP-155), or else the metadata idempotency-key.
//
//	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(userKey{})))
//	methods := grpclock.Methods{"/interlock.test.v1.Bank/Debit": engine}
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate, grpclock.Idempotent(methods)))
//	err = methods.Validate(server)
//
// The store is that of the locks. Scope says whose key it is, so that a client does
// not get another's reply by guessing a key: here what authentication in front has
// put under userKey{} into the call's context (context.WithValue). A value that is
// no string takes a function of a few lines; core.RequestFunc shows it.
//
// A method that moves money says so just before, and gives the service that it
// calls a key of its own, the same in every attempt. If MarkEffect fails it must
// not go on. Without it, a process that dies half-way leaves a call that the next
// one carries out again.
//
//	if err := idempotency.MarkEffect(ctx); err != nil {
//		return nil, status.Error(codes.Unavailable, "not now")
//	}
//	err := ledger.Pay(ctx, idempotency.DownstreamKey(ctx), 100)
//
// The handler's context ends neither with its client nor with the call's deadline:
// a client that leaves has begun something, and gets the result when it asks
// again. It ends when the claim is lost, or after MaxHold (5 min). Metadata that
// the handler sends waits until the reply is stored, and is replayed with it.
//
// Under puts a lock around the handler: first the claim, then the lock, and in the
// end the reply is stored and the lock released in one round trip. A replay takes
// no lock. A rule of the same key for the method, beside Under, does no harm but
// does nothing either: the call enters the lock again that it holds. In front of
// Idempotent it makes replays wait for the lock. So the method has none of its own:
//
//	pay := engine.With(idempotency.Under(core.Serialize(locker, "account/{id}")))
//
// Streams cannot be replayed, and are refused when the server starts: by
// Idempotent where their proto is linked in, by Validate in any case.
//
// # What clients of idempotent methods see
//
//	INVALID_ARGUMENT    no key, unless it is Optional; a malformed one, or two;
//	                    no principal
//	ABORTED             the first call is still in flight; RetryInfo
//	FAILED_PRECONDITION the key was used for another method or message, or in
//	                    HTTP; it has expired (with Tombstone)
//	RESOURCE_EXHAUSTED  the message is longer than 1 MiB (MaxRequest)
//	DATA_LOSS           the outcome of the first call is not known; or it was
//	                    carried out, and the reply was too long to be kept
//	UNAVAILABLE         the store is unreachable; nothing was done
//	ABORTED             the claim was lost before the handler succeeded; no
//	                    RetryInfo, push-back -1
//
// and what the lock under it refuses. None of these is stored, and all have an
// ErrorInfo as above. Everything else is the handler's answer, or with metadata
// idempotent-replayed: true the stored one. After CANCELED, UNKNOWN,
// DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, INTERNAL, UNAVAILABLE,
// UNAUTHENTICATED or a panic a retry runs the handler again, unless it had marked
// its effect. Errors that are no statuses are UNKNOWN: an interceptor that makes
// statuses of them goes behind Idempotent.
//
// # Call
//
// UnaryClientRetry tries again what the server refused with RetryInfo, and
// UnaryClientIdempotencyKey names each logical call, the same over all tries.
//
//	grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry())
package grpclock
