package connectlock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/interlock-go/interlock/connectlock"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/grpclock"
)

// The proto of the service says which calls exclude each other, and registerBank stands for
// its generated code:
//
//	rpc Debit(Request) returns (Reply) {
//	  option (interlock.v1.serialize) = {key: "account/{id}" no_wait: true};
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
	protection := connectlock.Protect(rules, nil)
	server := connect.NewServer(protection.Interceptor())
	registerBank(server, func(ctx context.Context, req *dynamicpb.Message) (string, error) {
		return fmt.Sprintf("debited %s under the lock of %s", field(req, "id"), core.LeaseFromContext(ctx).Key()), nil
	}, nil)
	if err := protection.Validate(server); err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	connecthttp.Mount(mux, server)
	srv := httptest.NewServer(mux)
	defer srv.Close()

	transport := connecthttp.NewTransport(srv.Client(), srv.URL)
	client := connect.NewClient(transport, connectlock.UnaryClientIdempotencyKey(), connectlock.UnaryClientRetry())
	reply := message("Reply")
	err = client.CallUnary(context.Background(), bankSpec(debit), message("Request", "id", "42"), reply)
	fmt.Println(field(reply, "text"), err)
	err = client.CallUnary(context.Background(), bankSpec(debit), message("Request"), reply)
	fmt.Println(err)
	// Output:
	// debited 42 under the lock of account/42 <nil>
	// invalid_argument: The request does not name the resource to lock.
}

// The code of the package comment, and of the README, that stands in no Example.
func _(locker *core.Locker, store idempotency.Store, mux *http.ServeMux, authenticate connect.ServerInterceptor, bank any, bankv1connect struct {
	RegisterBankHandler                  func(server *connect.Server, bank any)
	BankDebitProcedure, BankPayProcedure string
},
) error {
	rules := grpclock.Rules{bankv1connect.BankDebitProcedure: core.Serialize(locker, "account/{account_id}")}
	protection := connectlock.Protect(rules, nil)
	server := connect.NewServer(authenticate, protection.Interceptor())
	bankv1connect.RegisterBankHandler(server, bank)
	var err error
	err = protection.Validate(server)
	connecthttp.Mount(mux, server)
	if err != nil {
		return err
	}

	type userKey struct{}
	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(userKey{})))
	if err != nil {
		return err
	}
	methods := grpclock.Methods{bankv1connect.BankPayProcedure: engine}
	{
		protection := connectlock.Protect(rules, methods)
		err = protection.Validate(server)
	}
	{
		server := connect.NewServer(connectlock.Protect(rules, nil).Interceptor())
		_ = server
	}
	return err
}
