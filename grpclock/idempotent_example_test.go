package grpclock_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
)

// userKey is where authentication leaves the user.
type userKey struct{}

// authenticate stands for yours.
func authenticate(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(context.WithValue(ctx, userKey{}, "alice"), req)
}

// house stands for the service that moves the money. It knows payments by their
// keys.
type house struct{}

var ledger house

func (house) Pay(_ context.Context, key string, amount int) error {
	fmt.Printf("paying %d with a key of %d characters\n", amount, len(key))
	return nil
}

// payments is the service.
type payments struct{ testpb.UnimplementedBankServer }

func (payments) Debit(ctx context.Context, _ *testpb.Request) (*testpb.Reply, error) {
	if err := idempotency.MarkEffect(ctx); err != nil {
		return nil, status.Error(codes.Unavailable, "not now")
	}
	err := ledger.Pay(ctx, idempotency.DownstreamKey(ctx), 100)
	if err != nil {
		return nil, status.Error(codes.Internal, "the bank has failed")
	}
	return &testpb.Reply{Text: "paid"}, nil
}

// A payment that is sent twice takes place once.
func ExampleMethods() {
	store := memstore.New() // in production: a redisstore
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())
	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(userKey{})))
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background()) // before the locker

	rules, err := grpclock.FromProto(locker)
	if err != nil {
		log.Fatal(err)
	}

	methods := grpclock.Methods{"/interlock.test.v1.Bank/Debit": engine}
	protection := grpclock.Protect(rules, methods) // the key first, and then the lock of the proto
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate, protection.Unary()), grpc.ChainStreamInterceptor(protection.Stream()))
	defer server.Stop()
	testpb.RegisterBankServer(server, payments{})
	err = protection.Validate(server)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(listener) //nolint:errcheck // ends with Stop

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := testpb.NewBankClient(conn)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "idempotency-key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
	for _, account := range []string{"42", "42", "43"} {
		var header metadata.MD
		reply, err := client.Debit(ctx, &testpb.Request{Id: account}, grpc.Header(&header))
		fmt.Println(reply.GetText(), header.Get("idempotent-replayed"), status.Code(err))
	}
	// Output:
	// paying 100 with a key of 36 characters
	// paid [] OK
	// paid [true] OK
	//  [] FailedPrecondition
}
