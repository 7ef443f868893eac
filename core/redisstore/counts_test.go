//go:build integration

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/redisstore"
)

// trips counts the reads of the server while a function runs, and the commands. Each
// round trip is one read, if the scripts are known to the server. The questions for the
// numbers go over one connection, which is there before.
func (w *world) trips(do func()) (trips int64, calls map[string]int64) {
	w.t.Helper()
	ask := func() (reads int64, calls map[string]int64) {
		info, err := w.rdb.InfoMap(w.t.Context(), "stats", "commandstats").Result()
		if err != nil {
			w.t.Fatal(err)
		}
		_, _ = fmt.Sscan(info["Stats"]["total_reads_processed"], &reads)
		calls = map[string]int64{}
		for name, stat := range info["Commandstats"] {
			var n int64
			_, _ = fmt.Sscanf(stat, "calls=%d", &n)
			calls[strings.TrimPrefix(name, "cmdstat_")] = n
		}
		return reads, calls
	}
	before, already := ask()
	do()
	after, calls := ask()
	for name, n := range already {
		if calls[name] -= n; calls[name] == 0 || name == "info" {
			delete(calls, name)
		}
	}
	return after - before - 1, calls // the second question is one
}

// undisturbed counts as trips does, until no connection was made meanwhile: that takes
// further commands. The first try makes the connections, and loads the scripts.
func (w *world) undisturbed(do func(try int)) (trips int64, calls map[string]int64) {
	w.t.Helper()
	for try := range 20 {
		trips, calls = w.trips(func() { do(try) })
		if try > 0 && calls["hello"] == 0 {
			return trips, calls
		}
	}
	w.t.Fatalf("a connection is made each time: %v", calls)
	return 0, nil
}

func TestEachRequestIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store()
	counted := map[string]bool{}
	for round := 0; round < 2 || round < 20 && len(counted) < len(w.life(s, w.rdb, "")); round++ {
		w.live(w.life(s, w.rdb, fmt.Sprint("k", round)), func(st step) (err error) {
			trips, calls := w.trips(func() { err = st.do() })
			if round == 0 || calls["hello"] > 0 {
				return err // a connection was made
			}
			counted[st.name] = true
			if trips != 1 || calls["evalsha"] > 1 || calls["eval"] > 0 && st.name != "resolve" {
				err = errors.Join(err, fmt.Errorf("%d round trips: %v", trips, calls))
			}
			return err
		})
	}
	if n := len(w.life(s, w.rdb, "")); len(counted) != n {
		t.Errorf("of %d requests only these were counted: %v", n, counted)
	}
}

func TestUncontendedLockAndReleaseAreTwoRoundTrips(t *testing.T) {
	t.Parallel()
	w := alone(t)
	l := w.process(core.Unlisted()) // its entry would be a script more
	const n = 50
	trips, calls := w.undisturbed(func(try int) {
		for i := range n {
			w.release(w.lock(l, fmt.Sprint("k", try, "-", i)))
		}
	})
	if trips != 2*n || calls["evalsha"] != 2*n || calls["eval"] != 0 || calls["publish"] != 0 || calls["subscribe"] != 0 {
		t.Errorf("%d locks and releases took %d round trips: %v; want %d evalsha and no publish", n, trips, calls, 2*n)
	}
}

// A ticket costs two scripts: one keeps the lock for it, one takes the lock over.
func TestCommandsOfATicket(t *testing.T) {
	t.Parallel()
	w := alone(t)
	web, worker := w.process(core.Unlisted()), w.process(core.Unlisted())
	want := map[string]int64{"evalsha": 2, "hmget": 2, "pttl": 2, "time": 2, "set": 3, "del": 2, "hset": 2, "pexpire": 4}
	for try := range 20 {
		lease := w.lock(web, fmt.Sprint("k", try))
		trips, calls := w.trips(func() {
			ticket, err := lease.HandOver(t.Context(), w.Holds())
			if err != nil {
				t.Fatal(err)
			}
			if lease, err = worker.TakeOver(t.Context(), ticket); err != nil {
				t.Fatal(err)
			}
		})
		w.release(lease)
		switch {
		case try == 0 || calls["hello"] > 0: // a connection was made
		case trips != 2 || !maps.Equal(calls, want):
			t.Fatalf("%d round trips: %v; want 2 with %v", trips, calls, want)
		default:
			return
		}
	}
	t.Error("a connection is made each time")
}

// A lock that goes from one process to another costs two scripts: a release that keeps the lock
// for the first of its list, and the acquire of that locker.
func TestCommandsOfAHandOver(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store()
	waiter := driver.NewWaiter("0123456789abcdef0123456789abcdef", driver.Exclusive, time.Second)
	round := 0
	var took time.Duration // from the release to the grant
	handOver := func(int) {
		round++
		key, ctx := fmt.Sprint("k", round), t.Context()
		acquire := func(owner string, waiter driver.Waiter) driver.Reply {
			rep, err := s.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: owner, TTL: w.Holds(), Waiter: waiter})
			if err != nil {
				t.Fatal(err)
			}
			return rep
		}
		rep := acquire("a:1", "")
		if refused := acquire("b:1", waiter); refused.Granted || !refused.Listed {
			t.Fatalf("a held lock: %+v", refused)
		}
		began := time.Now()
		found, err := s.Release(ctx, driver.ReleaseRequest{Key: key, Owner: "a:1", Token: rep.Token, TTL: w.Holds()})
		if err != nil || found.Others != 1 {
			t.Fatalf("the release finds %+v, %v; want one other locker", found, err)
		}
		if granted := acquire("b:2", waiter); !granted.Granted || granted.Token <= rep.Token {
			t.Fatalf("a lock that is kept: %+v", granted)
		}
		took = time.Since(began)
	}
	_, calls := w.undisturbed(handOver)
	for took >= time.Second && round < 100 { // the machine stood still: the lock was kept no more
		_, calls = w.undisturbed(handOver)
	}
	want := map[string]int64{
		"evalsha": 4, "exists": 3, "hmget": 3, "time": 2, "set": 2, // free, refused, released, granted
		"hset": 2 + 1 + 1, "pexpire": 2 + 1, "del": 1 + 1, "publish": 1, "hgetall": 1, "pttl": 1 + 1,
	}
	if !maps.Equal(calls, want) {
		t.Errorf("%v; want %v", calls, want)
	}
}

// Where the next process takes offers, the release is the grant: a hand-over is one script. A
// request of a locker that has no answer yet is a second one.
func TestCommandsOfAnOffer(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store()
	const id = "0123456789abcdef0123456789abcdef"
	offers, reached := make(chan driver.Call, 100), new(atomic.Bool)
	defer s.Calls(id, takes(offers, reached))()
	w.soon("the store reaches the locker", func(context.Context) bool { return reached.Load() })
	waiter := driver.NewWaiter(id, driver.Exclusive, time.Second).TakingOffers()
	round := 0
	var took time.Duration // from the release to the release of the offer
	handOver := func(int) {
		round++
		key, ctx := fmt.Sprint("k", round), t.Context()
		token := w.take(s, w.held(key, "a:1")).Token
		refused, err := s.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: "b:1", TTL: w.Holds(), Waiter: waiter})
		if err != nil || !refused.Listed || refused.Token != token {
			t.Fatalf("a held lock: %+v, %v", refused, err)
		}
		began := time.Now()
		if _, err := s.Release(ctx, driver.ReleaseRequest{Key: key, Owner: "a:1", Token: token, TTL: w.Holds()}); err != nil {
			t.Fatal(err)
		}
		o := <-offers
		if _, err := s.Release(ctx, driver.ReleaseRequest{Key: key, Owner: fmt.Sprint(id, ":", o.Token), Token: o.Token, TTL: w.Holds()}); err != nil {
			t.Fatal(err)
		}
		took = time.Since(began)
	}
	_, calls := w.undisturbed(handOver)
	for took >= driver.OfferLasts && round < 100 { // the machine stood still: the offer had ended
		_, calls = w.undisturbed(handOver)
	}
	want := map[string]int64{
		"evalsha": 4, "exists": 2, "hmget": 1 + 1 + 1, "time": 1 + 1, "set": 1 + 1, // free, refused, released, released
		"hset": 1 + 1 + 1, "pexpire": 1 + 1, "del": 1 + 1, "publish": 1, "hgetall": 1, "pttl": 1,
	}
	if !maps.Equal(calls, want) {
		t.Errorf("%v; want %v", calls, want)
	}
}

// A request costs as many commands as its promises need.
func TestCommandsOfAnIdempotentRequest(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store()
	trips, calls := w.undisturbed(func(try int) {
		claim := w.claim(fmt.Sprint("id", try), "a")
		claim.Tombstone = false
		_, err := s.Claim(t.Context(), claim)
		_, err2 := s.Commit(t.Context(), record.CommitRequest{
			ID: claim.ID, Token: "a", Fingerprint: claim.Fingerprint, Generation: 1,
			Response: []byte("r"), Retention: time.Hour, Deadline: w.deadline(),
		})
		rep, err3 := s.Claim(t.Context(), claim)
		if err := errors.Join(err, err2, err3); err != nil || rep.Response != "r" {
			t.Errorf("the replay is %+v, %v", rep, err)
		}
	})
	if trips != 3 {
		t.Errorf("a request and its replay took %d round trips, want 3", trips)
	}
	// HMGET: once after each claim, once in each script.
	want := map[string]int64{"evalsha": 3, "hmget": 5, "exists": 1, "time": 1, "hset": 2, "pexpire": 2}
	if !maps.Equal(calls, want) {
		t.Errorf("commands: %v, want %v", calls, want)
	}
}

// The lock around an idempotent request is released with the commit, in one round trip.
func TestUnderALockCommitAndReleaseGoTogether(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store()
	for i := range 20 { // each time, not only when the scheduler is kind
		trips, calls := w.undisturbed(func(try int) {
			id := fmt.Sprint("id", i, "-", try)
			w.take(s, w.held("k", "a:1"))
			if rep, err := s.Claim(t.Context(), w.claim(id, "a")); err != nil || rep.State != record.StateGranted {
				t.Fatal(rep, err)
			}
			if _, err := s.Commit(t.Context(), record.CommitRequest{
				ID: id, Token: "a", Generation: 1, Response: []byte("r"), Retention: w.Holds(), Deadline: w.deadline(),
				Release: func(context.Context) { wantErr(t, w.free(s, "k", "a:1"), nil) },
			}); err != nil {
				t.Error(err)
			}
		})
		if trips != 3 || calls["evalsha"] != 4 {
			t.Errorf("%d round trips: %v; want 3, for the lock, the claim, and the commit with the release", trips, calls)
		}
		w.gone()
	}
}

// A release that leaves with the commit costs no extra round trip, and AnswerFirst does not
// take it out of the pipeline.
func TestWithAnswerFirstCommitAndReleaseStillGoTogether(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store()
	l := w.locker(s, core.Unlisted())
	rule := core.Serialize(l, "k", core.AnswerFirst())
	for i := range 20 { // each time, not only when the scheduler is kind
		trips, calls := w.undisturbed(func(try int) {
			id := fmt.Sprint("id", i, "-", try)
			section, refusal := rule.Enter(t.Context(), routed{})
			if refusal != nil {
				t.Fatal(refusal.Err)
			}
			if rep, err := s.Claim(t.Context(), w.claim(id, "a")); err != nil || rep.State != record.StateGranted {
				t.Fatal(rep, err)
			}
			if _, err := s.Commit(t.Context(), record.CommitRequest{
				ID: id, Token: "a", Generation: 1, Response: []byte("r"), Retention: w.Holds(), Deadline: w.deadline(), Release: section.Leave,
			}); err != nil {
				t.Error(err)
			}
		})
		if trips != 3 || calls["evalsha"] != 4 {
			t.Errorf("%d round trips: %v; want 3, for the lock, the claim, and the commit with the release", trips, calls)
		}
	}
}

// routed is a request of which no template takes a value.
type routed struct{ core.Request }

func (routed) Header(string) []string { return nil }

func (routed) Route() (string, bool) { return "/", true }

// Callers ask for locks while the server is silent, so that their requests meet in few
// calls of the script. Each gets the same result as alone.
func TestCallersThatWaitTogetherShareCalls(t *testing.T) {
	t.Parallel()
	const n, odd = 60, 50
	text := func(err error) string { return fmt.Sprint(err) }
	for name, c := range map[string]struct {
		before func(ctx context.Context, w *world) error
		alone  bool // a call that is refused is not shared any more
		odd    func(rep driver.Reply, err error) bool
		others func(rep driver.Reply, err error) bool // nil: they have the lock
	}{
		"all are free": {},
		"one key is no lock": {
			before: func(ctx context.Context, w *world) error { return w.rdb.Set(ctx, w.name("k50"), "x", 0).Err() },
			odd:    func(_ driver.Reply, err error) bool { return errors.Is(err, core.ErrKeyOccupied) },
		},
		"one key is held": {
			before: func(ctx context.Context, w *world) error {
				return w.rdb.HSet(ctx, w.name("k50"), "b:1", 1_700_000_000_000_000).Err()
			},
			odd: func(rep driver.Reply, err error) bool { return err == nil && !rep.Granted && rep.Holder == "b:1" },
		},
		"one key is forbidden": {
			before: func(ctx context.Context, w *world) error {
				return w.rdb.Do(ctx, "ACL", "SETUSER", "default", "resetkeys",
					"~interlock:{k?}*", "~interlock:{k[0-46-9]?}*", "~interlock:{k5[1-9]}*").Err()
			},
			alone: true,
			odd: func(_ driver.Reply, err error) bool {
				return errors.Is(err, core.ErrUnavailable) && strings.Contains(text(err), "on a lock's key; the rule is")
			},
		},
		"the script is unknown": {
			before: func(ctx context.Context, w *world) error { return w.rdb.ScriptFlush(ctx).Err() },
			alone:  true, // it is sent along
		},
		// An error inside of a list leaves the rest of the list to the next reply, as
		// go-redis reads it.
		"memory is full and one key is held": {
			before: func(ctx context.Context, w *world) error {
				return errors.Join(w.rdb.HSet(ctx, w.name("k50"), "b:1", 1_700_000_000_000_000).Err(), w.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
			},
			odd:    func(rep driver.Reply, err error) bool { return err == nil && !rep.Granted && rep.Holder == "b:1" },
			others: func(_ driver.Reply, err error) bool { return strings.Contains(text(err), "OOM") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := alone(t)
			s := w.store()
			w.take(s, w.held("warm", "a:1"))
			if c.before != nil {
				if err := c.before(t.Context(), w); err != nil {
					t.Fatal(err)
				}
			}
			w.ResetStats(t)
			replies, errs := w.together(s, n)
			if calls := w.Calls(t); !c.alone && calls["evalsha"] >= n {
				t.Errorf("no call was shared: %v", calls)
			}
			var batch []driver.Renewal
			for i := range n {
				switch {
				case i == odd && c.odd != nil:
					if !c.odd(replies[i], errs[i]) {
						t.Errorf("the odd one: %+v, %v", replies[i], errs[i])
					}
				case c.others != nil:
					if !c.others(replies[i], errs[i]) {
						t.Errorf("k%d: %+v, %v", i, replies[i], errs[i])
					}
				case errs[i] != nil || !replies[i].Granted:
					t.Errorf("k%d: %+v, %v", i, replies[i], errs[i])
				default:
					batch = append(batch, driver.Renewal{Key: fmt.Sprint("k", i), Owner: fmt.Sprint("owner:", i), TTL: w.Holds()})
				}
			}
			w.hold(s, batch)
		})
	}
}

// hold renews locks together, and releases them.
func (w *world) hold(s *redisstore.Store, batch []driver.Renewal) {
	w.t.Helper()
	s.Renew(w.t.Context(), batch, func(i int, _ bool, err error) {
		if err != nil {
			w.t.Errorf("renewing %s: %v", batch[i].Key, err)
		}
	})
	var all sync.WaitGroup
	for _, r := range batch {
		all.Go(func() {
			if err := w.free(s, r.Key, r.Owner); err != nil {
				w.t.Errorf("releasing %s: %v", r.Key, err)
			}
		})
	}
	all.Wait()
}

func TestRenewalsShareCallsAndFailAlone(t *testing.T) {
	t.Parallel()
	const n = 100
	w := alone(t)
	s := w.store()
	batch := make([]driver.Renewal, n)
	for i := range batch {
		batch[i] = driver.Renewal{Key: fmt.Sprint("k", i), Owner: "a:1", TTL: w.Holds()}
		w.take(s, w.held(batch[i].Key, "a:1"))
	}
	w.rdb.Del(t.Context(), w.name("k0"))
	w.rdb.Set(t.Context(), w.name("k1"), "x", 0)
	errs := make([]error, n)
	w.ResetStats(t)
	s.Renew(t.Context(), batch, func(i int, _ bool, err error) { errs[i] = err })
	if calls := w.Calls(t); calls["evalsha"] > n/2 {
		t.Errorf("%d renewals took %v", n, calls)
	}
	wantErr(t, errs[0], driver.ErrDeleted)
	wantErr(t, errs[1], core.ErrKeyOccupied)
	for i, err := range errs[2:] {
		if err != nil {
			t.Errorf("k%d: %v", i+2, err)
		}
	}
}
