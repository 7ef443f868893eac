//go:build integration

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/core/redisstore"
)

func TestScriptFlushGoesUnnoticed(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store()
	w.live(w.life(s, w.rdb, "warm"), nil)
	w.live(w.life(s, w.rdb, "flushed"), func(st step) error {
		if err := w.rdb.ScriptFlush(t.Context()).Err(); err != nil {
			return err
		}
		return st.do()
	})
}

// A request is carried out once, and the caller gets the same result as from the reply
// that was lost.
func TestALostReply(t *testing.T) {
	t.Parallel()
	t.Run("of each request", func(t *testing.T) {
		t.Parallel()
		w, net := common(t), newWire()
		s := w.store(net.through)
		w.live(w.life(s, w.rdb, "warm"), nil)
		w.live(w.life(s, w.rdb, "k"), func(st step) error {
			before := net.lost.Load()
			net.lose()
			err := st.do()
			if net.replies(nil); net.lost.Load() == before {
				return errors.Join(err, errors.New("no reply was lost"))
			}
			if st.once && errors.Is(err, core.ErrUnavailable) {
				return st.do()
			}
			return err
		})
	})
	t.Run("of an acquire whose caller has left", func(t *testing.T) {
		t.Parallel()
		w, net := common(t), newWire()
		l := w.locker(w.store(net.through))
		w.release(w.lock(l, "warm"))
		hold, come := make(chan struct{}), make(chan struct{}, 16)
		net.replies(func([]byte) error { come <- struct{}{}; <-hold; return nil })
		ctx, cancel := context.WithCancel(t.Context())
		got := later(func() error { return pass(ctx, l, "k") })
		<-come // the server has done it; the reply is on its way
		cancel()
		wantErr(t, <-got, context.Canceled)
		if w.rdb.Exists(t.Context(), w.name("k")).Val() != 1 {
			t.Error("the acquire was not executed: the test proves nothing")
		}
		net.replies(nil)
		close(hold)
		w.gone()
	})
	t.Run("of each try of an acquire", func(t *testing.T) {
		t.Parallel()
		w, net := common(t), newWire()
		l := w.locker(w.store(net.through))
		w.release(w.lock(l, "warm"))
		net.replies(func([]byte) error { return net.loss() })
		_, err := l.Lock(t.Context(), "k")
		wantErr(t, err, core.ErrUnavailable)
		net.replies(nil)
		// The lease would last longer than the test waits: the locker gives up the lock that it
		// may have.
		w.release(w.lock(l, "k"))
		w.gone()
	})
}

// A request that needs no memory works when memory is full. A request that needs memory is
// refused, and works when there is memory again.
func TestAFullServer(t *testing.T) {
	t.Parallel()
	w := alone(t, "--maxmemory-policy", "noeviction")
	memory := func(limit string) error { return w.rdb.ConfigSet(t.Context(), "maxmemory", limit).Err() }
	s := w.store()
	w.live(w.life(s, w.rdb, "warm"), nil)
	w.live(w.life(s, w.rdb, "k"), func(st step) error {
		if err := memory("1"); err != nil {
			return err
		}
		err := st.do()
		if st.grows {
			if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "OOM") {
				return fmt.Errorf("while memory is full: %w; want ErrUnavailable that says OOM", err)
			}
			err = nil
		}
		if err := errors.Join(err, memory("0")); err != nil || !st.grows {
			return err
		}
		return st.do()
	})

	// A waiter that could not be listed gets no announcement: it asks by itself.
	holder, waiter := w.locker(s), w.process()
	lease := w.lock(holder, "listed")
	if err := memory("1"); err != nil {
		t.Fatal(err)
	}
	got := later(func() error { return pass(t.Context(), waiter, "listed") })
	w.called(1)
	if err := memory("0"); err != nil {
		t.Fatal(err)
	}
	w.release(lease)
	w.want("the waiter", got)
}

// A holder that is dead renews nothing and announces nothing. Its lock is free at the
// end of its lease.
func TestADeadHolder(t *testing.T) {
	t.Parallel()
	w := common(t)
	s := w.store()
	for _, key := range []string{"lock", "leader"} {
		w.take(s, driver.AcquireRequest{Key: key, Owner: "dead:1", TTL: w.Lapses()})
	}
	w.take(s, driver.AcquireRequest{Key: "shared", Owner: "dead:1", Kind: driver.Shared, TTL: w.Lapses()})
	w.take(s, driver.AcquireRequest{Key: "permit", Owner: "dead:1", Kind: driver.Permit, AtMost: 1, TTL: w.Lapses()})
	ask := w.claim("record", "dead")
	ask.Lease = w.Lapses()
	if rep, err := s.Claim(t.Context(), ask); err != nil || rep.State != record.StateGranted {
		t.Fatal(rep, err)
	}
	live := w.process()
	for what, done := range map[string]<-chan error{
		"its lock":       later(func() error { return pass(t.Context(), live, "lock") }),
		"what it shared": later(func() error { return pass(t.Context(), live, "shared") }),
		"its permit":     later(func() error { return pass(t.Context(), live, "permit", core.Permits(1)) }),
		"its leadership": later(func() error {
			return core.Lead(t.Context(), live, "leader", func(context.Context) error { return nil })
		}),
	} {
		w.want(what, done)
	}
	w.soon("its claim is taken over", func(ctx context.Context) bool {
		rep, err := s.Claim(ctx, w.claim("record", "live"))
		return err == nil && rep.State == record.StateGranted && rep.Generation == 2
	})
}

// A holder that is cut off gets the loss at the end of its lease, and takes nothing
// away from its successor. If it is back in time, it has lost nothing.
func TestAHolderThatIsCutOff(t *testing.T) {
	t.Parallel()
	w, net := common(t), newWire()
	s, other := w.store(net.through), w.store()
	short := w.locker(s, core.Watchdog(w.Lapses()))
	w.take(s, w.held("back", "a:1"))
	ask := w.claim("record", "a")
	ask.Lease = w.Lapses()
	if rep, err := s.Claim(t.Context(), ask); err != nil || rep.State != record.StateGranted {
		t.Fatal(rep, err)
	}
	lease := w.lock(short, "k")
	net.cut()
	wantErr(t, w.renew(s, "back", "a:1"), core.ErrUnavailable)
	wantErr(t, w.ended(lease), core.ErrLost)
	next := w.lock(w.locker(other), "k")
	if next.Token() <= lease.Token() {
		t.Errorf("token %d after %d", next.Token(), lease.Token())
	}
	commit := func(s *redisstore.Store, token string, generation int64) record.CommitReply {
		t.Helper()
		rep, err := s.Commit(t.Context(), record.CommitRequest{
			ID: "record", Token: token, Fingerprint: ask.Fingerprint, Generation: generation,
			Response: []byte("of " + token), Retention: time.Hour, Deadline: w.deadline(),
		})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	w.soon("the claim is taken over", func(ctx context.Context) bool {
		rep, err := other.Claim(ctx, w.claim("record", "b"))
		return err == nil && rep.State == record.StateGranted && rep.Generation == 2
	})
	commit(other, "b", 2)

	net.mend()
	w.soon("the lease that has not ended is renewed", func(context.Context) bool { return w.renew(s, "back", "a:1") == nil })
	wantErr(t, w.free(s, "back", "a:1"), nil)
	wantErr(t, lease.Release(t.Context()), core.ErrLost)
	wantErr(t, next.Check(t.Context()), nil)
	w.release(next)
	if rep := commit(s, "a", 1); rep.State != record.StateCompleted || rep.Response != "of b" {
		t.Errorf("the commit of the first: state %d, %q; want what the second has stored", rep.State, rep.Response)
	}
	w.gone()
}

func TestAServerThatIsDown(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store()
	l := w.locker(s)
	w.release(w.lock(l, "warm"))
	w.Kill()
	for range 2 { // callers that would wait for the holder without an end
		_, err := l.Lock(w.bounded(), "k")
		wantErr(t, err, core.ErrUnavailable)
	}
	_, err := s.Claim(t.Context(), w.claim("record", "a"))
	wantErr(t, err, core.ErrUnavailable)
	w.Restart(t)
	w.soon("a lock is granted", func(ctx context.Context) bool { return pass(ctx, l, "k") == nil })
	w.soon("a claim is granted", func(ctx context.Context) bool {
		rep, err := s.Claim(ctx, w.claim("record", "a"))
		return err == nil && rep.State == record.StateGranted
	})
}

func TestALockThatIsGoneIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose func(context.Context, *world) error
		want observe.LossReason
	}{
		"DEL":      {func(ctx context.Context, w *world) error { return w.rdb.Del(ctx, w.name("k")).Err() }, observe.LossDeleted},
		"FLUSHALL": {func(ctx context.Context, w *world) error { return w.rdb.FlushAll(ctx).Err() }, observe.LossDeleted},
		"taken over": {func(ctx context.Context, w *world) error {
			_, err := w.rdb.TxPipelined(ctx, func(tx redis.Pipeliner) error {
				tx.Del(ctx, w.name("k"))
				tx.HSet(ctx, w.name("k"), "another:1", 1)
				tx.PExpire(ctx, w.name("k"), w.Holds())
				return nil
			})
			return err
		}, observe.LossTakenOver},
	} {
		for found, find := range map[string]func(*core.Lease) error{
			"a check":   func(lease *core.Lease) error { return lease.Check(t.Context()) },
			"a release": func(lease *core.Lease) error { return lease.Release(t.Context()) },
		} {
			t.Run(name+", found by "+found, func(t *testing.T) {
				t.Parallel()
				w := alone(t)
				losses := make(chan core.Loss, 1)
				l := w.process(core.OnLost(func(x core.Loss) { losses <- x }))
				lease := w.lock(l, "k")
				owners, err := w.rdb.HKeys(t.Context(), w.name("k")).Result()
				if err != nil || len(owners) != 1 {
					t.Fatal(owners, err)
				}
				if err := c.lose(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				w.soon("the loss is found", func(context.Context) bool { return errors.Is(find(lease), core.ErrLost) })
				wantErr(t, lease.Release(t.Context()), core.ErrLost)
				if x := <-losses; x.Reason != c.want || x.Key != "k" || x.Token != lease.Token() || x.Owner != owners[0] || x.Held <= 0 {
					t.Errorf("OnLost got %v", x)
				}
				w.rdb.Del(t.Context(), w.name("k"))
				next := w.lock(l, "k")
				if next.Token() <= lease.Token() {
					t.Errorf("token %d after %d", next.Token(), lease.Token())
				}
				w.release(next)
			})
		}
	}
}

func TestAKeyThatIsNoLockIsRefusedWithAReason(t *testing.T) {
	t.Parallel()
	w := common(t)
	s := w.store()
	w.rdb.Set(t.Context(), w.name("k"), "mine", 0)
	_, err := s.Acquire(t.Context(), w.held("k", "a:1"))
	if !errors.Is(err, core.ErrKeyOccupied) || errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("%v; want ErrKeyOccupied, which does not pass by itself, and what the server has said", err)
	}
	if why := core.ReasonOf(t.Context(), err); why != reason.KeyOccupied || (&core.Refusal{Reason: why}).Retryable() {
		t.Errorf("the reason is %q, want a reason that does not invite to try again", why)
	}
	wantErr(t, w.renew(s, "k", "a:1"), core.ErrKeyOccupied)
	if w.rdb.Get(t.Context(), w.name("k")).Val() != "mine" {
		t.Error("the value was touched")
	}
	lease := w.lock(w.locker(s, core.Watchdog(w.Lapses())), "held")
	w.rdb.Set(t.Context(), w.name("held"), "mine", 0)
	wantErr(t, w.ended(lease), core.ErrLost)
	wantErr(t, lease.Release(t.Context()), core.ErrLost)
}

// The late requests are sent by hand, by their owners' names, as the network would deliver
// them: after all that came later.
func TestLateRequestsFreeReviveAndShortenNothing(t *testing.T) {
	t.Parallel()
	w := common(t)
	s := w.store()
	left := func() time.Duration { return w.rdb.PTTL(t.Context(), w.name("k")).Val() }

	first := w.take(s, w.held("k", "a:1"))
	wantErr(t, w.free(s, "k", "a:1"), nil)
	long := w.held("k", "b:1")
	long.TTL = time.Hour
	second := w.take(s, long)
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	wantErr(t, w.free(s, "k", "a:1"), driver.ErrNotOwner)
	wantErr(t, w.renew(s, "k", "a:1"), driver.ErrNotOwner)
	if rep := w.acquire(s, w.held("k", "a:1")); rep.Granted || rep.Holder != "b:1" {
		t.Errorf("a late acquire got %+v", rep)
	}
	// A shorter renewal and a repeated acquire of the holder itself.
	wantErr(t, w.renew(s, "k", "b:1"), nil)
	if rep := w.acquire(s, w.held("k", "b:1")); !rep.Granted || rep.Token != second.Token {
		t.Errorf("a repeated acquire got %+v, want the token %d again", rep, second.Token)
	}
	if d := left(); d < 30*time.Minute {
		t.Errorf("a late request has shortened the lease to %v", d)
	}
	wantErr(t, w.free(s, "k", "b:1"), nil)
	wantErr(t, w.free(s, "k", "b:1"), driver.ErrNotOwner)
}

// The lease of the holder lasts longer than the test: a waiter that sleeps for as long has
// missed the release.
func TestAWaiterHearsOfTheReleaseAfterItsSubscriptionWasKilled(t *testing.T) {
	t.Parallel()
	w := alone(t)
	ask := w.held("k", "gone:1")
	ask.TTL = time.Hour
	w.take(w.store(), ask)
	waiter := w.process()
	got := later(func() error { return pass(t.Context(), waiter, "k") })
	w.called(1)
	for range 3 {
		if err := w.rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		w.called(1)
	}
	// Killed and released in one breath: the message is lost for certain.
	if _, err := w.rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
		p.Del(t.Context(), w.name("k"))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.want("the waiter", got)
}

func TestAnExhaustedPoolOfTheApplicationDoesNotTouchTheLock(t *testing.T) {
	t.Parallel()
	w := alone(t)
	rdb := w.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
	s := w.over(rdb)
	popped := later(func() error { return rdb.BLPop(t.Context(), 0, "nothing").Err() })
	w.soon("the pool is exhausted", func(ctx context.Context) bool {
		list, err := w.rdb.ClientList(ctx).Result()
		return err == nil && strings.Contains(list, "cmd=blpop")
	})
	w.live(w.life(s, w.rdb, "k"), nil)
	w.rdb.RPush(t.Context(), "nothing", 1)
	w.want("what the application waits for", popped)
}
