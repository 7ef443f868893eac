package rediswire

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// voter is a node and what its callbacks said.
type voter struct {
	*Node
	t *testing.T
}

func newVoter(t *testing.T, rdb *redis.Client, met func(Identity) error) voter {
	t.Helper()
	set := DefaultConfig()
	set.Timeout = 10 * time.Second // for what a busy machine does in more than a second
	n, err := NewNode(rdb, met, set)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return voter{n, t}
}

func anybody(Identity) error { return nil }

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
		p.TTL = time.Minute
	}
	p.Deadline = time.Now().Add(30 * time.Second)
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
	w.Key, w.TTL, w.Deadline = "k", time.Minute, time.Now().Add(30*time.Second)
	v.Withdraw(w, func(_ string, err error) { got <- err })
	return <-got
}

func TestANodeTakesOnlyTokensAboveAllThatItHasSeen(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	v := newVoter(t, rdb, anybody)

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
	rdb.PExpire(t.Context(), "interlock:{k}", 10*time.Second)
	v.vote("a", 1000)
	if ttl := rdb.PTTL(t.Context(), "interlock:{k}").Val(); ttl > 10*time.Second {
		t.Errorf("the repeated proposal extended the lease to %v", ttl)
	}
	if vote := v.vote("a", 1001); !vote.Granted || vote.Token != 1001 {
		t.Errorf("a higher one: %+v", vote)
	}
	if ttl := rdb.PTTL(t.Context(), "interlock:{k}").Val(); ttl < 50*time.Second {
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

func TestAConfirmationRaisesAVoteThatIsTooOld(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	v := newVoter(t, rdb, anybody)
	// One, and several in one call.
	for _, keys := range [][]string{{"k"}, {"k1", "k2", "k3", "k"}} {
		rdb.FlushAll(t.Context())
		batch := make([]Confirmation, len(keys))
		for i, key := range keys {
			if vote, err := v.propose(Proposal{Key: key, Owner: "a", Token: 1000 + int64(i)}); err != nil || !vote.Granted {
				t.Fatalf("%s: %+v, %v", key, vote, err)
			}
			rdb.PExpire(t.Context(), "interlock:{"+key+"}", 10*time.Second)
			batch[i] = Confirmation{driver.Renewal{Key: key, Owner: "a", TTL: time.Minute}, 2000 + int64(i)}
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
			key, want := "interlock:{"+key+"}", fmt.Sprint(2000+i)
			if token := rdb.HGet(t.Context(), key, "a").Val(); token != want {
				t.Errorf("%s: the vote is for %s, want %s", key, token, want)
			}
			if ttl := rdb.PTTL(t.Context(), key).Val(); ttl < 50*time.Second {
				t.Errorf("%s: a lease of %v", key, ttl)
			}
		}
		if err := v.withdraw(Withdrawal{Owner: "a", Limit: 1999}); err != nil {
			t.Error(err)
		}
		for i := range batch {
			batch[i].Ballot = 0
		}
		last := len(keys) - 1
		if err := confirm()[last]; err != nil {
			t.Errorf("after the withdrawal of an earlier proposal: %v", err)
		}
		if err := v.withdraw(Withdrawal{Owner: "a", Limit: 2000 + int64(last)}); err != nil {
			t.Errorf("a confirmation without a ballot has changed the vote: %v", err)
		}
		if got := confirm(); !errors.Is(got[last], driver.ErrDeleted) || len(got) != len(keys) {
			t.Errorf("after its withdrawal: %v", got)
		}
	}
}

func TestTheFenceOfAHolderThatSaidNothingCountsOn(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	v := newVoter(t, rdb, anybody)
	v.vote("a", 1000)
	rdb.Del(t.Context(), "interlock:{k}") // as if its lease had ended
	vote := v.vote("b", 1001)
	if vote.Granted || vote.Holder != "" || vote.Token <= 1001 {
		t.Fatalf("in its process it may have gone beyond that: %+v", vote)
	}
	if later := v.vote("b", 0); later.Token <= vote.Token {
		t.Errorf("highest token %d after %d", later.Token, vote.Token)
	}
}

func TestEveryConnectionOfANodeIsIntroducedFirst(t *testing.T) {
	srv := redistest.Start(t)
	var mu sync.Mutex
	var met []string
	refuse := false
	v := newVoter(t, srv.Client(t), func(id Identity) error {
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
	redistest.Eventually(t, 10*time.Second, func(context.Context) error {
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
	wantErr(t, err, core.ErrUnavailable)
	// A reply that was on its way when the old run ended is unknown; what meets
	// the new one is known never to have been sent.
	redistest.Eventually(t, 10*time.Second, func(context.Context) error {
		if vote, err = v.propose(Proposal{Owner: "a", Token: 1000}); err == nil || vote.Unknown {
			return errors.Join(errors.New("it may have been sent"), err)
		}
		return nil
	})
	if n := srv.Client(t).Exists(t.Context(), "interlock:{k}").Val(); n != 0 {
		t.Error("a server that was not accepted has voted")
	}
}

func TestNewNodeTakesSingleServersOnly(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	_, err := NewNode(cluster, anybody, DefaultConfig())
	wantErr(t, err, core.ErrConfig)
	_, err = NewNode(nil, anybody, DefaultConfig())
	wantErr(t, err, core.ErrConfig)
	single := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer single.Close()
	set := DefaultConfig()
	set.Replicas, set.Within = 1, time.Second
	_, err = NewNode(single, anybody, set)
	wantErr(t, err, core.ErrConfig)
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}
