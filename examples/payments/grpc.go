package main

import (
	"cmp"
	"context"
	"errors"
	"net"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/examples/payments/paymentspb"
	"github.com/interlock-go/interlock/grpclock"
)

// grpcFrontend is the bank as a gRPC service. Its proto says which methods need
// which locks, and one interceptor takes them.
func grpcFrontend(ctx context.Context, addr string, s *service) (*frontend, error) {
	// All methods with the option interlock.v1.serialize. The proto does not say how
	// long they wait, because a flag sets that here.
	rules, err := grpclock.FromProto(s.locker, grpclock.RuleOptions(core.Wait(s.wait)))
	if err != nil {
		return nil, err
	}
	// Payments have no lock in the proto: it is taken once their key is claimed.
	once := grpclock.Methods{paymentspb.Payments_Pay_FullMethodName: s.payments}
	// From the outside in. The lock's interceptor is last: work that needs no lock is
	// done before the lock is taken, or after it is released.
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(
		s.traceCall,
		// A panic in a handler would end the process, the other front ends
		// with it: net/http catches those of its handlers, gRPC does not.
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(s.recovered)),
		s.admitCall,
		grpclock.Idempotent(once),
		s.answerCall, // behind it: what is stored is the status that the client gets
		grpclock.UnaryServerInterceptor(rules),
	))
	paymentspb.RegisterPaymentsServer(server, payments{s: s})
	reflection.Register(server) // for tools such as grpcurl
	// A rule whose field does not exist in the message fails here, at start-up, and
	// not at the first call.
	if err := cmp.Or(rules.Validate(server), once.Validate(server)); err != nil {
		return nil, err
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &frontend{
		name: "grpc",
		addr: listener.Addr(),
		serve: func() error {
			if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) {
				return err
			}
			return nil
		},
		drain: func(ctx context.Context) error {
			// GracefulStop waits for the calls under way without a limit of its
			// own; Stop cancels them, and makes it return.
			stop := context.AfterFunc(ctx, server.Stop)
			server.GracefulStop()
			// One that was never served does not know its listener.
			if err := ignoreClosed(listener.Close()); err != nil {
				return err
			}
			if !stop() {
				return context.Cause(ctx)
			}
			return nil
		},
	}, nil
}

// payments implements the service. Its methods run under the locks that the proto
// declares, and find their fencing tokens in the context. They return the bank's
// errors, which answerCall translates.
type payments struct {
	paymentspb.UnimplementedPaymentsServer
	s *service
}

func (p payments) PutAccount(ctx context.Context, r *paymentspb.PutAccountRequest) (*paymentspb.ChangedAccount, error) {
	return changedAccount(p.s.put(ctx, r.GetAccount(), r.GetBalance()))
}

func (p payments) GetAccount(ctx context.Context, r *paymentspb.GetAccountRequest) (*paymentspb.Account, error) {
	a, err := p.s.bank.Get(ctx, r.GetAccount())
	if err != nil {
		return nil, err
	}
	return account(a), nil
}

func (p payments) Debit(ctx context.Context, r *paymentspb.DebitRequest) (*paymentspb.ChangedAccount, error) {
	return changedAccount(p.s.debit(ctx, r.GetAccount(), r.GetAmount()))
}

func (p payments) Transfer(ctx context.Context, r *paymentspb.TransferRequest) (*paymentspb.TransferResponse, error) {
	m, err := p.s.move(ctx, r.GetFrom(), r.GetTo(), r.GetAmount())
	if err != nil {
		return nil, err
	}
	return &paymentspb.TransferResponse{From: account(m.From), To: account(m.To), Token: m.Token}, nil
}

func (p payments) Report(ctx context.Context, r *paymentspb.ReportRequest) (*paymentspb.ReportResponse, error) {
	s, err := p.s.report(ctx, r.GetFirst(), r.GetSecond())
	if err != nil {
		return nil, err
	}
	return &paymentspb.ReportResponse{First: account(s.First), Second: account(s.Second), Sum: s.Sum}, nil
}

func (p payments) Rate(ctx context.Context, r *paymentspb.RateRequest) (*paymentspb.Rating, error) {
	rated, err := p.s.rate(ctx, r.GetAccount())
	if err != nil {
		return nil, err
	}
	return &paymentspb.Rating{Account: rated.Account, Rating: rated.Rating}, nil
}

func (p payments) Pay(ctx context.Context, _ *paymentspb.PayRequest) (*paymentspb.Payment, error) {
	if ordered(ctx).behaviour.cookie {
		// There is no Connection in HTTP/2.
		_ = grpc.SetHeader(ctx, metadata.Pairs("set-cookie", "payment=made; HttpOnly"))
	}
	r, err := p.s.pay(ctx)
	if err != nil {
		return nil, err
	}
	return &paymentspb.Payment{PaymentId: r.ID, Account: r.Account, Amount: r.Amount, Balance: r.Balance, Padding: r.Padding}, nil
}

// account and changedAccount are answers as messages.

func account(a bank.Account) *paymentspb.Account {
	return &paymentspb.Account{Account: a.ID, Balance: a.Balance}
}

func changedAccount(c changed, err error) (*paymentspb.ChangedAccount, error) {
	if err != nil {
		return nil, err
	}
	return &paymentspb.ChangedAccount{Account: c.ID, Balance: c.Balance, Token: c.Token}, nil
}

// admitCall refuses invalid calls before they wait for a lock, as the checks of the
// REST routes do. It stores a payment's order in the context.
func (s *service) admitCall(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	err := checkCall(req)
	if r, ok := req.(*paymentspb.PayRequest); ok {
		md, _ := metadata.FromIncomingContext(ctx)
		o := &order{account: r.GetAccount(), amount: r.GetAmount()}
		err = s.admit(o, md.Get("authorization"), md.Get(behaviourHeader))
		ctx = o.in(ctx)
	}
	if err != nil {
		return nil, s.statusOf(ctx, info.FullMethod, err)
	}
	return handler(ctx, req)
}

// checkCall checks whether the bank accepts a request.
func checkCall(request any) error {
	switch r := request.(type) {
	case *paymentspb.PutAccountRequest:
		return cmp.Or(bank.CheckID(r.GetAccount()), bank.CheckBalance(r.GetBalance()))
	case *paymentspb.DebitRequest:
		return cmp.Or(bank.CheckID(r.GetAccount()), bank.CheckAmount(r.GetAmount()))
	case *paymentspb.TransferRequest:
		return cmp.Or(bank.CheckPair(r.GetFrom(), r.GetTo()), bank.CheckAmount(r.GetAmount()))
	case *paymentspb.ReportRequest:
		return bank.CheckPair(r.GetFirst(), r.GetSecond())
	case *paymentspb.RateRequest:
		return bank.CheckID(r.GetAccount())
	}
	return nil
}

// answerCall makes statuses from the bank's errors. It is outside the lock's
// interceptor, which must see the unchanged errors of handlers, and whose own errors
// are statuses already.
func (s *service) answerCall(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	reply, err := handler(ctx, req)
	if err != nil {
		return nil, s.statusOf(ctx, info.FullMethod, err)
	}
	return reply, nil
}

// statusOf returns the status of an error from any source.
func (s *service) statusOf(ctx context.Context, method string, err error) error {
	if _, ok := status.FromError(err); ok { // the lock's refusal
		return err
	}
	if errors.Is(err, context.Cause(ctx)) { // the client has gone, or its time is over
		return status.FromContextError(ctx.Err()).Err()
	}
	r, detail := refusalFor(err)
	if r.code == codes.Internal || r.code == codes.Unavailable {
		s.log.ErrorContext(ctx, "call failed", "method", method, "error", err)
	}
	// A client tells the two ABORTED apart by the domain of the ErrorInfo: with
	// the lock's RetryInfo nothing was done, and trying again is welcome.
	st := status.New(r.code, cmp.Or(detail, r.err.Error()))
	if detailed, err := st.WithDetails(&errdetails.ErrorInfo{Reason: r.reason, Domain: "payments.example"}); err == nil {
		st = detailed
	}
	return st.Err()
}

// recovered answers a call whose handler panicked; its locks are released.
func (s *service) recovered(ctx context.Context, p any) error {
	s.log.ErrorContext(ctx, "panic in a call", "panic", p)
	return status.Error(codes.Internal, internal.err.Error())
}

// traceCall is the span of a call, named by its method as in otelgrpc.
func (s *service) traceCall(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, end := s.telemetry.request(ctx, "grpc", info.FullMethod[1:])
	defer end()
	return handler(ctx, req)
}
