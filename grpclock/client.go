package grpclock

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	randv2 "math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/internal/grpcx"
)

// IdempotencyKey is the metadata that names a logical call, the same over all
// its tries.
const IdempotencyKey = "idempotency-key"

// RetryOption changes how a client tries again.
type RetryOption func(*retryOptions)

type retryOptions struct{ tries int }

// Tries bounds how often a call is sent, the first time included. Default, and
// for anything below 1: 8. Where the server asks for 100 ms, the pauses between
// eight tries are 7 s at least: a call that is refused at once (a full queue, a
// key that is in flight) goes on for longer than the 5 s for which a rule waits
// by default. Where each try waits these 5 s, eight outlast the default lease of
// 30 s, after which the lock of a crashed process is free. The deadline of the
// call bounds them all.
func Tries(n int) RetryOption {
	return func(o *retryOptions) {
		if n >= 1 {
			o.tries = n
		}
	}
}

// UnaryClientRetry sends a call again that a guard refused and that carries
// RetryInfo: its handler did not run. Nothing else is retried, whatever its code,
// and no refusal of another method: a server that hands on what it got from the
// next one may have had an effect before. The first pause is as long as the server
// asks, each further one twice as long as the last up to 2 s; a random part of it
// is added, so that calls that were refused together do not come back together.
// When the call's deadline would be over by then, the last error is returned.
//
// A retry policy in the service config obeys the same hint by the trailer
// grpc-retry-pushback-ms. Use one of the two, or their tries multiply.
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
			delay += randv2.N(max(delay, 1))
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

// maxPause is up to where the pauses between tries grow, without their random
// part.
const maxPause = 2 * time.Second

// grown is the pause after a number of tries, where the server asks for delay.
func grown(delay time.Duration, tries int) time.Duration {
	pause := delay
	for ; tries > 1 && pause < maxPause; tries-- {
		pause *= 2
	}
	return max(delay, min(pause, maxPause))
}

// hint returns after how long a guard's refusal of the method may be tried again.
func hint(method string, err error) (delay time.Duration, ok bool) {
	st, _ := status.FromError(err)
	ours := false
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			ours = ours || d.GetDomain() == Domain && d.GetMetadata()[grpcx.MethodKey] == method
		case *errdetails.RetryInfo:
			// Half of all time leaves room for the random part.
			delay, ok = min(max(d.GetRetryDelay().AsDuration(), 0), math.MaxInt64/2), true
		}
	}
	return delay, ok && ours
}

// UnaryClientIdempotencyKey gives every call that has no metadata
// idempotency-key one of its own, a random UUID. It stands before what retries,
// or each try has another key:
//
//	grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry())
//
// A retry policy in the service config works below both.
func UnaryClientIdempotencyKey() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(IdempotencyKey)) == 0 {
			ctx = metadata.AppendToOutgoingContext(ctx, IdempotencyKey, newUUID())
		}
		return invoker(ctx, method, req, reply, cc, opts...)
	}
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
