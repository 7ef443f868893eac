package grpclock

import (
	"net/textproto"

	"github.com/interlock-go/interlock/core/idempotency"
)

// GatewayHeader returns a header matcher for a grpc-gateway in front of idempotent methods
// (WithIncomingHeaderMatcher). It hands the HTTP header Idempotency-Key on as the metadata
// [IdempotencyKey], and asks next about all other fields. A gateway without it drops the
// header. See the package comment.
func GatewayHeader(next func(name string) (key string, ok bool)) func(name string) (key string, ok bool) {
	return func(name string) (string, bool) {
		if textproto.CanonicalMIMEHeaderKey(name) == idempotency.KeyHeader {
			return IdempotencyKey, true
		}
		return next(name)
	}
}
