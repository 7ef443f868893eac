package redisstore_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/redistest"
)

// expire ends the leases of all claims that there are.
func expire(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	for _, key := range rdb.Keys(t.Context(), "interlock:idem:*").Val() {
		if rdb.Type(t.Context(), key).Val() == "hash" {
			if err := rdb.HSet(t.Context(), key, "u", "1").Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// foundOut is what an operator tells, and what its clients get.
var (
	foundOut = admin.CarriedOut(endpoint.HTTP, endpoint.Response{
		Status: http.StatusOK, Header: map[string][]string{"X-By": {"operator"}, "Date": {"today"}}, Body: []byte("it was paid"),
	})
	foundOutReplayed = result{status: http.StatusOK, body: "it was paid", replayed: true}
)

// TestAnUnknownOutcomeIsResolved has a holder that is stopped behind its mark, and
// wakes after somebody has resolved what became of it.
func TestAnUnknownOutcomeIsResolved(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	a, b := newEngine(t, newStore(t, rdb)), newEngine(t, newStore(t, rdb), idempotency.Tombstone(time.Hour))
	resolve := func(e *idempotency.Engine, found admin.Resolution) error {
		return e.Resolve(t.Context(), "alice", "k", found)
	}
	for name, c := range map[string]struct {
		mark, strict bool
		found        admin.Resolution
		again, woken result
	}{
		"carried out":                 {mark: true, found: foundOut, again: foundOutReplayed, woken: foundOutReplayed},
		"carried out, of strict ones": {strict: true, found: foundOut, again: foundOutReplayed, woken: foundOutReplayed},
		"not carried out":             {mark: true, found: admin.NotCarriedOut(), again: fresh(1), woken: replayed(1)},
	} {
		t.Run(name, func(t *testing.T) {
			rdb.FlushDB(t.Context())
			e := a
			if c.strict {
				e = a.With(idempotency.Strict())
			}
			var bank bank
			run, running, release := hold(status(201))
			got := make(chan result, 1)
			go func() {
				got <- do(t.Context(), e, pay("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
					if c.mark {
						if err := idempotency.MarkEffect(ctx); err != nil {
							t.Error(err)
						}
					}
					return run(ctx, a)
				})
			}()
			<-running
			if err := resolve(b, c.found); !errors.Is(err, record.ErrNotUnknown) {
				t.Errorf("in flight: %v", err)
			}
			expire(t, rdb)
			want(t, "before", do(t.Context(), b, pay("k"), bank.run), refused(reason.OutcomeUnknown))
			if err := resolve(b, c.found); err != nil {
				t.Error(err)
			}
			want(t, "after", do(t.Context(), b, pay("k"), bank.run), c.again)
			if err := resolve(b, foundOut); !errors.Is(err, record.ErrNotUnknown) {
				t.Errorf("a second time: %v", err)
			}
			close(release)
			want(t, "the holder", <-got, c.woken)
			p := pay("k")
			p.body = "other"
			want(t, "another request", do(t.Context(), b, p, bank.run), refused(reason.KeyReused))
			for _, key := range rdb.Keys(t.Context(), "*").Val() {
				if ttl := rdb.TTL(t.Context(), key).Val(); ttl < 23*time.Hour {
					t.Errorf("%s is kept for %v", key, ttl)
				}
			}
		})
	}
}

func TestADamagedRecordIsNotResolved(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	e := newEngine(t, newStore(t, rdb))
	var bank bank
	do(t.Context(), e, pay("k"), bank.run)
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		rdb.HSet(t.Context(), key, "v", "2", "s", "c", "m", "1")
	}
	expire(t, rdb)
	for _, found := range []admin.Resolution{foundOut, admin.NotCarriedOut()} {
		if err := e.Resolve(t.Context(), "alice", "k", found); !errors.Is(err, record.ErrDamaged) {
			t.Errorf("%v, want %v", err, record.ErrDamaged)
		}
	}
	want(t, "after", do(t.Context(), e, pay("k"), bank.run), refused(reason.NoRecord))
}

func TestAResolutionWhoseReplyIsLostCountsOnce(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	w := newWire()
	cut, e := newEngine(t, newStore(t, srv.Client(t, w.through))), newEngine(t, newStore(t, rdb))
	var bank bank
	do(t.Context(), cut, pay("warm"), bank.run)
	for i, c := range []struct {
		found admin.Resolution
		again result
	}{{foundOut, foundOutReplayed}, {admin.NotCarriedOut(), fresh(2)}} {
		key := []string{"a", "b"}[i]
		run, running, release := hold(status(500))
		got := make(chan result, 1)
		go func() { got <- do(t.Context(), e.With(idempotency.Strict()), pay(key), run) }()
		<-running
		expire(t, rdb)
		w.replies(once())
		if err := cut.Resolve(t.Context(), "alice", key, c.found); err != nil {
			t.Error(err)
		}
		w.replies(nil)
		want(t, "again", do(t.Context(), e, pay(key), bank.run), c.again)
		close(release)
		again := c.again
		again.replayed = true
		want(t, "the holder", <-got, again)
	}
}

func TestAResolutionOnACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.Cluster(t, 2, 0).Client(t)
	e := newEngine(t, newStore(t, rdb), idempotency.Strict(), idempotency.Tombstone(time.Hour))
	run, running, release := hold(status(201))
	got := make(chan result, 1)
	go func() { got <- do(t.Context(), e, pay("k"), run) }()
	<-running
	redistest.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		return rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			for _, key := range node.Keys(ctx, "interlock:idem:*").Val() {
				if err := node.HSet(ctx, key, "u", "1").Err(); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err := e.Resolve(t.Context(), "alice", "k", foundOut); err != nil {
		t.Error(err)
	}
	close(release)
	want(t, "the holder", <-got, foundOutReplayed)
}
