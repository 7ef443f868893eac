//go:build integration

package rediswire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/internal/redistest"
)

// voter is a node with separate keys, and the results of its callbacks.
type voter struct {
	*Node
	t   *testing.T
	rdb *redis.Client
}

func newVoter(t *testing.T) voter {
	t.Helper()
	t.Parallel()
	srv, name := redistest.Common(t)
	return voterOf(t, srv.Client(t, patiently), name, func(Identity) error { return nil })
}

func voterOf(t *testing.T, rdb *redis.Client, prefix string, met func(Identity) error) voter {
	t.Helper()
	set := DefaultConfig()
	set.Prefix, set.Timeout = prefix, time.Minute
	n, err := NewNode(rdb, met, set)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	v := voter{n, t, rdb}
	v.remember()
	return v
}

// voterMark is the mark of the server.
const voterMark = "mark"

// remember gives the server its mark.
func (v voter) remember() {
	v.t.Helper()
	redistest.Eventually(v.t, time.Minute, func(ctx context.Context) error {
		return v.rdb.Set(ctx, v.mark, voterMark, 0).Err()
	})
}

// lock is the name of a key in Redis.
func (v voter) lock(key string) string { return v.store.names.lock(key) }

// left is what a key has left of its lease.
func (v voter) left(key string) time.Duration { return v.rdb.PTTL(v.t.Context(), v.lock(key)).Val() }

func (v voter) propose(p Proposal) (Vote, error) {
	v.t.Helper()
	type outcome struct {
		vote Vote
		err  error
	}
	got := make(chan outcome, 2)
	if p.Key == "" {
		p.Key = "k"
	}
	if p.TTL == 0 {
		p.TTL = time.Hour
	}
	p.Keep = 2 * time.Hour
	if p.Ends == 0 {
		p.Ends = 1 << 53
	}
	if p.Mark == "" {
		p.Mark = voterMark
	}
	p.Deadline = time.Now().Add(time.Minute)
	v.Propose(p, func(vote Vote, err error) { got <- outcome{vote, err} })
	o := <-got
	return o.vote, o.err
}

// vote is propose for a node that answers.
func (v voter) vote(owner string, token int64) Vote {
	v.t.Helper()
	vote, err := v.propose(Proposal{Owner: owner, Token: token})
	if err != nil {
		v.t.Fatal(err)
	}
	return vote
}

func (v voter) withdraw(w Withdrawal) error {
	v.t.Helper()
	got := make(chan error, 2)
	w.Key, w.TTL, w.Keep = cmp.Or(w.Key, "k"), time.Hour, 2*time.Hour
	w.Deadline = time.Now().Add(time.Minute)
	v.Withdraw(w, func(_ driver.Waiters, err error) { got <- err })
	return <-got
}

// A user without the right to a channel gives a lock up nevertheless, and the log says so.
func TestAWithdrawalThatMayNotBeAnnouncedIsDone(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	if err := srv.Client(t).Do(t.Context(), "ACL", "SETUSER", "quiet", "on", ">p", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	quiet := func(o *redis.Options) { o.Username, o.Password = "quiet", "p" }
	v := voterOf(t, srv.Client(t, patiently, quiet), "votes", func(Identity) error { return nil })
	var log logtest.Log
	v.store.log = logs.To(log.Logger())
	for token := range int64(2) {
		v.vote("a", 1000+token)
		if vote, err := v.propose(Proposal{Owner: "b", Token: 2000, Waiter: "b"}); err != nil || !vote.Listed {
			t.Errorf("a proposal that waits: %+v, %v", vote, err)
		}
		if err := v.withdraw(Withdrawal{Owner: "a", Token: 1000 + token}); err != nil {
			t.Errorf("a withdrawal: %v", err)
		}
	}
	v.store.log.Warn("the last line") // lines are written in their order, on another goroutine
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		if log.Count("the last line") == 0 {
			return errors.New("the last line is not written")
		}
		return nil
	})
	if n := log.Count("refused to announce"); n != 1 {
		t.Errorf("the log says %d times that announcements are refused; want once", n)
	}
}

func TestANodeTakesOnlyTokensAboveAllThatItHasSeen(t *testing.T) {
	v := newVoter(t)
	if vote := v.vote("a", 0); vote.Granted || vote.Holder != "" || vote.Token != 0 || vote.Clock == 0 {
		t.Errorf("a proposal of nothing: %+v", vote)
	}
	if vote := v.vote("a", 1000); !vote.Granted || vote.Token != 1000 {
		t.Fatalf("first proposal: %+v", vote)
	}
	if vote := v.vote("a", 1000); !vote.Granted || vote.Token != 1000 {
		t.Errorf("the same again: %+v", vote)
	}
	if vote := v.vote("b", 2000); vote.Granted || vote.Holder != "a" || vote.TTL <= 0 {
		t.Errorf("another owner: %+v", vote)
	}
	// A repeated proposal leaves the lease alone, a higher one begins it anew, a
	// lower one comes late.
	v.rdb.PExpire(t.Context(), v.lock("k"), 10*time.Minute)
	v.vote("a", 1000)
	if ttl := v.left("k"); ttl > 10*time.Minute {
		t.Errorf("the repeated proposal extended the lease to %v", ttl)
	}
	if vote := v.vote("a", 1001); !vote.Granted || vote.Token != 1001 {
		t.Errorf("a higher one: %+v", vote)
	}
	if ttl := v.left("k"); ttl < 50*time.Minute {
		t.Errorf("the higher proposal left a lease of %v", ttl)
	}
	if vote := v.vote("a", 1000); !vote.Granted || vote.Token != 1001 {
		t.Errorf("a lower one: %+v", vote)
	}
	// Giving up an earlier proposal does not touch the later.
	if err := v.withdraw(Withdrawal{Owner: "a", Limit: 1000}); err != nil {
		t.Error(err)
	}
	if vote := v.vote("b", 2000); vote.Holder != "a" {
		t.Errorf("after the withdrawal of an earlier proposal: %+v", vote)
	}
	if err := v.withdraw(Withdrawal{Owner: "a", Token: 1500}); err != nil {
		t.Error(err)
	}
	wantErr(t, v.withdraw(Withdrawal{Owner: "a"}), driver.ErrNotOwner)
	if vote := v.vote("b", 1500); vote.Granted || vote.Holder != "" || vote.Token != 1500 {
		t.Errorf("the token that was given out last, again: %+v", vote)
	}
	if vote := v.vote("b", 1501); !vote.Granted {
		t.Errorf("the next: %+v", vote)
	}
}

// A server that has lost its data, or has the data of another run, does not vote.
func TestANodeWithoutItsMarkDoesNothing(t *testing.T) {
	v := newVoter(t)
	for _, mark := range []string{"", "other", voterMark + " "} {
		var err error
		if mark == "" {
			err = v.rdb.Del(t.Context(), v.mark).Err()
		} else {
			err = v.rdb.Set(t.Context(), v.mark, mark, 0).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
		vote, err := v.propose(Proposal{Owner: "a", Token: 1000})
		if err != nil || !vote.Unmarked || vote.Granted || vote.Clock == 0 {
			t.Errorf("with the mark %q: %+v, %v", mark, vote, err)
		}
		if vote := v.vote("a", 0); vote.Unmarked || vote.Clock == 0 {
			t.Errorf("a question that asks for no vote, with the mark %q: %+v", mark, vote)
		}
	}
	if n := v.rdb.Exists(t.Context(), v.lock("k"), v.lock("k")+fenceSuffix).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

func TestAMarkIsReplacedOnlyIfItIsTheOneThatWasSeen(t *testing.T) {
	t.Parallel()
	srv, name := redistest.Common(t)
	var met Identity
	v := voterOf(t, srv.Client(t, patiently), name, func(id Identity) error {
		met = id
		return nil
	})
	v.rdb.Del(t.Context(), v.mark)
	for _, c := range []struct{ from, to, want string }{
		{"", "a", "a"}, {"", "b", "a"}, {"b", "c", "a"}, {"a", "d", "d"},
	} {
		if err := v.Mark(t.Context(), c.from, c.to); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		if err := v.Meet(t.Context()); err != nil || met.Mark != c.want || met.RunID == "" || met.Asked.Before(before) {
			t.Errorf("from %q to %q: %+v, %v; want the mark %q", c.from, c.to, met, err, c.want)
		}
	}
}

// A server that was stopped finds proposals of the past when it runs again.
func TestANodeDoesNothingForAProposalThatHasEnded(t *testing.T) {
	v := newVoter(t)
	clock := v.vote("a", 0).Clock
	past, future := clock-1, clock+time.Hour.Microseconds()
	vote, err := v.propose(Proposal{Owner: "a", Token: 1000, Ends: past, Waiter: "w"})
	if err != nil || !vote.Ended || vote.Granted || vote.Clock < clock {
		t.Errorf("past its end: %+v, %v", vote, err)
	}
	if n := v.rdb.Exists(t.Context(), v.lock("k"), v.lock("k")+fenceSuffix).Val(); n != 0 {
		t.Errorf("%d keys are left of it", n)
	}
	if vote, err := v.propose(Proposal{Owner: "a", Token: 1000, Ends: future}); err != nil || !vote.Granted || vote.Ended {
		t.Errorf("before its end: %+v, %v", vote, err)
	}
	// A new vote of the holder, and the question of a waiter.
	if vote, err := v.propose(Proposal{Owner: "a", Token: 2000, Ends: past}); err != nil || !vote.Ended || vote.Granted {
		t.Errorf("a higher one past its end: %+v, %v", vote, err)
	}
	if vote, err := v.propose(Proposal{Owner: "b", Token: 2000, Ends: past, Waiter: "w"}); err != nil || !vote.Ended || vote.Holder != "" {
		t.Errorf("another owner's past its end: %+v, %v", vote, err)
	}
	if fields := v.rdb.HGetAll(t.Context(), v.lock("k")).Val(); len(fields) != 1 || fields["a"] != "1000" {
		t.Errorf("the lock is %v", fields)
	}
}

func TestAConfirmationRaisesAVoteThatIsTooOld(t *testing.T) {
	v := newVoter(t)
	// One, and several in one call.
	for _, keys := range [][]string{{"k"}, {"k1", "k2", "k3", "k4"}} {
		batch := make([]Confirmation, len(keys))
		for i, key := range keys {
			if vote, err := v.propose(Proposal{Key: key, Owner: "a", Token: 1000 + int64(i)}); err != nil || !vote.Granted {
				t.Fatalf("%s: %+v, %v", key, vote, err)
			}
			v.rdb.PExpire(t.Context(), v.lock(key), 10*time.Minute)
			batch[i] = Confirmation{driver.Renewal{Key: key, Owner: "a", TTL: time.Hour}, 2000 + int64(i)}
		}
		confirm := func() map[int]error {
			got := make(map[int]error)
			v.Confirm(t.Context(), batch, func(i int, _ bool, err error) { got[i] = err })
			return got
		}
		for i, err := range confirm() {
			if err != nil {
				t.Errorf("%s: %v", keys[i], err)
			}
		}
		for i, key := range keys {
			want := fmt.Sprint(2000 + i)
			if token := v.rdb.HGet(t.Context(), v.lock(key), "a").Val(); token != want {
				t.Errorf("%s: the vote is for %s, want %s", key, token, want)
			}
			if ttl := v.left(key); ttl < 50*time.Minute {
				t.Errorf("%s: a lease of %v", key, ttl)
			}
		}
		last := len(keys) - 1
		if err := v.withdraw(Withdrawal{Key: keys[last], Owner: "a", Limit: 1999}); err != nil {
			t.Error(err)
		}
		for i := range batch {
			batch[i].Ballot = 0
		}
		if err := confirm()[last]; err != nil {
			t.Errorf("after the withdrawal of an earlier proposal: %v", err)
		}
		if err := v.withdraw(Withdrawal{Key: keys[last], Owner: "a", Limit: 2000 + int64(last)}); err != nil {
			t.Errorf("a confirmation without a ballot has changed the vote: %v", err)
		}
		if got := confirm(); !errors.Is(got[last], driver.ErrDeleted) || len(got) != len(keys) {
			t.Errorf("after its withdrawal: %v", got)
		}
	}
}

func TestTheFenceOfAHolderThatSaidNothingCountsOn(t *testing.T) {
	v := newVoter(t)
	v.vote("a", 1000)
	v.rdb.Del(t.Context(), v.lock("k")) // as if its lease had ended
	vote := v.vote("b", 1001)
	if vote.Granted || vote.Holder != "" || vote.Token <= 1001 {
		t.Fatalf("in its process it may have gone beyond that: %+v", vote)
	}
	if later := v.vote("b", 0); later.Token <= vote.Token {
		t.Errorf("highest token %d after %d", later.Token, vote.Token)
	}
}

func TestEveryConnectionOfANodeIsIntroducedFirst(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var mu sync.Mutex
	var met []string
	refuse := false
	v := voterOf(t, srv.Client(t, patiently), "interlock", func(id Identity) error {
		mu.Lock()
		defer mu.Unlock()
		if refuse {
			return errors.New("not this one")
		}
		met = append(met, id.RunID)
		if id.Clock == 0 {
			t.Error("it does not say its time")
		}
		return nil
	})
	v.vote("a", 1000)
	srv.Restart(t)
	v.remember()
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		_, err := v.propose(Proposal{Owner: "a", Token: 1000})
		return err
	})
	mu.Lock()
	if len(met) < 2 || met[0] == met[len(met)-1] {
		t.Errorf("introduced as %q over a restart", met)
	}
	refuse = true
	mu.Unlock()
	srv.Restart(t)
	vote, err := v.propose(Proposal{Owner: "a", Token: 1000})
	wantErr(t, err, driver.ErrUnavailable)
	// A reply that was on its way when the old run ended is unknown; what meets
	// the new one is known never to have been sent.
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		if vote, err = v.propose(Proposal{Owner: "a", Token: 1000}); err == nil || vote.Unknown {
			return errors.Join(errors.New("it may have been sent"), err)
		}
		return nil
	})
	if n := v.rdb.Exists(t.Context(), v.lock("k")).Val(); n != 0 {
		t.Error("a server that was not accepted has voted")
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}

// A node has to be one server: through a proxy that distributes keys the identity would come
// from one server, and the votes from others.
func TestANodeIsNotSeveralServers(t *testing.T) {
	t.Parallel()
	servers := redistest.Independent(t, 2)
	proxy := redistest.Sharding(t, servers, func(key string) int { return int(key[len(key)-2] % 2) }, "HELLO")
	rdb := servers[0].Client(t, patiently, func(o *redis.Options) { o.Addr = proxy.Addr() })
	v := voterOf(t, rdb, "interlock", func(Identity) error { return nil })
	for range 2 {
		vote, err := v.propose(Proposal{Owner: "a", Token: 1})
		if vote.Granted || !errors.Is(err, driver.ErrConfig) || !strings.Contains(err.Error(), errDivided.Error()) {
			t.Errorf("%+v, %v", vote, err)
		}
	}
	if found, err := v.Check(t.Context()); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("Check: %q, %v", found, err)
	}
}
