package grpclock

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/internal/grpcx"
	"github.com/interlock-go/interlock/internal/uuid"
)

// IdempotencyKey is the name of the metadata that identifies a logical call. Its
// value is the same in all tries of the call.
const IdempotencyKey = "idempotency-key"

// RetryOption configures [UnaryClientRetry].
type RetryOption func(*retryOptions)

type retryOptions struct{ tries int }

// Tries limits how often the client sends a call, the first time included. Default,
// and if n is below 1: 8. The deadline of the call limits all tries together.
//
// The default fits the defaults of the server. If the server asks for pauses of
// 100 ms, the pauses between eight tries are at least 7 s in total. So a call that is
// refused at once (a full queue, a key that is in flight) continues for longer than
// the 5 s for which a rule waits by default. If each try waits these 5 s, eight tries
// last longer than the default lease of 30 s, after which the lock of a crashed
// process is free.
func Tries(n int) RetryOption {
	return func(o *retryOptions) {
		if n >= 1 {
			o.tries = n
		}
	}
}

// UnaryClientRetry returns an interceptor that sends a call again if the server
// refused it with RetryInfo: the handler did not run. It retries no other error,
// with no code, and no refusal of another method: a server that returns the
// refusal of a further server may have had an effect before.
//
// The first pause is as long as the server asks. Each further pause is twice as
// long as the one before, up to 2 s, but never shorter than the server asks. The
// interceptor adds a random time of up to the same length, so that calls that were
// refused together do not return together. If the call's deadline would pass during
// the pause, the interceptor returns the last error at once. If the call's context
// ends during the pause, it returns the status of that end (CANCELED or
// DEADLINE_EXCEEDED). It is safe for concurrent use.
//
// A retry policy in the service config obeys the same hint by the trailer
// grpc-retry-pushback-ms. Use only one or the other, or their tries multiply.
func UnaryClientRetry(opts ...RetryOption) grpc.UnaryClientInterceptor {
	o := retryOptions{tries: 8}
	for _, opt := range opts {
		opt(&o)
	}
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		for try := 1; ; try++ {
			err := invoker(ctx, method, req, reply, cc, opts...)
			if err == nil || try == o.tries {
				return err
			}
			delay, ok := hint(method, err)
			if !ok {
				return err
			}
			delay = grown(delay, try)
			delay += rand.N(max(delay, 1))
			if end, ok := ctx.Deadline(); ok && time.Until(end) <= delay {
				return err
			}
			timer := time.NewTimer(delay)
			select {
			case <-ctx.Done():
				timer.Stop()
				return status.FromContextError(ctx.Err()).Err()
			case <-timer.C:
			}
		}
	}
}

// maxPause is the greatest pause that growth alone can reach, without the random
// part.
const maxPause = 2 * time.Second

// grown returns the pause after a number of tries if the server asks for delay.
func grown(delay time.Duration, tries int) time.Duration {
	pause := delay
	for ; tries > 1 && pause < maxPause; tries-- {
		pause *= 2
	}
	return max(delay, min(pause, maxPause))
}

// hint returns the pause that a refusal of the method asks for, and false if err is
// no such refusal.
func hint(method string, err error) (delay time.Duration, ok bool) {
	st, _ := status.FromError(err)
	ours := false
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			ours = ours || d.GetDomain() == Domain && d.GetMetadata()[grpcx.MethodKey] == method
		case *errdetails.RetryInfo:
			// Half of the range of a Duration leaves room for the random part.
			delay, ok = min(max(d.GetRetryDelay().AsDuration(), 0), math.MaxInt64/2), true
		}
	}
	return delay, ok && ours
}

// UnaryClientIdempotencyKey returns an interceptor that adds the metadata
// idempotency-key, with a new UUID (RFC 9562, version 7), to every call that has
// none. It is safe for concurrent use. Put it before the interceptor that retries;
// otherwise each try has another key:
//
//	grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry())
//
// A retry policy in the service config works below both.
func UnaryClientIdempotencyKey() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(IdempotencyKey)) == 0 {
			ctx = metadata.AppendToOutgoingContext(ctx, IdempotencyKey, uuid.New())
		}
		return invoker(ctx, method, req, reply, cc, opts...)
	}
}
