package grpclock

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/asked"
	"github.com/interlock-go/interlock/internal/grpcx"
)

// IdempotencyKey is the name of the metadata that identifies a logical call. Its
// value is the same in all tries of the call.
const IdempotencyKey = "idempotency-key"

// RetryOption configures [UnaryClientRetry].
type RetryOption func(*retryOptions)

type retryOptions struct {
	tries     int // 0: the default
	lost      bool
	hideHeld  bool
	retryHeld bool
	fences    bool
}

// HideHeld keeps the metadata [core.HeldHeader] from calls: to servers of others, it says how
// many locks the caller holds. Default: it is sent under a lock.
func HideHeld() RetryOption { return func(o *retryOptions) { o.hideHeld = true } }

// SendFences sends the keys and fencing tokens of the locks that the caller holds as the
// metadata [core.FencesHeader], for services inside with a rule of [core.Fenced]: the keys are
// in plain text. A call with more than fits into it is not sent (INTERNAL). Default: no tokens
// are sent.
func SendFences() RetryOption { return func(o *retryOptions) { o.fences = true } }

// RetryHeld sends a call again also if the lock that it needs is held, or all of its permits are,
// while the caller itself holds a lock. Default: such a call is sent once. All who wait for the lock of the
// caller would wait for each further try.
func RetryHeld() RetryOption { return func(o *retryOptions) { o.retryHeld = true } }

// Tries limits how often the client sends a call, the first time included. Default,
// and if n is below 1: 8. The deadline of the call limits all tries together.
//
// The default fits the defaults of the server, which asks for pauses of 1 s: the pauses between
// eight tries are at least 13 s in total. So a call that is
// refused at once (a full queue) continues for longer than the 5 s for which a rule waits by
// default. If each try waits these 5 s, eight tries last longer than the default lease of
// 30 s, after which the lock of a crashed process is free. By default the tries of a call with
// a key that is in flight do not count for 35 s: the claim of a crashed process lasts 30 s.
func Tries(n int) RetryOption {
	return func(o *retryOptions) {
		if n >= 1 {
			o.tries = n
		}
	}
}

// RetryUnanswered makes the client also send a call again that has an idempotency key and had no
// answer, or an answer that does not settle it ([idempotency.RequestError]). Use it on a
// connection all methods of which are idempotent, or declare NO_SIDE_EFFECTS: the server carries
// out any other method once more. The first pause is 100 ms. Default: off.
func RetryUnanswered() RetryOption {
	return func(o *retryOptions) { o.lost = true }
}

// UnaryClientRetry returns an interceptor that sends a call again if the server
// refused it with RetryInfo: the handler did not run. It retries no other error,
// with no code, and no refusal of another method: a server that returns the
// refusal of a further server may have had an effect before. [RetryUnanswered] changes that.
//
// The first pause is as long as the server asks. Each further pause is twice as
// long as the one before, up to 2 s, but never shorter than the server asks. The
// interceptor adds a random time of up to the same length, so that calls that were
// refused together do not return together. If the call's deadline would pass during
// the pause, the interceptor returns the last error at once. If the call's context
// ends during the pause, it returns the status of that end (CANCELED or
// DEADLINE_EXCEEDED). It is safe for concurrent use.
//
// If the call has an idempotency key and may have been carried out, the error is an
// [idempotency.RequestError], as with [UnaryClientIdempotencyKey].
//
// A call under a lock says so by the metadata [core.HeldHeader]. A server that needs a lock
// which the caller holds refuses it at once (ABORTED), and the interceptor does not send it
// again. [StreamClientHeld] does the same for streams.
//
// A retry policy in the service config has its own backoff, and is ended by the trailer
// grpc-retry-pushback-ms with -1, where a handler ran or no try can succeed. Use only one or the
// other, or their tries multiply.
func UnaryClientRetry(opts ...RetryOption) grpc.UnaryClientInterceptor {
	var o retryOptions
	for _, opt := range opts {
		opt(&o)
	}
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		md, _ := metadata.FromOutgoingContext(ctx)
		ctx, held, err := o.told(ctx, md)
		if err != nil {
			return err
		}
		c := grpcx.NewCalling(ctx, method, req, md)
		patience := asked.NewPatience(o.tries)
		for {
			a, err := try(c, cc, func(opts ...grpc.CallOption) error { return invoker(ctx, method, req, reply, cc, opts...) }, opts)
			step := c.Known.After(a)
			delay, why, ok := hint(method, err)
			if ok && asked.InTheWay(why) && held != "" && !o.retryHeld {
				return c.Result(step, err, delay)
			}
			if !ok && o.lost && c.Key != "" && step.Again {
				delay, ok = grpcx.LostPause, true
			}
			if err == nil || !patience.Left(a) || !ok {
				return c.Result(step, err, delay)
			}
			delay = grown(delay, c.Tries)
			delay += rand.N(max(delay, 1))
			if end, ok := ctx.Deadline(); ok && time.Until(end) <= delay {
				return c.Result(step, err, delay)
			}
			timer := time.NewTimer(delay)
			select {
			case <-ctx.Done():
				timer.Stop()
				return c.Result(step, status.FromContextError(ctx.Err()).Err(), delay)
			case <-timer.C:
			}
		}
	}
}

// StreamClientHeld returns an interceptor that sends the metadata of [UnaryClientRetry] with
// streams: which locks the callers hold ([core.HeldHeader], [HideHeld]) and, with [SendFences], the
// fencing tokens. It never begins a stream again, so other options have no effect. The interceptor is
// safe for concurrent use.
func StreamClientHeld(opts ...RetryOption) grpc.StreamClientInterceptor {
	var o retryOptions
	for _, opt := range opts {
		opt(&o)
	}
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		md, _ := metadata.FromOutgoingContext(ctx)
		ctx, _, err := o.told(ctx, md)
		if err != nil {
			return nil, err
		}
		return streamer(ctx, desc, cc, method, opts...)
	}
}

// told adds to the metadata of a call, which is md so far, which locks its callers hold. held is
// empty if they hold none.
func (o *retryOptions) told(ctx context.Context, md metadata.MD) (told context.Context, held string, err error) {
	held = core.HeldFor(grpcx.WithHeld(ctx))
	if held != "" && !o.hideHeld && len(md.Get(core.HeldHeader)) == 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, core.HeldHeader, held)
	}
	if o.fences {
		fences, err := core.FencesFor(ctx)
		if err != nil {
			return ctx, held, status.Errorf(codes.Internal, "The call was not sent: %v", err)
		}
		ctx = grpcx.WithFences(ctx, md, fences)
	}
	return ctx, held, nil
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

// hint returns the pause that a refusal of the method asks for and the reason, and false if
// err is no such refusal.
func hint(method string, err error) (delay time.Duration, why reason.Reason, ok bool) {
	st, _ := status.FromError(err)
	ours := false
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			why = reason.Reason(d.GetReason())
			ours = ours || d.GetDomain() == Domain && d.GetMetadata()[grpcx.MethodKey] == method
		case *errdetails.RetryInfo:
			// Half of the range of a Duration leaves room for the random part.
			delay, ok = min(max(d.GetRetryDelay().AsDuration(), 0), math.MaxInt64/2), true
		}
	}
	return delay, why, ok && ours
}

// UnaryClientIdempotencyKey returns an interceptor that gives calls the metadata
// idempotency-key, unless they have it. methods are the full methods that get a key
// ("/bank.v1.Bank/Pay"); without any it is every method that does not declare NO_SIDE_EFFECTS.
// Name them on a connection with other methods, or reads get keys too, and a handler that makes
// two equal reads at once gets [idempotency.ErrUnnamedCall]. The interceptor is safe for
// concurrent use. Put it before the interceptor that retries; otherwise each try has another
// key:
//
//	grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry())
//
// A retry policy in the service config works below both. It hides its tries, and a try may have
// had no answer: an error without a mark then leaves the outcome unknown.
//
// The key is the key of the context ([idempotency.WithKey]), or inside the handler of an
// idempotent method a key that is derived from the handler's call ([idempotency.CallKey], with
// the full method as the target), or else a new UUID (RFC 9562, version 7). A loop around the
// client that repeats a call makes a new key for each turn, and so may pay in each: it gives the
// key of the error.
//
// If the call may have been carried out, the error is an [idempotency.RequestError]: it has the
// key, matches [idempotency.ErrOutcomeUnknown], and status.FromError finds the status in it. Any
// other error is as the server sent it: the call was answered or refused, and nothing is
// unknown. After a call without an answer, and with a key that may have been sent before, only a
// success, a marked answer ([idempotency.ResultHeader]) or a refusal that tells the outcome of
// the key settles the call.
func UnaryClientIdempotencyKey(methods ...string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if !grpcx.TakesKey(methods, method) {
			return invoker(ctx, method, req, reply, cc, opts...)
		}
		if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(IdempotencyKey)) == 0 && grpcx.RequestID(req) == "" {
			keyed, key, done, err := grpcx.WithKey(ctx, method)
			if err != nil {
				return err
			}
			defer done()
			ctx = metadata.AppendToOutgoingContext(keyed, IdempotencyKey, key)
		}
		md, _ := metadata.FromOutgoingContext(ctx)
		c := grpcx.NewCalling(ctx, method, req, md)
		a, err := try(c, cc, func(opts ...grpc.CallOption) error { return invoker(ctx, method, req, reply, cc, opts...) }, opts)
		return c.Result(c.Known.After(a), err, grpcx.LostPause)
	}
}

// try makes one try of a call.
func try(c *grpcx.Calling, cc *grpc.ClientConn, invoke func(...grpc.CallOption) error, opts []grpc.CallOption) (asked.Answer, error) {
	if c.Key == "" {
		return c.After(invoke(opts...), nil, true)
	}
	var header, trailer metadata.MD
	var server peer.Peer
	// The options of the caller keep their place and see the same.
	err := invoke(append(slices.Clip(opts), grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&server))...)
	sent := cc == nil || server.Addr != nil
	if cc != nil && err != nil && cc.GetMethodConfig(c.Method).RetryPolicy != nil {
		c.Lost() // a try of the policy, perhaps
	}
	return c.After(err, metadata.Join(header, trailer), sent)
}
