package main

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/interlock-go/interlock/examples/payments/bank"
)

// behaviourHeader controls the bank for one payment, if the program was started with
// -faults. Its value is a list of words, separated by commas. In gRPC it is metadata.
//
//	delay=800ms  wait before the payment is made
//	effect       make it even though the request is to fail
//	status=402   answer with this status; without effect, no payment is made
//	panic        panic; the same
//	large=2MiB   pad the answer of a payment by so much
//	cookie       set a cookie, and a header that Connection names
const behaviourHeader = "Bank-Behaviour"

// behaviour holds the parsed words. The zero value is a bank that works.
type behaviour struct {
	delay  time.Duration
	effect bool
	status int
	panic  bool
	large  int
	cookie bool
}

// maxLarge is far above the longest response that is stored.
const maxLarge = 64 << 20

func parseBehaviour(lines []string) (b behaviour, err error) {
	all := strings.TrimSpace(strings.Join(lines, ","))
	if all == "" {
		return b, nil
	}
	for word := range strings.SplitSeq(all, ",") {
		word = strings.TrimSpace(word)
		name, value, hasValue := strings.Cut(word, "=")
		ok := !hasValue
		switch name {
		case "delay":
			b.delay, err = time.ParseDuration(value)
			ok = err == nil && b.delay >= 0
		case "status":
			b.status, err = strconv.Atoi(value)
			_, known := simulatedCodes[b.status]
			ok = err == nil && known
		case "large":
			b.large, ok = parseSize(value)
		case "effect":
			b.effect = true
		case "panic":
			b.panic = true
		case "cookie":
			b.cookie = true
		default:
			ok = false
		}
		if !ok {
			return behaviour{}, fmt.Errorf("%w: %s has the unknown word %q", bank.ErrInvalid, behaviourHeader, word)
		}
	}
	return b, nil
}

// parseSize reads a number of B, KiB or MiB.
func parseSize(s string) (int, bool) {
	for _, unit := range []struct {
		suffix string
		bytes  int
	}{{"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}} {
		if digits, ok := strings.CutSuffix(s, unit.suffix); ok {
			n, err := strconv.ParseUint(digits, 10, 31)
			if err != nil || n > math.MaxInt32 || int(n) > maxLarge/unit.bytes {
				return 0, false
			}
			return int(n) * unit.bytes, true
		}
	}
	return 0, false
}

func (b behaviour) fails() bool { return b.status != 0 || b.panic }

// fail fails in the way that the header asks for.
func (b behaviour) fail() error {
	if b.panic {
		panic("the bank was asked to")
	}
	return simulatedError(b.status)
}

// simulatedError is a requested failure, by its HTTP status.
type simulatedError int

func (e simulatedError) Error() string { return "simulated: " + http.StatusText(int(e)) }

// simulatedCodes maps the statuses that can be requested to their gRPC codes.
var simulatedCodes = map[int]codes.Code{
	http.StatusBadRequest:          codes.InvalidArgument,
	http.StatusPaymentRequired:     codes.FailedPrecondition,
	http.StatusForbidden:           codes.PermissionDenied,
	http.StatusNotFound:            codes.NotFound,
	http.StatusConflict:            codes.Aborted,
	http.StatusTooManyRequests:     codes.ResourceExhausted,
	http.StatusInternalServerError: codes.Internal,
	http.StatusBadGateway:          codes.Unavailable,
	http.StatusServiceUnavailable:  codes.Unavailable,
	http.StatusGatewayTimeout:      codes.DeadlineExceeded,
}
