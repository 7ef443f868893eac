//go:build integration

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// sentinel answers as a sentinel does, until it hangs.
type sentinel struct {
	addr  string
	hangs atomic.Bool
	asked atomic.Bool // a client listens to this sentinel, and asks it
}

func newSentinel(tb testing.TB, master *atomic.Pointer[redistest.Server]) *sentinel {
	tb.Helper()
	s := &sentinel{}
	s.addr = listen(tb, func(conn net.Conn) {
		answer(conn, func(cmd []string) string {
			line := strings.ToLower(strings.Join(cmd, " "))
			switch {
			case s.hangs.Load():
				return ""
			case strings.HasPrefix(line, "hello"):
				return "-ERR unknown command\r\n"
			case strings.HasPrefix(line, "sentinel get-master-addr-by-name"):
				host, port, _ := net.SplitHostPort(master.Load().Addr())
				return fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
			case strings.HasPrefix(line, "sentinel"):
				return "*0\r\n"
			case strings.HasPrefix(line, "subscribe"):
				s.asked.Store(true)
				text := ""
				for i, channel := range cmd[1:] {
					text += fmt.Sprintf("*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:%d\r\n", len(channel), channel, i+1)
				}
				return text
			case strings.HasPrefix(line, "ping"):
				return "+PONG\r\n"
			}
			return "+OK\r\n"
		})
	})
	return s
}

// watched is a master with a replica and sentinels. The sentinels name the server that
// the field master points to.
type watched struct {
	*world    // of the first master
	set       *redistest.ReplicaSet
	master    atomic.Pointer[redistest.Server]
	sentinels []*sentinel
}

func newWatched(t *testing.T, sentinels int) *watched {
	t.Helper()
	set := redistest.Replicated(t, 1)
	f := &watched{world: worldOf(t, set.Master, "interlock"), set: set}
	f.master.Store(set.Master)
	for range sentinels {
		f.sentinels = append(f.sentinels, newSentinel(t, &f.master))
	}
	return f
}

// store makes a store that follows the master. Its connections have a name.
func (f *watched) store(change ...func(*redis.FailoverOptions)) *redisstore.Store {
	f.t.Helper()
	o := &redis.FailoverOptions{MasterName: "m", ClientName: "store"}
	for _, s := range f.sentinels {
		o.SentinelAddrs = append(o.SentinelAddrs, s.addr)
	}
	for _, c := range change {
		c(o)
	}
	rdb := redis.NewFailoverClient(o)
	f.t.Cleanup(func() { _ = rdb.Close() })
	return f.over(rdb)
}

// promote makes the replica a master. The former one still answers, and takes writes.
func (f *watched) promote() *redis.Client {
	f.t.Helper()
	f.set.AwaitSync(f.t)
	rdb := f.set.Replicas[0].Client(f.t)
	if err := rdb.Do(f.t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		f.t.Fatal(err)
	}
	return rdb
}

// left waits until no store has a connection to the former master.
func (f *watched) left() {
	f.t.Helper()
	f.soon("no connection leads to the former master", func(ctx context.Context) bool {
		list, err := f.rdb.ClientList(ctx).Result()
		return err == nil && !strings.Contains(list, "name=store")
	})
}

// A lock on the replica is kept. A lock that the replica has not received is lost, and
// its holder gets the loss. The former master still answers, and that changes nothing.
func TestAFailover(t *testing.T) {
	t.Parallel()
	f := newWatched(t, 1)
	s, other := f.store(), f.store()
	losses := make(chan core.Loss, 10)
	before, after := f.locker(s, core.OnLost(func(x core.Loss) { losses <- x })), f.locker(other)
	kept := f.lock(before, "kept")
	f.complete(s, "paid", "response")
	claim := f.claim("marked", "a")
	if rep, err := s.Claim(t.Context(), claim); err != nil || rep.State != record.StateGranted {
		t.Fatal(rep, err)
	}
	wantErr(t, s.Mark(t.Context(), record.MarkRequest{
		ID: "marked", Token: "a", Lease: claim.Lease, Retention: claim.Retention, Deadline: f.deadline(),
	}), nil)
	waiter := later(func() error { return pass(t.Context(), after, "kept") })
	f.called(1)

	promoted := f.promote()
	deleted, taken := f.lock(before, "deleted"), f.lock(before, "taken") // on the former master alone
	promoted.HSet(t.Context(), f.name("taken"), "another:1", 1)
	promoted.PExpire(t.Context(), f.name("taken"), f.Holds())
	f.master.Store(f.set.Replicas[0])
	f.left()

	f.soon("the kept lock is confirmed", func(ctx context.Context) bool { return kept.Check(ctx) == nil })
	for lease, reason := range map[*core.Lease]observe.LossReason{deleted: observe.LossDeleted, taken: observe.LossTakenOver} {
		f.soon("the loss is found", func(ctx context.Context) bool { return errors.Is(lease.Check(ctx), core.ErrLost) })
		if x := <-losses; string(x.Key) != lease.Key() || x.Token != lease.Token() || x.Reason != reason {
			t.Errorf("OnLost got %v, want %v of %s", x, reason, lease.Key())
		}
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
	}
	next := f.lock(after, "deleted")
	if next.Token() <= deleted.Token() {
		t.Errorf("token %d after %d", next.Token(), deleted.Token())
	}
	if rep := f.acquire(s, f.held("deleted", "b:1")); rep.Granted {
		t.Error("a lock has two holders")
	}
	f.release(next)
	f.release(kept)
	f.want("a waiter whose subscription was on the former master", waiter)

	if rep, err := other.Claim(t.Context(), f.claim("paid", "b")); err != nil || rep.Response != "response" {
		t.Errorf("the answer: %+v, %v", rep, err)
	}
	promoted.HSet(t.Context(), f.record("marked"), "u", 1) // its lease has lapsed
	if rep, err := other.Claim(t.Context(), f.claim("marked", "b")); err != nil || rep.State != record.StateUnknown {
		t.Errorf("what may have been carried out: %+v, %v", rep, err)
	}
	if keys := f.rdb.Keys(t.Context(), "*").Val(); len(keys) < 4 {
		t.Errorf("the former master has only %v: the test proves nothing", keys)
	}
}

// A name that leads to another server since the first was demoted helps only a client that
// connects anew. go-redis does when a command is refused as READONLY, and has to see that
// also where the reply of a call has an error for each lock.
func TestRenewalsThatShareCallsLeaveADemotedServer(t *testing.T) {
	t.Parallel()
	f := newWatched(t, 0)
	s := f.world.store(func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, f.master.Load().Addr())
		}
	})
	var batch []driver.Renewal
	for i := range 20 {
		batch = append(batch, driver.Renewal{Key: fmt.Sprint("k", i), Owner: "a:1", TTL: f.Holds()})
		f.take(s, f.held(batch[i].Key, "a:1"))
	}
	renewed := func() (ok int) {
		s.Renew(t.Context(), batch, func(_ int, _ bool, err error) {
			if err == nil {
				ok++
			}
		})
		return ok
	}
	if n := renewed(); n != len(batch) { // over connections that are there now
		t.Fatalf("%d are renewed", n)
	}
	f.promote()
	host, port, _ := net.SplitHostPort(f.set.Replicas[0].Addr())
	f.tell("REPLICAOF", host, port)
	f.master.Store(f.set.Replicas[0])
	f.soon("all are renewed on the new master", func(context.Context) bool { return renewed() == len(batch) })
	for _, r := range batch {
		wantErr(t, f.free(s, r.Key, r.Owner), nil)
	}
}

func TestALockIsTakenAndRenewedOnlyWhenItsReplicasHaveIt(t *testing.T) {
	t.Parallel()
	set := redistest.Replicated(t, 2)
	w := worldOf(t, set.Master, "interlock")
	ack := func(n int, within time.Duration) *redisstore.Store {
		return w.over(w.Client(t), redisstore.Replicas(n, within), redisstore.ReplicatedRenewals())
	}
	all, one, hasty := ack(2, w.Patience()), ack(1, w.Patience()), ack(2, 100*time.Millisecond)
	w.take(all, w.held("k", "a:1"))
	for _, replica := range set.Replicas {
		if n := replica.Client(t).Exists(t.Context(), w.name("k")).Val(); n != 1 {
			t.Error("a replica does not have the lock that it acknowledged")
		}
	}
	wantErr(t, w.renew(all, "k", "a:1"), nil)

	set.Replicas[0].Pause(t)
	// A renewal that lengthens nothing would write nothing, which all replicas have.
	longer := []driver.Renewal{{Key: "k", Owner: "a:1", TTL: 2 * w.Holds()}}
	hasty.Renew(t.Context(), longer, func(_ int, _ bool, err error) { wantErr(t, err, core.ErrNotReplicated) })
	_, err := hasty.Acquire(t.Context(), w.held("late", "a:1"))
	wantErr(t, err, core.ErrNotReplicated)
	_, err = w.locker(hasty).Lock(w.bounded(), "refused")
	wantErr(t, err, core.ErrNotReplicated)
	w.soon("a lock that was refused is given up", func(ctx context.Context) bool { return w.rdb.Exists(ctx, w.name("refused")).Val() == 0 })
	w.take(one, w.held("other", "a:1")) // one replica is enough for this store
	set.Replicas[0].Resume(t)
	wantErr(t, w.renew(all, "k", "a:1"), nil)
}
