package grpclock_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

// failing is an error with details.
func failing(t testing.TB, code codes.Code, details ...protoadapt.MessageV1) error {
	t.Helper()
	st, err := status.New(code, "no").WithDetails(details...)
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

func TestOnlyRefusalsOfOursThatSaySoAreRetriedAfterTheHintAndARandomPartOfIt(t *testing.T) {
	of := func(domain, method string) *errdetails.ErrorInfo {
		return &errdetails.ErrorInfo{Domain: domain, Reason: "held", Metadata: map[string]string{"method": method}}
	}
	ours := of("interlock", "/a.B/C")
	retry := func(d time.Duration) *errdetails.RetryInfo {
		return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
	}
	for name, c := range map[string]struct {
		err   error
		opts  []grpclock.RetryOption
		tries int
		hint  time.Duration
	}{
		"ours":               {failing(t, codes.Aborted, ours, retry(time.Second)), nil, 8, time.Second},
		"other code":         {failing(t, codes.Unavailable, retry(time.Second), ours), nil, 8, time.Second},
		"wrapped":            {fmt.Errorf("wrapped: %w", failing(t, codes.Aborted, ours, retry(1))), nil, 8, 1},
		"no delay":           {failing(t, codes.Aborted, ours, retry(0)), nil, 8, 0},
		"negative delay":     {failing(t, codes.Aborted, ours, retry(-time.Hour)), nil, 8, 0},
		"endless delay":      {failing(t, codes.Aborted, ours, retry(1<<63-1)), []grpclock.RetryOption{grpclock.Tries(2)}, 2, 1 << 62},
		"Tries":              {failing(t, codes.Aborted, ours, retry(1)), []grpclock.RetryOption{grpclock.Tries(2)}, 2, 1},
		"Tries(0)":           {failing(t, codes.Aborted, ours, retry(1)), []grpclock.RetryOption{grpclock.Tries(0)}, 8, 1},
		"once":               {failing(t, codes.Aborted, ours, retry(1)), []grpclock.RetryOption{grpclock.Tries(1)}, 1, 0},
		"without RetryInfo":  {failing(t, codes.Aborted, ours), nil, 1, 0},
		"of another service": {failing(t, codes.Aborted, of("example.org", "/a.B/C"), retry(1)), nil, 1, 0},
		"of another method":  {failing(t, codes.Aborted, of("interlock", "/a.B/D"), retry(1)), nil, 1, 0},
		"of no method":       {failing(t, codes.Aborted, &errdetails.ErrorInfo{Domain: "interlock"}, retry(1)), nil, 1, 0},
		"of no known server": {failing(t, codes.Aborted, retry(1)), nil, 1, 0},
		"no status":          {errors.New("no"), nil, 1, 0},
		"success":            {nil, nil, 1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			tries, last := 0, time.Now()
			err := grpclock.UnaryClientRetry(c.opts...)(context.Background(), "/a.B/C", nil, nil, nil,
				func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
					pause := c.hint // doubled for each try before, up to 2 s
					for range tries - 1 {
						pause = max(c.hint, min(2*pause, 2*time.Second))
					}
					if d := time.Since(last); tries > 0 && (d < pause || d > 2*pause && 2*pause > 0) {
						t.Errorf("%s: try %d after %v; the hint is %v", name, tries+1, d, c.hint)
					}
					tries++
					last = time.Now()
					return c.err
				})
			if tries != c.tries || !errors.Is(err, c.err) {
				t.Errorf("%s: %d tries, %v; want %d", name, tries, err, c.tries)
			}
		})
	}
}

func TestRetriesStayWithinTheCallsDeadlineAndEndWithIt(t *testing.T) {
	info := &errdetails.ErrorInfo{Domain: "interlock", Metadata: map[string]string{"method": "/a.B/C"}}
	refused := failing(t, codes.Aborted, info, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	synctest.Test(t, func(t *testing.T) {
		begin, tries := time.Now(), 0
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		err := grpclock.UnaryClientRetry()(ctx, "/a.B/C", nil, nil, nil,
			func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				tries++
				return refused
			})
		// The second wait, and the first if chance makes it long, would end too late.
		if !errors.Is(err, refused) || ctx.Err() != nil || tries > 2 {
			t.Errorf("%v after %v and %d tries", err, time.Since(begin), tries)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := grpclock.UnaryClientRetry()(ctx, "/a.B/C", nil, nil, nil,
			func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				time.AfterFunc(time.Millisecond, cancel)
				return refused
			})
		if status.Code(err) != codes.Canceled {
			t.Errorf("%v; want CANCELED", err)
		}
	})
}

// A rule waits for 5 s by default, and a lock that is not renewed is free after 30 s.
func TestRetriesLastLongerThanTheWaitAndTheLeaseOfTheDefaults(t *testing.T) {
	info := &errdetails.ErrorInfo{Domain: "interlock", Metadata: map[string]string{"method": "/a.B/C"}}
	refused := failing(t, codes.Aborted, info, &errdetails.RetryInfo{RetryDelay: durationpb.New(100 * time.Millisecond)})
	for wait, least := range map[time.Duration]time.Duration{0: 5 * time.Second, 5 * time.Second: 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			_ = grpclock.UnaryClientRetry()(t.Context(), "/a.B/C", nil, nil, nil,
				func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
					time.Sleep(wait) // of the bubble
					return refused
				})
			if d := time.Since(begin); d < least {
				t.Errorf("gave up after %v where each try waits %v", d, wait)
			}
		})
	}
}

// refusing is a server that refuses its first n calls because of a held lock: it is taken
// before them and given back after them.
type refusing struct {
	server grpc.ServerOption
	calls  *atomic.Int32
	keys   *[]string // the metadata idempotency-key of each
}

func newRefusing(t testing.TB, n int32) refusing {
	t.Helper()
	locker := testkit.Locker(t)
	calls, keys := new(atomic.Int32), new([]string)
	lock := grpclock.Protect(annotated(t, locker), nil).Unary()
	return refusing{grpc.UnaryInterceptor(
		func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			*keys = append(*keys, md.Get("idempotency-key")...)
			if calls.Add(1) <= n {
				lease, err := locker.Lock(ctx, "account/1") // the call does not get its context
				if err != nil {
					return nil, err
				}
				defer func() { _ = lease.Release(ctx) }()
			}
			return lock(ctx, req, info, next)
		}), calls, keys}
}

func TestRefusedCallSucceedsWhenItIsTriedAgainWithTheSameIdempotencyKey(t *testing.T) {
	r := newRefusing(t, 2)
	client := testpb.NewBankClient(dial(t, start(t, bank{call: keyOf}, r.server),
		grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry())))
	if reply, err := client.Try(t.Context(), &testpb.Request{Id: "1"}); err != nil || reply.GetText() != "[account/1]" {
		t.Fatalf("%v, %v", reply, err)
	}
	if _, err := client.Try(t.Context(), &testpb.Request{Id: "1"}); err != nil {
		t.Fatal(err)
	}
	own := metadata.AppendToOutgoingContext(t.Context(), "Idempotency-Key", "mine")
	if _, err := client.Try(own, &testpb.Request{Id: "1"}); err != nil {
		t.Fatal(err)
	}
	k := *r.keys
	if len(k) != 5 || k[0] != k[1] || k[0] != k[2] || k[3] == k[0] || k[4] != "mine" {
		t.Errorf("%q; want one key three times, another, and the caller's", k)
	}
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for _, key := range k[:4] {
		if !uuid.MatchString(key) {
			t.Errorf("%q is no UUID", key)
		}
	}
}

// policy is a retry policy with a backoff.
func policy(backoff string) string {
	return `{"methodConfig": [{
		"name": [{"service": "interlock.test.v1.Bank"}],
		"retryPolicy": {
			"maxAttempts": 3, "initialBackoff": "` + backoff + `", "maxBackoff": "` + backoff + `", "backoffMultiplier": 1,
			"retryableStatusCodes": ["ABORTED"]
		}
	}]}`
}

// A server does not know when the lock will be free. A constant pause of its own would replace the
// growing one of the client, which then gives up too early.
func TestGRPCsOwnRetryPolicyKeepsItsBackoff(t *testing.T) {
	r := newRefusing(t, 2)
	client := testpb.NewBankClient(dial(t, start(t, bank{call: keyOf}, r.server),
		grpc.WithDefaultServiceConfig(policy("0.001s")), grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey())))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if reply, err := client.Try(ctx, &testpb.Request{Id: "1"}); err != nil || reply.GetText() != "[account/1]" {
		t.Fatalf("%v, %v", reply, err)
	}
	if n := r.calls.Load(); n != 3 {
		t.Errorf("%d tries; want 3", n)
	}
	if k := *r.keys; len(k) != 3 || k[0] != k[1] || k[0] != k[2] {
		t.Errorf("%q; want one key three times", k)
	}
	slow := newRefusing(t, 2)
	client = testpb.NewBankClient(dial(t, start(t, bank{call: keyOf}, slow.server), grpc.WithDefaultServiceConfig(policy("600s"))))
	ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := client.Try(ctx, &testpb.Request{Id: "1"}); status.Code(err) != codes.DeadlineExceeded || slow.calls.Load() > 1 {
		t.Errorf("%v after %d tries; want the policy to pause for 600 s after the first", err, slow.calls.Load())
	}
}

func TestNoClientTriesAgainAfterALostLease(t *testing.T) {
	store := memstore.New()
	locker := testkit.LockerOn(t, store)
	var calls atomic.Int32
	l := start(t, bank{call: func(ctx context.Context, _ string) (string, error) {
		calls.Add(1)
		testkit.Lose(ctx, t, store)
		return "", ctx.Err()
	}}, grpc.UnaryInterceptor(grpclock.Protect(annotated(t, locker), nil).Unary()))
	for name, opt := range map[string]grpc.DialOption{
		"service config": grpc.WithDefaultServiceConfig(policy("600s")),
		"interceptor":    grpc.WithChainUnaryInterceptor(grpclock.UnaryClientRetry()),
	} {
		calls.Store(0)
		lost.by(t.Context(), t, testpb.NewBankClient(dial(t, l, opt)).Debit, "1")
		if n := calls.Load(); n != 1 {
			t.Errorf("%s: %d tries; want 1", name, n)
		}
	}
}
