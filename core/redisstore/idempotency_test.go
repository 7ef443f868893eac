package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/reason"
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
	host     string
}

func pay(key string) payment {
	return payment{endpoint.HTTP, "alice", []string{key}, "/payments", "", `{"amount":1}`, ""}
}

func (p payment) Protocol() string                 { return p.protocol }
func (p payment) Key() (string, error)             { return endpoint.ParseKey(p.keys) }
func (p payment) Target() (string, string, string) { return "POST", p.path, p.query }
func (p payment) Origin() (string, string, string) { return p.host, p.path, p.query }
func (p payment) Route() (string, bool)            { return "POST /payments", true }
func (p payment) Param(string) (string, error)     { return "", adapter.ErrNoParam }
func (p payment) Header(string) []string           { return []string{p.scope} }
func (p payment) Query(string) []string            { return nil }
func (p payment) Native() any                      { return p }
func (p payment) Value(any) any                    { return nil }

func (p payment) Body(limit int64) ([]byte, error) {
	if int64(len(p.body)) > limit {
		return nil, adapter.ErrBodyLimit
	}
	return []byte(p.body), nil
}

// principal is the scope of payments.
func principal(_ context.Context, req core.Request) (string, error) {
	return req.Header("Authorization")[0], nil
}

func newEngine(tb testing.TB, store record.Store, opts ...idempotency.Option) *idempotency.Engine {
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
	// A busy machine may need more than the second that a request has by default.
	s, err := redisstore.New(rdb, append([]redisstore.Option{redisstore.Timeout(10 * time.Second)}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		// A connection that a test has cut is closed already.
		if err := s.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			tb.Errorf("closing the store: %v", err)
		}
	})
	return s
}

// bank counts effects, and answers with how many there were.
type bank struct{ effects atomic.Int64 }

func (b *bank) run(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
	n := b.effects.Add(1)
	return endpoint.Response{
		Status: http.StatusCreated, Header: map[string][]string{"X-N": {fmt.Sprint(n)}}, Body: fmt.Appendf(nil, "payment %d", n),
	}, true
}

type runFunc func(context.Context, endpoint.Attempt) (endpoint.Response, bool)

// result is what a client would see.
type result struct {
	status   int // of the answer, whoever gave it
	body     string
	replayed bool
	reason   reason.Reason
	ran      bool
}

// do is doOnce, done again if a busy machine needs longer for the answer to the claim
// than a request waits.
func do(ctx context.Context, e *idempotency.Engine, p payment, run runFunc) (r result) {
	for range 5 {
		begin := time.Now()
		r = doOnce(ctx, e, p, run)
		if r.reason != reason.NoRecord || r.ran || time.Since(begin) < time.Second {
			break
		}
	}
	return r
}

func doOnce(ctx context.Context, e *idempotency.Engine, p payment, run runFunc) result {
	var own endpoint.Response
	v := e.Do(ctx, p, endpoint.Handler{
		Run: func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
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

func replayed(n int) result {
	return result{status: 201, body: fmt.Sprint("payment ", n), replayed: true}
}

func refused(r reason.Reason) result { return result{reason: r} }

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
		"other protocol": func(p *payment) { p.protocol = endpoint.GRPC },
	} {
		p := pay("k")
		other(&p)
		want(t, name, do(t.Context(), b, p, bank.run), refused(reason.KeyReused))
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

// readsOfAStat is how many reads it takes the server to be asked for a number.
func readsOfAStat(tb testing.TB, srv *redistest.Server) int64 {
	tb.Helper()
	before := srv.Stat(tb, "total_reads_processed")
	return srv.Stat(tb, "total_reads_processed") - before
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
		before := srv.Stat(t, "total_reads_processed")
		f()
		after := srv.Stat(t, "total_reads_processed")
		got := trips(t, srv)
		reads := after - before - readsOfAStat(t, srv)
		if got != n || reads != n {
			t.Errorf("%s: %d scripts in %d round trips, want %d", what, got, reads, n)
		}
	}
	marking := func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
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
		want(t, "mismatch", do(t.Context(), e, p, bank.run), refused(reason.KeyReused))
	})
	count("marked", 3, func() { do(t.Context(), e, pay("m"), marking) })
	failing := func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
		return endpoint.Response{Status: 500}, true
	}
	count("released", 2, func() { do(t.Context(), e, pay("f"), failing) })
	var inside result
	count("fresh with a conflict inside", 3, func() {
		do(t.Context(), e, pay("c"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			inside = do(t.Context(), e, pay("c"), bank.run)
			return bank.run(ctx, a)
		})
	})
	want(t, "conflict", inside, refused(reason.InFlight))
}

func TestUnderALockCommitAndReleaseGoTogether(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	store := newStore(t, rdb)
	locker, err := core.New(store, core.Unlisted()) // its entry would be a script more
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(context.Background())
	e := newEngine(t, store, idempotency.Under(core.Serialize(locker, "payments")))
	var bank bank
	do(t.Context(), e, pay("warm"), bank.run)
	for range 20 { // each time, not only when the scheduler is kind
		key := fmt.Sprint("k", bank.effects.Load())
		srv.ResetStats(t)
		before := srv.Stat(t, "total_reads_processed")
		do(t.Context(), e, pay(key), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
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
		if reads -= readsOfAStat(t, srv); reads != 3 {
			t.Errorf("%d round trips, want 3 (claim, lock, commit with release)", reads)
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

// hold makes a handler that says when it runs, and goes on when it is told.
func hold(then runFunc) (run runFunc, running <-chan context.Context, release chan<- struct{}) {
	in, out := make(chan context.Context, 1), make(chan struct{})
	return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
		in <- ctx
		<-out
		return then(ctx, a)
	}, in, out
}

// status makes a handler that answers with a status alone.
func status(code int) runFunc {
	return func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
		return endpoint.Response{Status: code}, true
	}
}

func TestARequestInFlightRefusesItsDuplicatesAndOthers(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	a, b := newEngine(t, newStore(t, rdb)), newEngine(t, newStore(t, rdb))
	var bank bank
	run, running, release := hold(bank.run)
	got := make(chan result, 1)
	go func() { got <- do(t.Context(), a, pay("k"), run) }()
	<-running
	want(t, "duplicate", do(t.Context(), b, pay("k"), bank.run), refused(reason.InFlight))
	p := pay("k")
	p.body = "other"
	want(t, "another request", do(t.Context(), b, p, bank.run), refused(reason.KeyReused))
	close(release)
	want(t, "the first", <-got, fresh(1))
	want(t, "duplicate", do(t.Context(), b, pay("k"), bank.run), replayed(1))
}

func TestADuplicateOfAnotherProcessWaitsForTheAnswer(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	wait := idempotency.WaitReplay(20 * time.Second)
	a, b := newEngine(t, newStore(t, rdb), wait), newEngine(t, newStore(t, rdb), wait)
	var bank bank
	for i, then := range []struct {
		run  runFunc
		want result
	}{{bank.run, replayed(1)}, {status(500), fresh(2)}} {
		key := fmt.Sprint("k", i)
		run, running, release := hold(then.run)
		var wg sync.WaitGroup
		wg.Go(func() { do(t.Context(), a, pay(key), run) })
		<-running
		got := make(chan result, 1)
		go func() { got <- do(t.Context(), b, pay(key), bank.run) }()
		redistest.Eventually(t, 5*time.Second, func(ctx context.Context) error {
			if n := rdb.PubSubNumPat(ctx).Err(); n != nil {
				return n
			}
			channels := rdb.PubSubChannels(ctx, "interlock:idem:*").Val()
			if len(channels) != i+1 {
				return fmt.Errorf("%d channels", len(channels))
			}
			return nil
		})
		begin := time.Now()
		close(release)
		want(t, key, <-got, then.want)
		if d := time.Since(begin); d > 10*time.Second {
			t.Errorf("%s: woken after %v", key, d)
		}
		wg.Wait()
	}
}

// lapse waits until the lease of a payment's claim is over, and not renewed.
func lapse(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		now := rdb.Time(ctx).Val().UnixMilli()
		for _, key := range rdb.Keys(ctx, "interlock:idem:*").Val() {
			if u, _ := rdb.HGet(ctx, key, "u").Int64(); rdb.HGet(ctx, key, "s").Val() == "c" && u > now {
				return errors.New("not over yet")
			}
		}
		return nil
	})
}

func TestAHolderThatWasCutOff(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	short := idempotency.Lease(3 * time.Second) // within which it has to be claimed, and marked
	other := newEngine(t, newStore(t, rdb))
	for name, c := range map[string]struct {
		mark     bool
		meanOver bool // another takes over
		strict   bool
		then     int // what the holder answers in the end
		holder   result
		again    result
	}{
		"nobody took over, commits":   {then: 201, holder: result{status: 201}, again: result{status: 201, replayed: true}},
		"nobody took over, fails":     {then: 500, holder: result{status: 500}, again: fresh(1)},
		"another took over, commits":  {meanOver: true, then: 201, holder: replayed(1), again: replayed(1)},
		"another took over, fails":    {meanOver: true, then: 500, holder: result{status: 500}, again: replayed(1)},
		"marked, nobody can":          {mark: true, then: 201, holder: result{status: 201}, again: result{status: 201, replayed: true}},
		"marked, fails, nobody can":   {mark: true, then: 500, holder: result{status: 500}, again: result{status: 500, replayed: true}},
		"strict, nobody can, commits": {strict: true, then: 201, holder: result{status: 201}, again: result{status: 201, replayed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			key, w := `"`+name+`"`, newWire()
			opts := []idempotency.Option{short}
			if c.strict {
				opts = append(opts, idempotency.Strict())
			}
			cut := newEngine(t, newStore(t, srv.Client(t, w.through)), opts...)
			var bank bank
			got := make(chan result, 1)
			held, release := make(chan struct{}), make(chan struct{})
			go func() {
				got <- do(t.Context(), cut, pay(key), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
					if c.mark {
						if err := idempotency.MarkEffect(ctx); err != nil {
							t.Error(err)
						}
					}
					w.cut(true)
					<-ctx.Done()
					if !errors.Is(context.Cause(ctx), core.ErrLost) {
						t.Error(context.Cause(ctx))
					}
					close(held)
					<-release
					return endpoint.Response{Status: c.then}, true
				})
			}()
			select {
			case <-held:
			case r := <-got:
				t.Fatalf("it has not run, or has not waited: %+v", r)
			}
			lapse(t, rdb)
			p := pay(key)
			p.body = "other"
			want(t, "another request", do(t.Context(), other, p, bank.run), refused(reason.KeyReused))
			switch {
			case c.meanOver:
				want(t, "take-over", do(t.Context(), other, pay(key), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
					if g := idempotency.Generation(ctx); g != 2 {
						t.Errorf("generation %d", g)
					}
					return bank.run(ctx, a)
				}), fresh(1))
			case c.mark || c.strict:
				want(t, "marked", do(t.Context(), other, pay(key), bank.run), refused(reason.OutcomeUnknown))
			}
			w.mend()
			close(release)
			want(t, "the holder", <-got, c.holder)
			want(t, "again", do(t.Context(), other, pay(key), bank.run), c.again)
		})
	}
}

func TestAReplyThatIsLostChangesNothing(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	w := newWire()
	e, other := newEngine(t, newStore(t, srv.Client(t, w.through))), newEngine(t, newStore(t, rdb))
	var bank bank
	do(t.Context(), e, pay("warm"), bank.run)

	w.replies(once())
	want(t, "claim reply lost", do(t.Context(), e, pay("claim"), bank.run), fresh(2))
	want(t, "again", do(t.Context(), other, pay("claim"), bank.run), replayed(2))

	run := func(then runFunc) runFunc {
		return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			w.replies(once())
			return then(ctx, a)
		}
	}
	want(t, "commit reply lost", do(t.Context(), e, pay("commit"), run(bank.run)), fresh(3))
	want(t, "again", do(t.Context(), other, pay("commit"), bank.run), replayed(3))

	want(t, "mark reply lost", do(t.Context(), e, pay("mark"), run(func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
		if err := idempotency.MarkEffect(ctx); err != nil {
			t.Error(err)
		}
		return bank.run(ctx, a)
	})), fresh(4))
	want(t, "again", do(t.Context(), other, pay("mark"), bank.run), replayed(4))

	want(t, "abandon reply lost", do(t.Context(), e, pay("abandon"), run(status(500))), result{status: 500})
	want(t, "again", do(t.Context(), other, pay("abandon"), bank.run), fresh(5))
	w.replies(nil)
}

func TestRedisKilledDuringTheHandler(t *testing.T) {
	for name, persist := range map[string]bool{"with its data": true, "without its data": false} {
		t.Run(name, func(t *testing.T) {
			args := []string{}
			if persist {
				args = []string{"--appendonly", "yes", "--appendfsync", "always"}
			}
			srv := redistest.Start(t, redistest.Args(args...))
			e, other := newEngine(t, newStore(t, srv.Client(t))), newEngine(t, newStore(t, srv.Client(t)))
			var bank bank
			want(t, "first", do(t.Context(), e, pay("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
				srv.Kill()
				if err := idempotency.MarkEffect(ctx); !errors.Is(err, core.ErrUnavailable) {
					t.Errorf("MarkEffect without a server: %v", err)
				}
				return bank.run(ctx, a)
			}), fresh(1))
			want(t, "while it is down", doOnce(t.Context(), other, pay("k"), bank.run), refused(reason.NoRecord))
			if e.Pending() != 1 {
				t.Errorf("%d pending", e.Pending())
			}
			srv.Restart(t)
			redistest.Eventually(t, 10*time.Second, func(context.Context) error {
				if n := e.Pending(); n > 0 {
					return fmt.Errorf("%d pending", n)
				}
				return nil
			})
			want(t, "again", do(t.Context(), other, pay("k"), bank.run), replayed(1))
		})
	}
}

func TestScriptsMayBeFlushedBetweenAnyTwoCalls(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	e := newEngine(t, newStore(t, rdb), idempotency.Lease(6*time.Second))
	flush := func() {
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Error(err)
		}
	}
	var bank bank
	flush()
	want(t, "first", do(t.Context(), e, pay("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
		flush()
		if err := idempotency.MarkEffect(ctx); err != nil {
			t.Error(err)
		}
		flush()
		record := rdb.Keys(ctx, "interlock:idem:*").Val()[0]
		until := rdb.HGet(ctx, record, "u").Val()
		redistest.Eventually(t, 20*time.Second, func(ctx context.Context) error {
			if now, err := rdb.HGet(ctx, record, "u").Result(); err != nil || now == until {
				return errors.Join(errors.New("not renewed"), err)
			}
			return nil
		})
		if err := context.Cause(ctx); err != nil {
			t.Error(err)
		}
		flush()
		return bank.run(ctx, a)
	}), fresh(1))
	flush()
	want(t, "again", do(t.Context(), e, pay("k"), bank.run), replayed(1))
	do(t.Context(), e, pay("f"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
		flush()
		return status(500)(ctx, a)
	})
	want(t, "after a release", do(t.Context(), e, pay("f"), bank.run), fresh(2))
}

func TestADamagedRecordIsNeverExecuted(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	e := newEngine(t, newStore(t, rdb), idempotency.FailOpen())
	var bank bank
	ctx := t.Context()
	for name, damage := range map[string]func(key string) error{
		"other version":  func(key string) error { return rdb.HSet(ctx, key, "v", "2").Err() },
		"no version":     func(key string) error { return rdb.HDel(ctx, key, "v").Err() },
		"no token":       func(key string) error { return rdb.HDel(ctx, key, "t").Err() },
		"no fingerprint": func(key string) error { return rdb.HDel(ctx, key, "f").Err() },
		"no generation":  func(key string) error { return rdb.HDel(ctx, key, "g").Err() },
		"unknown state":  func(key string) error { return rdb.HSet(ctx, key, "s", "?").Err() },
		"no state":       func(key string) error { return rdb.HDel(ctx, key, "s").Err() },
		"no lease":       func(key string) error { return rdb.HSet(ctx, key, "s", "c", "u", "soon").Err() },
		"no response":    func(key string) error { return rdb.HDel(ctx, key, "r").Err() },
		"empty response": func(key string) error { return rdb.HSet(ctx, key, "r", "").Err() },
		"rubbish":        func(key string) error { return rdb.HSet(ctx, key, "r", "\x01rubbish").Err() },
		"envelope of v2": func(key string) error { return rdb.HSet(ctx, key, "r", "\x02").Err() },
		"another's hash": func(key string) error {
			return errors.Join(rdb.Del(ctx, key).Err(), rdb.HSet(ctx, key, "a", "b").Err())
		},
		"another's type": func(key string) error { return rdb.Set(ctx, key, "x", 0).Err() },
	} {
		rdb.FlushDB(ctx)
		n := bank.effects.Load()
		do(ctx, e, pay("k"), bank.run)
		keys := rdb.Keys(ctx, "*").Val()
		if err := damage(keys[0]); err != nil || len(keys) != 1 {
			t.Fatal(name, keys, err)
		}
		want(t, name, do(ctx, e, pay("k"), bank.run), refused(reason.NoRecord))
		if bank.effects.Load() != n+1 {
			t.Errorf("%s: it was carried out again", name)
		}
	}
}

func TestAFullServerKeepsAnswersAndReleasesClaims(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	e := newEngine(t, newStore(t, rdb))
	memory := func(limit string) {
		t.Helper()
		if err := rdb.ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
			t.Error(err)
		}
	}
	var bank bank
	full := func(then runFunc) runFunc {
		return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			memory("1")
			return then(ctx, a)
		}
	}
	want(t, "released", do(t.Context(), e, pay("f"), full(status(500))), result{status: 500})
	if n := rdb.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d records are left of a release", n)
	}
	want(t, "while it is full", do(t.Context(), e, pay("x"), bank.run), refused(reason.NoRecord))
	memory("0")
	want(t, "committed", do(t.Context(), e, pay("k"), full(bank.run)), fresh(1))
	memory("0")
	redistest.Eventually(t, 10*time.Second, func(context.Context) error {
		if e.Pending() > 0 {
			return errors.New("not stored yet")
		}
		return nil
	})
	want(t, "again", do(t.Context(), e, pay("k"), bank.run), replayed(1))
}

func TestAFullServerGivesUpATakeOver(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	store := newStore(t, rdb)
	claim := func(token string, lease time.Duration) record.ClaimReply {
		t.Helper()
		rep, err := store.Claim(t.Context(), record.ClaimRequest{
			ID: "id", Token: token, Lease: lease, Retention: time.Hour, Deadline: time.Now().Add(20 * time.Second),
		})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	memory := func(limit string) {
		t.Helper()
		if err := rdb.ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	claim("first", time.Millisecond)
	redistest.Eventually(t, 20*time.Second, func(context.Context) error {
		if rep := claim("second", time.Hour); rep.State != record.StateGranted || rep.Generation != 2 {
			return fmt.Errorf("not taken over yet: %+v", rep)
		}
		return nil
	})
	memory("1")
	err := store.Abandon(t.Context(), record.AbandonRequest{ID: "id", Token: "second", Deadline: time.Now().Add(20 * time.Second)})
	memory("0")
	if err != nil {
		t.Fatal(err)
	}
	if rep := claim("third", time.Hour); rep.State != record.StateGranted || rep.Generation != 2 {
		t.Errorf("the next claim: %+v; want a grant of generation 2", rep)
	}
}

func TestClusterKeepsRecordsAndLocksOnDifferentNodes(t *testing.T) {
	t.Parallel()
	set := redistest.Cluster(t, 3, 0)
	rdb := set.Client(t)
	// On a busy machine the first connections to three nodes take longer than the
	// second that a request has by default.
	store := newStore(t, rdb, redisstore.Timeout(20*time.Second))
	locker, err := core.New(store)
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close(context.Background())
	account := core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
		return []string{req.Native().(payment).path}, nil
	})
	e := newEngine(t, store, idempotency.Lease(6*time.Second), idempotency.WaitReplay(30*time.Second),
		idempotency.Under(core.Serialize(locker, "", account, core.Wait(time.Minute))))
	var bank bank
	var wg sync.WaitGroup
	for i := range 60 {
		for range 3 {
			wg.Go(func() {
				p := pay(fmt.Sprint("k", i))
				p.path = fmt.Sprint("/accounts/", i%7)
				got := do(t.Context(), e, p, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
					if i%20 == 0 { // over a lease
						timer := time.NewTimer(7 * time.Second)
						defer timer.Stop()
						<-timer.C
					}
					return bank.run(ctx, a)
				})
				if got.status != 201 {
					t.Errorf("payment %d: %+v", i, got)
				}
			})
		}
	}
	wg.Wait()
	if n := bank.effects.Load(); n != 60 {
		t.Errorf("%d effects of 60 payments", n)
	}
	if err := rdb.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ScriptFlush(ctx).Err()
	}); err != nil {
		t.Fatal(err)
	}
	p := pay("k1")
	p.path = "/accounts/1"
	if got := do(t.Context(), e, p, bank.run); !got.replayed {
		t.Errorf("after SCRIPT FLUSH: %+v", got)
	}
	if err := e.Forget(t.Context(), "alice", "k1"); err != nil {
		t.Fatal(err)
	}
	want(t, "forgotten", do(t.Context(), e, p, bank.run), fresh(61))
}

func TestARefusalOfTheLockGivesTheKeyBack(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	store := newStore(t, rdb)
	locker, other := newLocker(t, rdb), newLocker(t, rdb)
	e := newEngine(t, store, idempotency.Under(core.Serialize(locker, "payments", core.Wait(50*time.Millisecond))))
	bad := newEngine(t, store, idempotency.Under(core.Serialize(locker, "a/{header.X-Missing}/{id}")))
	var bank bank
	release(t, lock(t, locker, "payments")) // connections and scripts
	lease := lock(t, other, "payments")
	held := do(t.Context(), e, pay("k"), bank.run)
	for i := 0; i < 5 && held.reason == reason.Unavailable; i++ { // no answer in so short a time
		held = do(t.Context(), e, pay("k"), bank.run)
	}
	want(t, "held", held, refused(reason.Held))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	want(t, "gone", do(ctx, e, pay("k"), bank.run), refused(reason.Canceled))
	release(t, lease)
	want(t, "misconfigured", do(t.Context(), bad, pay("k"), bank.run), refused(reason.Misconfigured))
	if keys := rdb.Keys(t.Context(), "interlock:idem:*").Val(); len(keys) > 0 {
		t.Errorf("records are left: %v", keys)
	}
	want(t, "then", do(t.Context(), e, pay("k"), bank.run), fresh(1))
}

func TestAClientThatLeavesTheLocksQueueLeavesNothing(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	store := newStore(t, rdb)
	locker := newLocker(t, rdb)
	e := newEngine(t, store, idempotency.Under(core.Serialize(locker, "payments")))
	var bank bank
	lease := lock(t, locker, "payments")
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan result, 1)
	go func() { got <- do(ctx, e, pay("k"), bank.run) }()
	redistest.Eventually(t, 5*time.Second, func(context.Context) error {
		if held := locker.Held(); len(held) != 1 || held[0].Waiters != 1 {
			return fmt.Errorf("%+v", held)
		}
		return nil
	})
	cancel()
	want(t, "left", <-got, refused(reason.Canceled))
	release(t, lease)
	wantGone(t, rdb)
	want(t, "again", do(t.Context(), e, pay("k"), bank.run), fresh(1))
}

func TestUnderALockTheHandlerOutlivesItsClient(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	store := newStore(t, rdb)
	locker := newLocker(t, rdb)
	e := newEngine(t, store, idempotency.Under(core.Serialize(locker, "payments")))
	var bank bank
	ctx, cancel := context.WithCancel(t.Context())
	want(t, "first", do(ctx, e, pay("k"), func(inner context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
		cancel()
		if err := core.LeaseFromContext(inner).Check(inner); err != nil || inner.Err() != nil {
			t.Errorf("the lease: %v; the context: %v", err, context.Cause(inner))
		}
		return bank.run(inner, a)
	}), fresh(1))
	want(t, "again", do(t.Context(), e, pay("k"), bank.run), replayed(1))
	wantGone(t, rdb)
}

func TestALostLockKeepsTheClaim(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	store := newStore(t, rdb)
	locker := newLocker(t, rdb, core.Watchdog(300*time.Millisecond))
	e := newEngine(t, store, idempotency.Under(core.Serialize(locker, "payments")))
	var bank bank
	lose := func(answered bool) runFunc {
		return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			rdb.Del(ctx, "interlock:{payments}")
			<-ctx.Done()
			if !answered {
				return endpoint.Response{Status: 200}, false
			}
			return bank.run(ctx, a)
		}
	}
	want(t, "no answer", do(t.Context(), e, pay("k"), lose(false)), result{reason: reason.Lost, ran: true})
	want(t, "then", do(t.Context(), e, pay("k"), bank.run), refused(reason.InFlight))
	want(t, "an answer", do(t.Context(), e, pay("l"), lose(true)), fresh(1))
	want(t, "then", do(t.Context(), e, pay("l"), bank.run), replayed(1))
}

func TestAReplyToAnotherScriptIsNoClaim(t *testing.T) {
	// Whatever a lock's script answers, none of it is taken for a grant.
	words := map[string]bool{}
	files, err := filepath.Glob("../internal/rediswire/lua/*.lua")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"'claim'", "'commit'", "'marked'", "'abandoned'", "'renewed'"} {
			if strings.Contains(string(source), word) {
				words[word] = true
			}
		}
	}
	if len(words) > 0 {
		t.Errorf("the lock's scripts say %v", words)
	}
}

// A claim costs as many commands as its promises need.
func TestCommandsOfARequest(t *testing.T) {
	srv := redistest.Shared(t)
	e := newEngine(t, newStore(t, srv.Client(t)))
	var bank bank
	do(t.Context(), e, pay("warm"), bank.run)
	srv.ResetStats(t)
	do(t.Context(), e, pay("k"), bank.run)
	do(t.Context(), e, pay("k"), bank.run)
	calls := srv.Calls(t)
	// HMGET: once behind each claim, once in each script.
	for name, n := range map[string]int64{
		"evalsha": 3, "hmget": 5, "exists": 1, "time": 1, "hset": 2, "pexpire": 2, "hget": 0, "publish": 0,
	} {
		if calls[name] != n {
			t.Errorf("%s ran %d times, want %d", name, calls[name], n)
		}
	}
}

func BenchmarkIdempotent(b *testing.B) {
	rdb := redistest.Shared(b).Client(b)
	e := newEngine(b, newStore(b, rdb))
	ctx := context.Background()
	answer := func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
		return endpoint.Response{
			Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: make([]byte, 4<<10),
		}, true
	}
	b.Run("fresh", func(b *testing.B) {
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			n++
			do(ctx, e, pay(fmt.Sprint("k", b.N, "-", n)), answer)
		}
	})
	do(ctx, e, pay("k"), answer)
	b.Run("replay4KiB", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if got := do(ctx, e, pay("k"), answer); !got.replayed {
				b.Fatal(got)
			}
		}
	})
	b.Run("replay4KiB/256", func(b *testing.B) {
		b.ReportAllocs()
		each(b, 256, func(int) { do(ctx, e, pay("k"), answer) })
	})
	store := newStore(b, rdb)
	locker, err := core.New(store)
	if err != nil {
		b.Fatal(err)
	}
	defer locker.Close(ctx)
	var n atomic.Int64
	own := core.KeyFunc(func(context.Context, core.Request) ([]string, error) { return []string{fmt.Sprint(n.Add(1))}, nil })
	under := newEngine(b, store, idempotency.Under(core.Serialize(locker, "", own)))
	b.Run("underALock", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			do(ctx, under, pay(fmt.Sprint("u", b.N, "-", n.Add(1))), answer)
		}
	})
	b.Run("underALock/64", func(b *testing.B) {
		b.ReportAllocs()
		each(b, 64, func(int) { do(ctx, under, pay(fmt.Sprint("m", b.N, "-", n.Add(1))), answer) })
	})
	// What there is to compare with: the response fetched by a plain GET.
	plain := strings.Repeat("x", 4<<10)
	if err := rdb.Set(ctx, "plain", plain, 0).Err(); err != nil {
		b.Fatal(err)
	}
	get := func(b *testing.B) {
		if v, err := rdb.Get(ctx, "plain").Result(); err != nil || len(v) != len(plain) {
			b.Error(err)
		}
	}
	b.Run("get4KiB", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			get(b)
		}
	})
	b.Run("get4KiB/256", func(b *testing.B) {
		b.ReportAllocs()
		each(b, 256, func(int) { get(b) })
	})
}
