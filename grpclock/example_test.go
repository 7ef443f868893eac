package grpclock_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
)

// The proto of the service says which calls exclude each other:
//
//	rpc Debit(Request) returns (Reply) {
//	  option (interlock.v1.serialize) = {key: "account/{id}" wait: {seconds: 60}};
//	}
func Example() {
	locker, err := core.New(memstore.New()) // in production: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	rules, err := grpclock.FromProto(locker)
	if err != nil {
		log.Fatal(err)
	}
	protection := grpclock.Protect(rules, nil)
	server := grpc.NewServer(protection.ServerOptions()...)
	defer server.Stop()
	testpb.RegisterBankServer(server, bank{call: func(ctx context.Context, id string) (string, error) {
		return fmt.Sprintf("debited %s under the lock of %s", id, core.LeaseFromContext(ctx).Key()), nil
	}})
	if err := protection.Validate(server); err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(listener) //nolint:errcheck // ends with Stop

	conn, err := grpc.NewClient(listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := testpb.NewBankClient(conn)
	reply, err := client.Debit(context.Background(), &testpb.Request{Id: "42"})
	fmt.Println(reply.GetText(), err)
	_, err = client.Debit(context.Background(), &testpb.Request{})
	fmt.Println(status.Code(err), "-", status.Convert(err).Message())
	// Output:
	// debited 42 under the lock of account/42 <nil>
	// InvalidArgument - The request does not name the resource to lock.
}

// A mistake in a rule is found before the server serves.
func ExampleProtection_Validate() {
	locker, err := core.New(memstore.New()) // in production: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	rules, err := grpclock.FromProto(locker)
	if err != nil {
		log.Fatal(err)
	}
	rules["/interlock.test.v1.Bank/Get"] = core.Serialize(locker, "account/{account_id}")
	protection := grpclock.Protect(rules, nil)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(protection.Unary())) // and no Stream
	testpb.RegisterBankServer(server, testpb.UnimplementedBankServer{})
	fmt.Println(protection.Validate(server))
	// Output:
	// interlock: bad configuration: method "/interlock.test.v1.Bank/Chat": it is a stream with a rule, and the program never asked for the interceptor of its server's streams: Stream (with connect, Interceptor)
	// interlock: bad configuration: method "/interlock.test.v1.Bank/Export": it is a stream with a rule, and the program never asked for the interceptor of its server's streams: Stream (with connect, Interceptor)
	// interlock: bad configuration: method "/interlock.test.v1.Bank/Get": {account_id}: message interlock.test.v1.Request has no field "account_id"; it has id, amount
	// interlock: bad configuration: method "/interlock.test.v1.Bank/Upload": it is a stream with a rule, and the program never asked for the interceptor of its server's streams: Stream (with connect, Interceptor)
}

// Errors of a guard can be replaced; Status answers the others.
func ExampleRender() {
	locker, err := core.New(memstore.New()) // in production: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	const method = "/interlock.test.v1.Bank/Get"
	intercept := grpclock.Protect(
		grpclock.Rules{method: core.Serialize(locker, "tenant/{header.x-tenant}")}, nil,
		grpclock.Render(func(ctx context.Context, fullMethod string, refusal *core.Refusal) error {
			if refusal.Reason == reason.BadKey {
				return fmt.Errorf("%s: who are you?", fullMethod)
			}
			return grpclock.Status(ctx, fullMethod, refusal)
		})).Unary()
	call := func(ctx context.Context) {
		reply, err := intercept(ctx, &testpb.Request{}, &grpc.UnaryServerInfo{FullMethod: method},
			func(context.Context, any) (any, error) { return "done", nil })
		fmt.Println(reply, err)
	}
	call(context.Background())
	call(metadata.NewIncomingContext(context.Background(), metadata.Pairs("x-tenant", "acme")))
	// Output:
	// <nil> /interlock.test.v1.Bank/Get: who are you?
	// done <nil>
}
