package main

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/examples/grpc/bankpb"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// start runs the program and returns a client of it.
func start(t *testing.T, redisAddr string) bankpb.BankClient {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan net.Addr), make(chan struct{})
	go func() {
		defer close(done)
		serve(ctx, "127.0.0.1:0", redisAddr, func(a net.Addr) { ready <- a })
	}()
	t.Cleanup(func() { cancel(); <-done })
	conn, err := grpc.NewClient((<-ready).String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(grpclock.UnaryClientRetry()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return bankpb.NewBankClient(conn)
}

func TestTwoServersLoseNoDebit(t *testing.T) {
	addr := redistest.Shared(t).Addr()
	servers := []bankpb.BankClient{start(t, addr), start(t, addr)}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if _, err := servers[i%2].Debit(t.Context(), &bankpb.DebitRequest{AccountId: "alice", Amount: 1}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	reply, err := servers[0].Debit(t.Context(), &bankpb.DebitRequest{AccountId: "alice"})
	if err != nil || reply.GetBalance() != -100 {
		t.Errorf("%v, %v; want -100", reply, err)
	}
	if _, err := servers[0].Debit(t.Context(), &bankpb.DebitRequest{Amount: 1}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without an account: %v", err)
	}
}
