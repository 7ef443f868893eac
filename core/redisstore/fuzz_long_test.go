//go:build long

package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/rediswire"
	"github.com/interlock-go/interlock/core/redisstore"
)

// claimsTooMuch finds lengths for which go-redis makes room, or panics, before
// anything of that length has come. That is beyond what this package can bound.
var claimsTooMuch = regexp.MustCompile(`[*~>%|][+]?\d{3,}|[$!=][+]?\d{6,}`)

// replies are seeds: what a server says that is of the right form, nearly of
// it, or of another.
var replies = []string{
	":1700000000000000\r\n", ":1\r\n", ":2\r\n", ":0\r\n", ":-5\r\n", ":9223372036854775807\r\n", ":99999999999999999999\r\n",
	"*3\r\n$3\r\na:1\r\n:30000\r\n:1\r\n", "*3\r\n$3\r\na:1\r\n:-1\r\n:0\r\n", "*3\r\n:1\r\n:2\r\n:3\r\n", "*3\r\n:1\r\n$-1\r\n:3\r\n",
	"*3\r\n$3\r\na:1\r\n:9223372036854775807\r\n:1\r\n", "*5\r\n:0\r\n$3\r\na:1\r\n:5\r\n:1\r\n:5\r\n", "*3\r\n:1\r\n+x\r\n:5\r\n",
	"$-1\r\n", "*-1\r\n", "_\r\n", "*0\r\n", "$0\r\n\r\n", "+OK\r\n", "#t\r\n", ",1.7e15\r\n", "(1700000000000000\r\n",
	"=8\r\ntxt:1700\r\n", "~1\r\n:5000\r\n", "%1\r\n+a\r\n:5000\r\n", "|1\r\n+a\r\n:1\r\n:1700000000000000\r\n", ">2\r\n+x\r\n:1\r\n:1700000000000000\r\n",
	"-ERR no\r\n", "-\r\n", "-NOSCRIPT x\r\n", "-MOVED 1 127.0.0.1:1\r\n", "-ASK 1 :0\r\n", "-TRYAGAIN x\r\n", "-LOADING x\r\n", "-READONLY x\r\n",
	"-BUSY \r\n", "-NOPERM x\r\n", "-WRONGTYPE x\r\n", "!5\r\nERR x\r\n", "-redis: nil\r\n", "-OOM x\r\n", "-interlock: x\r\n",
	"*1\r\n*1\r\n*1\r\n*1\r\n", "$10\r\nabc", ":17", "", "\r\n", "\x00\xff", "HTTP/1.1 400 Bad Request\r\n\r\n",
	"+completed t\r\n", "$11\r\ncompleted t\r\n", "+completed x\r\n", "+completed \r\n", "$10\r\ncompleted \r\n",
	"+marked\r\n", "+lost\r\n", "+renewed\r\n", "+done\r\n", "+abandoned\r\n",
	"*3\r\n$5\r\nclaim\r\n$7\r\ngranted\r\n:1\r\n", "*3\r\n$5\r\nclaim\r\n$7\r\ngranted\r\n$1\r\n1\r\n", "*3\r\n$5\r\nclaim\r\n$9\r\ncompleted\r\n$1\r\nx\r\n",
	"*4\r\n$5\r\nclaim\r\n$9\r\nin-flight\r\n:5\r\n:1\r\n", "*2\r\n$6\r\ncommit\r\n$6\r\nstored\r\n", "*2\r\n$5\r\nclaim\r\n$-1\r\n", "*2\r\n:1\r\n:2\r\n",
	"*3\r\n$6\r\ncommit\r\n$9\r\ncompleted\r\n:1\r\n", "*2\r\n*1\r\n+claim\r\n+granted\r\n",
}

// calls are all kinds of requests that get a reply. Each returns a number from an
// accepted reply, if any: the fencing token, for a renewal its outcome, for a claim its
// generation.
var calls = []struct {
	name string
	call func(*redisstore.Store) (int64, error)
}{
	{"Acquire", func(s *redisstore.Store) (int64, error) {
		late := make(chan driver.Reply, 2)
		rep, err := s.Acquire(context.Background(), driver.AcquireRequest{
			Key: "k", Owner: "a:1", TTL: time.Minute, Waiter: "a", Deadline: soon(),
			Late: func(r driver.Reply, _ error) { late <- r },
		})
		if errors.Is(err, driver.ErrPending) {
			rep = <-late
		}
		if rep.Granted && rep.Token <= 2 {
			return -1, errors.New("granted with a token that is none")
		}
		return granted(rep.Granted, rep.Token), err
	}},
	{"Release", func(s *redisstore.Store) (int64, error) {
		_, err := s.Release(context.Background(), driver.ReleaseRequest{Key: "k", Owner: "a:1", Token: 5, Remember: true, Deadline: soon()})
		return 0, err
	}},
	{"Renew", func(s *redisstore.Store) (int64, error) { return renewBy(s, false) }},
	{"Renew asked", func(s *redisstore.Store) (int64, error) { return renewBy(s, true) }},
	{"Claim", func(s *redisstore.Store) (int64, error) {
		late := make(chan record.ClaimReply, 2)
		rep, err := s.Claim(context.Background(), record.ClaimRequest{
			ID: "id", Token: "t", Lease: time.Minute, Retention: time.Hour, Tombstone: true, Waits: true, Deadline: soon(),
			Late: func(r record.ClaimReply, _ error) { late <- r },
		})
		if errors.Is(err, driver.ErrPending) {
			rep = <-late
		}
		if rep.State == record.StateGranted && rep.Generation < 1 {
			return -1, errors.New("granted with a generation that is none")
		}
		return granted(rep.State == record.StateGranted, rep.Generation), err
	}},
	{"Commit", func(s *redisstore.Store) (int64, error) {
		_, err := s.Commit(context.Background(), record.CommitRequest{
			ID: "id", Token: "t", Generation: 1, Response: []byte("r"), Retention: time.Hour, Deadline: soon(),
		})
		return 0, err
	}},
	{"Mark", func(s *redisstore.Store) (int64, error) {
		return 0, s.Mark(context.Background(), record.MarkRequest{ID: "id", Token: "t", Lease: time.Minute, Retention: time.Hour, Deadline: soon()})
	}},
	{"Abandon", func(s *redisstore.Store) (int64, error) {
		return 0, s.Abandon(context.Background(), record.AbandonRequest{ID: "id", Token: "t", Deadline: soon()})
	}},
	{"Extend", func(s *redisstore.Store) (n int64, err error) {
		ctx, cancel := context.WithDeadline(context.Background(), soon())
		defer cancel()
		s.Extend(ctx, []record.Extension{{ID: "id", Token: "t", Lease: time.Minute, Retention: time.Hour}}, func(_ int, e error) { err = e })
		return 0, err
	}},
}

func soon() time.Time { return time.Now().Add(40 * time.Millisecond) }

func granted(yes bool, token int64) int64 {
	if yes {
		return token
	}
	return 0
}

func renewBy(s *redisstore.Store, asked bool) (n int64, err error) {
	ctx, cancel := context.WithDeadline(context.Background(), soon())
	defer cancel()
	s.Renew(ctx, []driver.Renewal{{Key: "k", Owner: "a:1", TTL: time.Minute, Asked: asked}}, func(_ int, contended bool, e error) {
		if err = e; err == nil {
			n = 1
		}
		if contended {
			n = 2
		}
	})
	return n, err
}

// FuzzReplies has a server answer anything to each kind of request. None panics, waits
// beyond its bounds, or takes another answer for a grant.
func FuzzReplies(f *testing.F) {
	for i, r := range replies {
		f.Add([]byte(r), uint16(0))
		f.Add([]byte(r), uint16(4)) // a claim
		f.Add([]byte(r), uint16(i%(2*ends*len(calls))))
		f.Add([]byte(r), uint16(7*i%(2*ends*len(calls))))
	}
	srv := newHostile(f)
	quiet := slog.New(slog.DiscardHandler)
	f.Fuzz(func(t *testing.T, reply []byte, how uint16) {
		if len(reply) > 1<<12 || claimsTooMuch.Match(reply) {
			return
		}
		call, then, resp3 := calls[int(how)%len(calls)], int(how)/len(calls)%ends, int(how)/len(calls)/ends%2 == 1
		srv.set(misdeed{reply, then, resp3})
		before := runtime.NumGoroutine()
		rdb := srv.client(t, map[bool]int{false: 2, true: 3}[resp3])
		store, err := redisstore.New(rdb, redisstore.Timeout(10*time.Millisecond), redisstore.Logger(quiet))
		if err != nil {
			t.Fatal(err)
		}
		var token int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			token, err = call.call(store)
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s, %q, %d: no end", call.name, reply, then)
		}
		if token < 0 || token > 0 && !says(reply, token) {
			t.Errorf("%s, %q, %d: granted with %d, %v", call.name, reply, then, token, err)
		}
		srv.wantNothingLeft(t, before, store, rdb)
	})
}

// says reports whether a reply has a number.
func says(reply []byte, n int64) bool {
	for line := range bytes.Lines(reply) {
		if got, err := strconv.ParseInt(strings.TrimSpace(strings.TrimPrefix(string(line), ":")), 10, 64); err == nil && line[0] == ':' && got == n {
			return true
		}
	}
	return false
}

// FuzzMessages has a server send anything to a subscriber, and then a correct message,
// if need be on the next connection. The subscriber receives the correct message.
func FuzzMessages(f *testing.F) {
	for _, m := range append([]string{
		"*3\r\n$7\r\nmessage\r\n$4\r\nover\r\n", "*3\r\n:1\r\n:2\r\n:3\r\n", "*0\r\n", "*1\r\n$7\r\nmessage\r\n",
		"*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n$1\r\nx\r\n", "*3\r\n$11\r\nunsubscribe\r\n$19\r\ninterlock:wanted:w1\r\n:0\r\n",
		"*3\r\n$12\r\nsunsubscribe\r\n$19\r\ninterlock:wanted:w1\r\n:0\r\n", "*3\r\n$7\r\nmessage\r\n:1\r\n*1\r\n:1\r\n",
		"*3\r\n$7\r\nmessage\r\n$19\r\ninterlock:wanted:w1\r\n*1\r\n:1\r\n", "*2\r\n$4\r\npong\r\n:1\r\n", "*4\r\n$8\r\npmessage\r\n:1\r\n:1\r\n:1\r\n",
		"*3\r\n$7\r\nmessage\r\n$19\r\ninterlock:wanted:w1\r\n$3\r\n,,,\r\n", "-MOVED 1 127.0.0.1:1\r\n",
	}, replies...) {
		f.Add([]byte(m), false)
		f.Add(append([]byte(">"), m[min(1, len(m)):]...), true)
	}
	srv := newHostile(f)
	quiet := slog.New(slog.DiscardHandler)
	f.Fuzz(func(t *testing.T, said []byte, resp3 bool) {
		if len(said) > 1<<12 || claimsTooMuch.Match(said) {
			return
		}
		srv.set(misdeed{reply: said, resp3: resp3})
		before := runtime.NumGoroutine()
		rdb := srv.client(t, map[bool]int{false: 2, true: 3}[resp3])
		store, err := redisstore.New(rdb, redisstore.Timeout(time.Second), redisstore.Logger(quiet))
		if err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{}, 1)
		stop := store.Calls("w1", func(c driver.Call) {
			if c.Key == "over" {
				select {
				case over <- struct{}{}:
				default:
				}
			}
		})
		select {
		case <-over:
		case <-time.After(20 * time.Second):
			t.Errorf("%q: nothing heard", said)
		}
		stop()
		srv.wantNothingLeft(t, before, store, rdb)
	})
}

// FuzzVotes has a server of a quorum answer anything. A vote counts only for the
// proposal that was sent.
func FuzzVotes(f *testing.F) {
	for i, r := range append([]string{
		"*3\r\n:1\r\n:1700000000000000\r\n:5\r\n", "*3\r\n:2\r\n:1700000000000000\r\n:5\r\n", "*3\r\n:1\r\n:1700000000000000\r\n:0\r\n",
		"*2\r\n:3\r\n:1700000000000000\r\n", "*2\r\n:4\r\n:1700000000000000\r\n",
	}, replies...) {
		f.Add([]byte(r), uint8(i%(2*ends)))
	}
	srv := newHostile(f)
	quiet := slog.New(slog.DiscardHandler)
	f.Fuzz(func(t *testing.T, reply []byte, how uint8) {
		if len(reply) > 1<<12 || claimsTooMuch.Match(reply) {
			return
		}
		srv.set(misdeed{reply: reply, then: int(how) % ends})
		before := runtime.NumGoroutine()
		rdb := srv.client(t, 2)
		set := rediswire.DefaultConfig()
		set.Timeout, set.Log = 10*time.Millisecond, logs.To(quiet)
		node, err := rediswire.NewNode(rdb, func(rediswire.Identity) error { return nil }, set)
		if err != nil {
			t.Fatal(err)
		}
		const token = 1_700_000_000_000_000
		over := make(chan rediswire.Vote, 2)
		if int(how)/ends%2 == 0 {
			node.Propose(rediswire.Proposal{Key: "k", Owner: "a:1", TTL: time.Minute, Keep: time.Hour, Token: token, Deadline: soon(), Ends: 1 << 53},
				func(v rediswire.Vote, _ error) { over <- v })
		} else {
			node.Withdraw(rediswire.Withdrawal{Key: "k", Owner: "a:1", TTL: time.Minute, Keep: time.Hour, Deadline: soon()},
				func(driver.Waiters, error) { over <- rediswire.Vote{} })
		}
		select {
		case v := <-over:
			if v.Granted && v.Token == token && !says(reply, token) {
				t.Errorf("%q, %d: taken for a vote", reply, how)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%q, %d: no end", reply, how)
		}
		srv.wantNothingLeft(t, before, node, rdb)
	})
}
