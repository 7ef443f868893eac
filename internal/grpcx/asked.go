package grpcx

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/asked"
	"github.com/interlock-go/interlock/internal/uuid"
)

// LostPause is the first pause after a call without an answer.
const LostPause = 100 * time.Millisecond

// Calling is a call of a client on its way.
type Calling struct {
	ctx    context.Context // of the handler that calls
	Method string
	Key    string // empty: the call has none, and errors stay as they are
	Tries  int
	Known  asked.Request
}

// freshKey is the key of a context with the idempotency key that WithKey has just made, or "".
type freshKey struct{}

// WithKey finds the key of a call, or makes one. key is as metadata has it, and the context
// knows whether it was made now. done ends the call.
func WithKey(ctx context.Context, method string) (keyed context.Context, key string, done func(), err error) {
	key, found, done, err := idempotency.CallKey(ctx, method)
	fresh := ""
	if err == nil && !found {
		key = uuid.New()
		fresh = key
	}
	if err == nil {
		key, err = asked.Quoted(key)
	}
	if err != nil {
		done()
		return ctx, "", nil, fmt.Errorf("interlock: the call was not sent: %w", err)
	}
	return context.WithValue(ctx, freshKey{}, fresh), key, done, nil
}

// TakesKey reports whether a method gets a key from a client: it is in methods, or methods is
// empty, and it does not declare NO_SIDE_EFFECTS.
func TakesKey(methods []string, method string) bool {
	if len(methods) > 0 {
		return slices.Contains(methods, method)
	}
	desc := FindMethod(protoregistry.GlobalFiles, method)
	if desc == nil {
		return true
	}
	o, ok := desc.Options().(*descriptorpb.MethodOptions)
	return !ok || o.GetIdempotencyLevel() != descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

// NewCalling returns a call with its message, if it is known, and the metadata that is sent.
func NewCalling(ctx context.Context, method string, msg any, md metadata.MD) *Calling {
	c := &Calling{ctx: ctx, Method: method, Key: RequestID(msg)}
	if values := md.Get(idempotency.KeyHeader); c.Key == "" && len(values) > 0 {
		key, err := endpoint.ParseKey(values)
		if err != nil { // the server names the mistake
			key = values[0]
		}
		c.Key = key
	}
	c.Known = asked.New(ctx.Value(freshKey{}) != c.Key)
	return c
}

// Lost notes a try with an unknown outcome.
func (c *Calling) Lost() { c.Known.After(asked.Answer{Kind: asked.Unanswered}) }

// After counts a try, and translates its outcome.
func (c *Calling) After(err error, md metadata.MD, sent bool) (asked.Answer, error) {
	c.Tries++
	a := Meaning(c.Method, err, md, sent)
	if a.Reason == reason.HeldByCaller {
		adapter.NoteStuck(c.ctx)
	}
	return a, err
}

// Result returns the error of the call.
func (c *Calling) Result(step asked.Step, err error, pause time.Duration) error {
	var inner *idempotency.RequestError // of a later interceptor
	if c.Key == "" || err == nil || step.Err == nil || errors.As(err, &inner) {
		return err
	}
	return &idempotency.RequestError{Key: c.Key, Tries: c.Tries, Reason: c.Known.Reason(), RetryAfter: max(pause, LostPause), Err: fmt.Errorf("%w: %w", step.Err, err)}
}

// Meaning translates a client's result of a call. md is the metadata of the response, header and
// trailer. sent says that the call may have reached a server.
func Meaning(method string, err error, md metadata.MD, sent bool) asked.Answer {
	if err == nil {
		return asked.Answer{Kind: asked.Success}
	}
	st, _ := status.FromError(err)
	var a asked.Answer
	if info := refusalOf(method, st); info != nil {
		a.Kind, a.Reason, a.Ran = asked.Refused, reason.Reason(info.GetReason()), info.GetMetadata()[RanKey] == "true"
		return a
	}
	replayed := md.Get(idempotency.ReplayedHeader)
	own := len(replayed) > 0 || len(md.Get(idempotency.ResultHeader)) > 0
	switch st.Code() {
	case codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.Unavailable:
		switch {
		case len(replayed) > 0:
			a.Kind = asked.FailedForGood
		case own:
			a.Kind = asked.Failed
		case sent && !isDial(err):
			a.Kind = asked.Unanswered
		default:
			a.Kind = asked.Unsent
		}
	case codes.ResourceExhausted, codes.Aborted, codes.Unauthenticated:
		a.Kind = asked.Foreign
		if own {
			a.Kind = asked.NotNow
		}
	default:
		a.Kind = asked.Foreign
		if own {
			a.Kind = asked.Stored
		}
	}
	return a
}

// isDial reports whether there was no connection, where an error shows it.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// RequestID returns the field request_id of a message (AIP-155), which is its key, or "".
func RequestID(msg any) string {
	m, ok := msg.(proto.Message)
	if !ok {
		return ""
	}
	f := m.ProtoReflect().Descriptor().Fields().ByName("request_id")
	if f == nil || f.Kind() != protoreflect.StringKind || f.IsList() {
		return ""
	}
	return m.ProtoReflect().Get(f).String()
}

// refusalOf returns the details of a refusal of this module for the method, or nil.
func refusalOf(method string, st *status.Status) *errdetails.ErrorInfo {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain && info.GetMetadata()[MethodKey] == method {
			return info
		}
	}
	return nil
}
