package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// payment is a request to POST /payments.
type payment struct {
	protocol string
	scope    string
	keys     []string
	path     string
	query    string
	body     string
}

func pay(key string) payment {
	return payment{idempotency.HTTP, "alice", []string{key}, "/payments", "", `{"amount":1}`}
}

func (p payment) Protocol() string                { return p.protocol }
func (p payment) Key() []string                   { return p.keys }
func (p payment) Target() (string, string, string) { return "POST", p.path, p.query }
func (p payment) Route() (string, bool)           { return "POST /payments", true }
func (p payment) Param(string) (string, error)    { return "", core.ErrNoParam }
func (p payment) Header(string) []string          { return []string{p.scope} }
func (p payment) Query(string) []string           { return nil }
func (p payment) Native() any                     { return p }

func (p payment) Body(limit int64) ([]byte, error) {
	if int64(len(p.body)) > limit {
		return nil, core.ErrBodyLimit
	}
	return []byte(p.body), nil
}

// principal is the scope of payments.
func principal(_ context.Context, req core.Request) (string, error) {
	return req.Header("Authorization")[0], nil
}

func newEngine(tb testing.TB, store idempotency.Store, opts ...idempotency.Option) *idempotency.Engine {
	tb.Helper()
	e, err := idempotency.New(store, append([]idempotency.Option{idempotency.Scope(principal)}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			tb.Errorf("closing the engine: %v", err)
		}
	})
	return e
}

func newStore(tb testing.TB, rdb redis.UniversalClient, opts ...redisstore.Option) *redisstore.Store {
	tb.Helper()
	s, err := redisstore.New(rdb, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("closing the store: %v", err)
		}
	})
	return s
}

// bank counts effects, and answers with how many there were.
type bank struct{ effects atomic.Int64 }

func (b *bank) run(context.Context, *idempotency.Attempt) (idempotency.Response, bool) {
	n := b.effects.Add(1)
	return idempotency.Response{
		Status: http.StatusCreated, Header: map[string][]string{"X-N": {fmt.Sprint(n)}}, Body: fmt.Appendf(nil, "payment %d", n),
	}, true
}

type runFunc func(context.Context, *idempotency.Attempt) (idempotency.Response, bool)

// result is what a client would see.
type result struct {
	status   int // of the answer, whoever gave it
	body     string
	replayed bool
	reason   core.Reason
	ran      bool
}

func do(ctx context.Context, e *idempotency.Engine, p payment, run runFunc) result {
	var own idempotency.Response
	v := e.Do(ctx, p, idempotency.Handler{
		Run: func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
			r, answered := run(ctx, a)
			own = r
			return r, answered
		},
		Pass: func(ctx context.Context) bool {
			own, _ = run(ctx, nil)
			return true
		},
	})
	switch {
	case v.Refusal != nil:
		return result{reason: v.Refusal.Reason, ran: v.Refusal.Ran}
	case v.Replay != nil:
		return result{status: v.Replay.Status, body: string(v.Replay.Body), replayed: true}
	}
	return result{status: own.Status, body: string(own.Body)}
}

func want(t *testing.T, what string, got, want result) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

func fresh(n int) result { return result{status: 201, body: fmt.Sprint("payment ", n)} }

func replayed(n int) result { return result{status: 201, body: fmt.Sprint("payment ", n), replayed: true} }

func refused(r core.Reason) result { return result{reason: r} }

func TestAPaymentSentAgainIsReplayed(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	a, b := newEngine(t, newStore(t, rdb)), newEngine(t, newStore(t, rdb))
	var bank bank
	want(t, "first", do(t.Context(), a, pay("k"), bank.run), fresh(1))
	want(t, "again", do(t.Context(), a, pay("k"), bank.run), replayed(1))
	want(t, "in another process", do(t.Context(), b, pay(`"k"`), bank.run), replayed(1))
	want(t, "another key", do(t.Context(), b, pay("l"), bank.run), fresh(2))

	for name, other := range map[string]func(p *payment){
		"other body":     func(p *payment) { p.body = `{"amount":2}` },
		"other path":     func(p *payment) { p.path = "/payments/" },
		"other query":    func(p *payment) { p.query = "dry=1" },
		"other protocol": func(p *payment) { p.protocol = idempotency.GRPC },
	} {
		p := pay("k")
		other(&p)
		want(t, name, do(t.Context(), b, p, bank.run), refused(core.ReasonKeyReused))
	}
	bob := pay("k")
	bob.scope = "bob"
	want(t, "other principal", do(t.Context(), b, bob, bank.run), fresh(3))
	x, y := pay("bc"), pay("c")
	x.scope, y.scope = "a", "ab"
	want(t, `("a","bc")`, do(t.Context(), a, x, bank.run), fresh(4))
	want(t, `("ab","c")`, do(t.Context(), a, y, bank.run), fresh(5))

	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		if !strings.HasPrefix(key, "interlock:idem:{") || len(key) != len("interlock:idem:{}")+43 {
			t.Errorf("the store has a key %q", key)
		}
		if ttl := rdb.TTL(t.Context(), key).Val(); ttl < 23*time.Hour {
			t.Errorf("a record is kept for %v", ttl)
		}
	}
}

// trips is how many scripts the server ran, and in how many writes they came.
func trips(tb testing.TB, srv *redistest.Server) int64 {
	tb.Helper()
	calls := srv.Calls(tb)
	if calls["eval"] != 0 {
		tb.Errorf("sources were sent: %v", calls)
	}
	return calls["evalsha"]
}

func TestRoundTripsAreAsFewAsPromised(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	e := newEngine(t, newStore(t, rdb))
	var bank bank
	do(t.Context(), e, pay("warm"), bank.run)
	count := func(what string, n int64, f func()) {
		t.Helper()
		srv.ResetStats(t)
		f()
		if got := trips(t, srv); got != n {
			t.Errorf("%s: %d round trips, want %d", what, got, n)
		}
	}
	marking := func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
		if err := idempotency.MarkEffect(ctx); err != nil {
			t.Error(err)
		}
		if err := idempotency.MarkEffect(ctx); err != nil { // costs nothing
			t.Error(err)
		}
		return bank.run(ctx, a)
	}
	count("fresh", 2, func() { do(t.Context(), e, pay("k"), bank.run) })
	count("replay", 1, func() { want(t, "replay", do(t.Context(), e, pay("k"), bank.run), replayed(2)) })
	count("mismatch", 1, func() {
		p := pay("k")
		p.body = ""
		want(t, "mismatch", do(t.Context(), e, p, bank.run), refused(core.ReasonKeyReused))
	})
	count("marked", 3, func() { do(t.Context(), e, pay("m"), marking) })
	failing := func(context.Context, *idempotency.Attempt) (idempotency.Response, bool) {
		return idempotency.Response{Status: 500}, true
	}
	count("released", 2, func() { do(t.Context(), e, pay("f"), failing) })
	var inside result
	count("fresh with a conflict inside", 3, func() {
		do(t.Context(), e, pay("c"), func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
			inside = do(t.Context(), e, pay("c"), bank.run)
			return bank.run(ctx, a)
		})
	})
	want(t, "conflict", inside, refused(core.ReasonInFlight))
}

func TestUnderALockCommitAndReleaseGoTogether(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	store := newStore(t, rdb)
	locker, err := core.New(store)
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(context.Background()) //nolint:errcheck // end of the test
	e := newEngine(t, store, idempotency.Under(core.Serialize(locker, "payments")))
	var bank bank
	do(t.Context(), e, pay("warm"), bank.run)
	for range 20 { // each time, not only when the scheduler is kind
		key := fmt.Sprint("k", bank.effects.Load())
		srv.ResetStats(t)
		before := srv.Stat(t, "total_reads_processed")
		do(t.Context(), e, pay(key), func(ctx context.Context, a *idempotency.Attempt) (idempotency.Response, bool) {
			if core.LeaseFromContext(ctx) == nil {
				t.Error("the handler runs without the lock")
			}
			return bank.run(ctx, a)
		})
		// Scripts: claim, lock, commit, release. Reads: one for each pipeline, and
		// what it takes to read the counter.
		reads := srv.Stat(t, "total_reads_processed") - before
		if n := trips(t, srv); n != 4 {
			t.Errorf("%d scripts, want 4", n)
		}
		base := srv.Stat(t, "total_reads_processed")
		overhead := srv.Stat(t, "total_reads_processed") - base
		if reads-overhead != 3 {
			t.Errorf("%d round trips, want 3 (claim, lock, commit with release)", reads-overhead)
		}
	}
	srv.ResetStats(t)
	want(t, "replay", do(t.Context(), e, pay("k1"), bank.run), replayed(2))
	if n := trips(t, srv); n != 1 {
		t.Errorf("a replay took %d round trips, want 1: it needs no lock", n)
	}
	if keys := rdb.Keys(t.Context(), "interlock:{*}").Val(); len(keys) > 0 {
		t.Errorf("locks are left: %v", keys)
	}
}

var _ = []any{errors.Is, slices.Sort[[]int], sync.OnceFunc}
