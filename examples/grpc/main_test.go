package main

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/examples/grpc/bankpb"
	"github.com/interlock-go/interlock/examples/internal/servicetest"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { servicetest.Main(m, main) }

// process is a service and a client of it.
type process struct {
	*servicetest.Process
	bank bankpb.BankClient
}

func start(t *testing.T, server *redistest.Server, args string) process {
	t.Helper()
	p := servicetest.Start(t, server.Addr(), args)
	conn, err := grpc.NewClient(p.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return process{p, bankpb.NewBankClient(conn)}
}

// debit calls as alice, with an idempotency key unless it is "", and tells the
// balance, the code, and whether the answer was stored.
func (p process) debit(account, key string, within time.Duration) (balance int64, code codes.Code, replayed bool) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer secret-of-alice")
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
	}
	var header metadata.MD
	reply, err := p.bank.Debit(ctx, &bankpb.DebitRequest{AccountId: account, Amount: 1}, grpc.Header(&header), grpc.UseCompressor(gzip.Name))
	return reply.GetBalance(), status.Code(err), len(header.Get("idempotent-replayed")) == 1
}

func (p process) want(account, key string, balance int64, code codes.Code, replayed bool) {
	p.Helper()
	if b, c, r := p.debit(account, key, time.Minute); b != balance || c != code || r != replayed {
		p.Errorf("account %q, key %q: %d, %v, replayed %v; want %d, %v, %v", account, key, b, c, r, balance, code, replayed)
	}
}

func TestWhatAClientMayAskFor(t *testing.T) {
	server := redistest.Shared(t)
	p := start(t, server, "")
	if _, err := p.bank.Debit(t.Context(), &bankpb.DebitRequest{AccountId: "1"}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
	p.want("", "", 0, codes.InvalidArgument, false)
	p.want("1", "k", -1, codes.OK, false)
	p.want("1", "k", -1, codes.OK, true)
	p.want("2", "k", 0, codes.FailedPrecondition, false)
	p.want("1", "", -2, codes.OK, false)
}

func TestTwoProcessesLoseNoDebit(t *testing.T) {
	server := redistest.Shared(t)
	p, q := start(t, server, ""), start(t, server, "")
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			// Aborted, the lock was not to be had in time, and Unavailable say that nothing was
			// done. If they were wrong, the balance would be.
			code := codes.Aborted
			for end := time.Now().Add(time.Minute); (code == codes.Aborted || code == codes.Unavailable) && time.Now().Before(end); {
				_, code, _ = []process{p, q}[i%2].debit("alice", "", time.Minute)
			}
			if code != codes.OK {
				t.Error(code)
			}
		})
	}
	wg.Wait()
	p.want("alice", "", -41, codes.OK, false)
}

func TestAKilledProcessLeavesItsLockForALeaseAndAnUnknownOutcome(t *testing.T) {
	server := redistest.Shared(t)
	p := start(t, server, "-work 1h -limit 1h -lease 2s")
	rdb := server.Client(t)
	dead := make(chan codes.Code, 1)
	go func() { _, code, _ := p.debit("1", "killed", time.Minute); dead <- code }()
	// The debit has its lock earlier. Killed between the two, it has no effect, and is
	// not unknown: the next attempt makes it.
	servicetest.Until(t, "the effect is marked", func() bool {
		records := rdb.Keys(t.Context(), "interlock:idem:*").Val()
		return len(records) == 1 && rdb.HGet(t.Context(), records[0], "m").Val() == "1"
	})
	p.Kill()
	if code := <-dead; code != codes.Unavailable {
		t.Errorf("the client of the killed process got %v", code)
	}
	p = start(t, server, "")
	servicetest.Until(t, "the lock has lapsed", func() bool { b, code, _ := p.debit("1", "", time.Minute); return b == -1 && code == codes.OK })
	servicetest.Until(t, "the claim has lapsed", func() bool { _, code, _ := p.debit("1", "killed", time.Minute); return code == codes.DataLoss })
}

func TestASlowDebitIsMadeOnceAndItsRetryGetsTheAnswer(t *testing.T) {
	server := redistest.Shared(t)
	p := start(t, server, "-work 10s")
	if _, code, _ := p.debit("1", "slow", 4*time.Second); code != codes.DeadlineExceeded {
		t.Errorf("within four seconds: %v", code)
	}
	p.want("1", "slow", 0, codes.Aborted, false) // in flight
	servicetest.Until(t, "the debit is over", func() bool { _, code, _ := p.debit("1", "slow", time.Minute); return code == codes.OK })
	p.want("1", "slow", -1, codes.OK, true)
}

func TestAProcessThatIsToldToEndStoresWhatIsUnderWay(t *testing.T) {
	server := redistest.Shared(t)
	p := start(t, server, "-work 6s")
	rdb := server.Client(t)
	left := make(chan struct{})
	go func() { defer close(left); p.debit("1", "last", 4*time.Second) }()
	servicetest.Until(t, "the debit is under its lock", func() bool { return rdb.Exists(t.Context(), "interlock:{account/1}").Val() == 1 })
	p.Stop()
	<-left
	p = start(t, server, "")
	p.want("1", "last", -1, codes.OK, true)
}
