//go:build integration

package redisstore_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
)

// waits has another process wait for a lock in the background.
func (w *world) waits(l *core.Locker, key string) (leave func()) {
	ctx, leave := context.WithCancel(w.t.Context())
	go func() {
		if lease, err := l.Lock(ctx, key); err == nil {
			_ = lease.Release(context.Background())
		}
	}()
	return leave
}

// told fails the test if the holder of a lease is not told that others wait.
func (w *world) told(lease *core.Lease) {
	w.t.Helper()
	select {
	case <-lease.Wanted():
	case <-time.After(w.Patience()):
		w.t.Error("the holder is not told that another process waits")
	}
}

// The leases are long: no renewal tells it in time. The user has the documented rights.
func TestRedisNotifiesAHolderThatAnotherProcessWaits(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*redis.Options){
		"RESP3": func(*redis.Options) {}, "RESP2": func(o *redis.Options) { o.Protocol = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := alone(t)
			w.user()
			a, b := w.locker(w.store(restricted, change)), w.locker(w.store(restricted, change))
			for i := range 3 { // the first waits for the subscription, too
				lease := w.lock(a, fmt.Sprint("k", i), core.Watchdog(time.Hour), core.Attentive())
				leave := w.waits(b, fmt.Sprint("k", i))
				w.told(lease)
				w.release(lease)
				leave()
			}
			if denied := w.Denials(w.t); len(denied) != 0 {
				t.Errorf("refused by the server:\n%s", strings.Join(denied, "\n"))
			}
		})
	}
}

// Without the rights to the channel the next renewal tells it.
func TestAHolderIsToldWithARenewalWhereNothingCanBeSaid(t *testing.T) {
	t.Parallel()
	for name, right := range map[string]string{"nothing is said": "-publish", "nothing is heard": "-subscribe"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := alone(t)
			w.user()
			w.tell("ACL", "SETUSER", "interlock", right)
			a, b := w.locker(w.store(restricted)), w.locker(w.store(restricted))
			lease := w.lock(a, "k", core.Watchdog(3*w.Lapses()), core.Attentive())
			defer w.waits(b, "k")()
			w.told(lease)
			w.release(lease)
		})
	}
}

// After the subscription was cut off, the locker looks, since it may have missed something.
func TestAHolderIsToldWhatWasSaidWhileItsSubscriptionWasAway(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.user()
	s := w.store(restricted)
	a, b := w.locker(w.store(restricted)), w.locker(s)
	lease := w.lock(a, "k", core.Watchdog(time.Hour), core.Attentive())
	first := w.lock(a, "first", core.Watchdog(time.Hour), core.Attentive())
	leave := w.waits(b, "first")
	w.told(first) // it is subscribed
	leave()
	w.tell("ACL", "SETUSER", "interlock", "-subscribe")
	w.tell("CLIENT", "KILL", "TYPE", "pubsub")
	ask := driver.AcquireRequest{Key: "k", Owner: "b:1", TTL: w.Holds(), Waiter: "b"} // once
	if rep, err := s.Acquire(t.Context(), ask); err != nil || !rep.Listed {
		t.Fatalf("%+v, %v", rep, err)
	}
	w.tell("ACL", "SETUSER", "interlock", "+subscribe")
	w.told(lease)
	w.release(lease)
	w.release(first)
}

// A free lock costs an attentive caller the same as any other, and a refusal one message more.
func TestCommandsOfAnAttentiveHolder(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store()
	count := func(owner string) (free, refused map[string]int64) {
		ask := func(key, owner, waiter string) int64 {
			rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: owner, TTL: w.Holds(), Waiter: driver.Waiter(waiter)})
			if err != nil {
				t.Fatal(err)
			}
			return rep.Token
		}
		_, free = w.undisturbed(func(try int) {
			key := fmt.Sprint(owner, "free", try)
			_, err := s.Release(t.Context(), driver.ReleaseRequest{Key: key, Owner: owner, Token: ask(key, owner, ""), TTL: w.Holds()})
			if err != nil {
				t.Fatal(err)
			}
		})
		_, refused = w.undisturbed(func(try int) {
			key := fmt.Sprint(owner, "refused", try)
			ask(key, owner, "")
			ask(key, "b:1", "waiter")
			ask(key, "b:2", "second")
		})
		return free, refused
	}
	free, refused := count("a:1")
	attentive, told := count(driver.Attentive("a:1"))
	if refused["publish"]++; !maps.Equal(free, attentive) || !maps.Equal(refused, told) {
		t.Errorf("free: %v, attentive %v; refused, with a message: %v, attentive %v", free, attentive, refused, told)
	}
}

// A release offers nothing that the server does not keep, and with the documented rights it does.
func TestALockThatIsNotKeptIsNotOffered(t *testing.T) {
	t.Parallel()
	for right, offered := range map[string]bool{"+@all": true, "-pexpire": false, "-hset": false, "-set": false, "-time": false, "-publish": false} {
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			w := alone(t)
			w.user()
			all, s := w.store(), w.store(restricted)
			const id = "0123456789abcdef0123456789abcdef"
			told, reached := make(chan driver.Call, 10), new(atomic.Bool)
			defer all.Calls(id, takes(told, reached))()
			w.soon("the store reaches the locker", func(context.Context) bool { return reached.Load() })
			token := w.take(all, w.held("k", "a:1")).Token
			waiter := driver.NewWaiter(id, driver.Exclusive, time.Second).TakingOffers()
			for _, name := range []driver.Waiter{waiter, "fedcba9876543210fedcba9876543210~q"} {
				rep, err := all.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "b:1", TTL: w.Holds(), Waiter: name})
				if err != nil || !rep.Listed {
					t.Fatal(rep, err)
				}
			}
			if right != "+@all" {
				w.tell("ACL", "SETUSER", "interlock", right)
			}
			_, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "a:1", Token: token, TTL: w.Holds(), Deadline: w.deadline()})
			wantErr(t, err, nil)
			fields := w.rdb.HGetAll(t.Context(), w.name("k")).Val()
			if (fields["offer"] != "") != offered && w.rdb.PTTL(t.Context(), w.name("k")).Val() > 0 {
				t.Errorf("%v", fields)
			}
			if fields["a:1"] != "" || len(fields) > 0 && fields["r"] == "" {
				t.Errorf("a lock without owner that is not reserved: %v", fields)
			}
			if !offered { // every message after this one follows the earlier messages
				w.rdb.Publish(t.Context(), w.prefix+":wanted:"+id, "=5 "+w.name("other"))
			}
			select {
			case o := <-told:
				if (o.Key == "k") != offered {
					t.Errorf("told %+v", o)
				}
			case <-time.After(w.Patience()):
				t.Errorf("nothing is told; refused by the server: %q", w.Denials(w.t))
			}
		})
	}
}

// BenchmarkWanted is the time from a call of Lock in another process until the holder's
// channel closes.
func BenchmarkWanted(b *testing.B) {
	w := common(b)
	holder, other := w.process(), w.process()
	var took []time.Duration
	for i := range b.N {
		key := fmt.Sprint("k", i%64)
		lease := w.lock(holder, key, core.Attentive())
		wanted := lease.Wanted()
		begin := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if next, err := other.Lock(context.Background(), key); err == nil {
				_ = next.Release(context.Background())
			}
		}()
		<-wanted
		took = append(took, time.Since(begin))
		w.release(lease)
		<-done
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// takes passes on the offers among the calls of a locker, and notes whether it is reached.
func takes(offers chan<- driver.Call, reached *atomic.Bool) func(driver.Call) {
	return func(c driver.Call) {
		switch c.What {
		case driver.Offered:
			offers <- c
		case driver.Unsure:
			reached.Store(c.Reached)
		case driver.Turn, driver.Wanted, driver.Displaced:
		}
	}
}
