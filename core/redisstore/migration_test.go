package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

const (
	// refusedWithin bounds a TryLock while the slot cannot serve it: a quarter of
	// a second of tries and their round trips; the rest is for a busy machine.
	refusedWithin = 8 * time.Second
	// servedWithin bounds what waits for the end of a migration, from there: one
	// pause between two tries, which is a second at most, and likewise.
	servedWithin = 10 * time.Second
)

// inOneSlot returns n keys whose locks and records share a slot.
func inOneSlot(name string, n int) (slot int, keys []string) {
	slot = redistest.Slot(name)
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint(name, "-", i); redistest.Slot(key) == slot {
			keys = append(keys, key)
		}
	}
	return slot, keys
}

func lockOf(key string) string  { return "interlock:{" + key + "}" }
func fenceOf(key string) string { return lockOf(key) + ":fence" }

// named applies a name to all keys.
func named(name func(string) string, keys []string) (names []string) {
	for _, key := range keys {
		names = append(names, name(key))
	}
	return names
}

func freeOf(key string) string { return lockOf(key) + ":free" }
func doneOf(id string) string  { return "interlock:idem:{" + id + "}:done" }

// awaitListener waits until a master has a subscriber for a channel.
func awaitListener(t *testing.T, s *redistest.Server, channel string) {
	t.Helper()
	rdb := s.Client(t)
	redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		n, err := rdb.PubSubShardNumSub(ctx, channel).Result()
		if err != nil || n[channel] == 0 {
			return errors.Join(errors.New("nobody listens"), err)
		}
		return nil
	})
}

// pass has a locker take a lock, while it is held or not, and give it up. What
// comes back is how that ended; the token is greater than before.
func pass(t *testing.T, l *core.Locker, key string, before int64) <-chan error {
	done := make(chan error, 1)
	go func() {
		lease, err := l.Lock(t.Context(), key)
		if err == nil {
			if lease.Token() <= before {
				err = fmt.Errorf("%s: token %d after %d", key, lease.Token(), before)
			}
			err = errors.Join(err, lease.Release(t.Context()))
		}
		done <- err
	}()
	return done
}

// within waits for what pass, or the like, ends with.
func within(t *testing.T, what string, d time.Duration, done <-chan error) {
	t.Helper()
	begin := time.Now()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		t.Logf("%s: after %v", what, time.Since(begin).Round(time.Millisecond))
	case <-time.After(d):
		t.Fatalf("%s: not within %v", what, d)
	}
}

// A slot moves key by key, and until it has moved, requests for several keys are
// refused by whoever has only some of them. Whatever that delays, it gives no
// lock to two, takes none away, and leaves nothing behind.
func TestALockOutlivesEachStateOfASlotMigration(t *testing.T) {
	t.Parallel()
	set := redistest.Cluster(t, 3, 0)
	rdb := set.Client(t)
	store := newStore(t, rdb)
	a, b := newLocker(t, rdb, core.Watchdog(15*time.Second)), newLocker(t, rdb, core.Watchdog(15*time.Second))

	for name, halfway := range map[string]func(t *testing.T, m *redistest.Migration, keys []string){
		"NothingHasMoved": func(*testing.T, *redistest.Migration, []string) {},
		"LocksHaveMoved": func(t *testing.T, m *redistest.Migration, keys []string) {
			m.Move(t, named(lockOf, keys)...)
		},
		"FencesHaveMoved": func(t *testing.T, m *redistest.Migration, keys []string) {
			m.Move(t, named(fenceOf, keys)...)
		},
		"AllKeysHaveMoved": func(t *testing.T, m *redistest.Migration, _ []string) { m.MoveAll(t) },
		"OnlyTheNewOwnerKnows": func(t *testing.T, m *redistest.Migration, _ []string) {
			m.MoveAll(t)
			m.Accept(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			slot, keys := inOneSlot(name, 8)
			held, freed, awaited, handed, used, fresh, claimed, unclaimed := keys[0], keys[1], keys[2], keys[3], keys[4],
				keys[5], keys[6], keys[7]
			from := set.Master(t, lockOf(held))
			to := set.Shards[(set.Shard(t, lockOf(held))+1)%3][0]

			kept := lock(t, a, held, core.Watchdog(6*time.Second)) // so that it is renewed soon
			gone, sought := lock(t, a, freed), lock(t, a, awaited)
			first := lock(t, a, used)
			release(t, first)
			// Handed over in memory, so that its release has to note a token.
			was := lock(t, a, handed)
			next := make(chan *core.Lease, 1)
			go func() { next <- lock(t, a, handed) }()
			redistest.Eventually(t, 30*time.Second, func(context.Context) error {
				for _, h := range a.Held() {
					if h.Key == handed && h.Waiters == 1 {
						return nil
					}
				}
				return errors.New("nobody waits")
			})
			release(t, was)
			heir := <-next
			heard := pass(t, b, awaited, sought.Token())
			awaitListener(t, from, freeOf(awaited))
			claim(t, store, claimed, "first", record.StateGranted)
			woken := make(chan error, 100)
			stop := store.Await(claimed, time.Now(), func() { woken <- nil })
			defer stop()
			awaitListener(t, from, doneOf(claimed))
			within(t, "the confirmation of a subscription", servedWithin, woken)

			set.Settle(t)
			m := set.Migrate(t, slot, from, to)
			halfway(t, m, keys)

			// Held: nobody else gets it, its holder keeps it.
			before := kept.Deadline()
			if _, err := tryLock(t, b, held); !errors.Is(err, core.ErrHeld) && !errors.Is(err, driver.ErrNotReady) {
				t.Errorf("TryLock of a held lock: %v", err)
			}
			if err := confirm(t, kept); err != nil {
				t.Errorf("Check of a held lock: %v", err)
			}
			redistest.Eventually(t, 30*time.Second, func(context.Context) error {
				if kept.Deadline().Sub(before) < time.Second {
					return errors.New("the watchdog has not renewed it")
				}
				return nil
			})
			begin := time.Now()
			release(t, gone)
			if d := time.Since(begin); d > refusedWithin {
				t.Errorf("a release took %v", d)
			}
			// Free: who does not wait is told soon, who waits gets it at the end.
			for _, key := range []string{used, fresh} {
				begin = time.Now()
				lease, err := tryLock(t, a, key)
				switch {
				case err == nil:
					release(t, lease)
				case !errors.Is(err, driver.ErrNotReady):
					t.Errorf("TryLock of a free lock: %v", err)
				}
				if d := time.Since(begin); d > refusedWithin {
					t.Errorf("TryLock of a free lock took %v", d)
				}
				t.Logf("TryLock of a free lock: %v after %v", err, time.Since(begin).Round(time.Millisecond))
			}
			shared := make(chan error, 1)
			go func() {
				share(t, []*core.Locker{a, b}, []string{used, fresh, freed}, 10)
				shared <- nil
			}()
			again := pass(t, b, used, first.Token())
			release(t, sought)
			handedBack := make(chan error, 1)
			go func() { handedBack <- heir.Release(t.Context()) }()
			// A record is one key, and serves on.
			claim(t, store, unclaimed, "second", record.StateGranted)
			claim(t, store, unclaimed, "third", record.StateInFlight)
			commit(t, store, claimed, "first")
			claim(t, store, claimed, "fourth", record.StateCompleted)
			// With a tombstone it is two, and the client is told to come again.
			entombed := record.ClaimRequest{
				ID: held, Token: "first", Lease: time.Minute, Retention: time.Hour, Tombstone: true,
				Deadline: time.Now().Add(servedWithin),
			}
			if _, err := store.Claim(t.Context(), entombed); err != nil && !errors.Is(err, driver.ErrNotReady) {
				t.Errorf("claim of a record that may have a tombstone: %v", err)
			}

			m.Finish(t)
			within(t, "a free lock", servedWithin, again)
			within(t, "a lock that was released meanwhile", servedWithin, heard)
			within(t, "a record that was completed meanwhile", servedWithin, woken)
			within(t, "several that exclude each other", 20*time.Second, shared)
			if err := <-handedBack; err != nil && !errors.Is(err, driver.ErrNotReady) {
				t.Errorf("releasing a lock that was handed over: %v", err)
			}
			within(t, "a lock that was handed over", servedWithin, pass(t, b, handed, heir.Token()))

			// After it all is as before.
			if err := confirm(t, kept); err != nil {
				t.Errorf("Check of a held lock afterwards: %v", err)
			}
			heard = pass(t, b, held, kept.Token())
			awaitListener(t, to, freeOf(held))
			release(t, kept)
			within(t, "the next release", servedWithin, heard)
			claim(t, store, claimed, "fifth", record.StateCompleted)
			claim(t, store, unclaimed, "second", record.StateGranted)
			entombed.Deadline = time.Now().Add(servedWithin)
			if rep, err := store.Claim(t.Context(), entombed); err != nil || rep.State != record.StateGranted {
				t.Errorf("claim of a record that may have a tombstone: state %v, %v", rep.State, err)
			}
			wantNoLocks(t, set)
		})
	}
}

// All channels of a server share a connection. When the slot of one moves, the
// others keep it, or each slot of a busy server that moves would silence all.
func TestASlotThatMovesLeavesTheConnectionToTheOthers(t *testing.T) {
	t.Parallel()
	set := redistest.Cluster(t, 3, 0)
	rdb := set.Client(t)
	a, b := newLocker(t, rdb), newLocker(t, rdb)
	var keys []string // of one shard
	for i := 0; len(keys) < 5; i++ {
		if key := fmt.Sprint("k", i); set.Shard(t, key) == 0 {
			keys = append(keys, key)
		}
	}
	var held []*core.Lease
	var heard []<-chan error
	for _, key := range keys {
		held = append(held, lock(t, a, key))
		heard = append(heard, pass(t, b, key, 0))
	}
	from, to := set.Shards[0][0], set.Shards[1][0]
	for _, key := range keys {
		awaitListener(t, from, freeOf(key))
	}
	before := listeners(t, from)
	for _, key := range keys[1:] {
		set.Migrate(t, redistest.Slot(key), from, to).Finish(t)
		awaitListener(t, to, freeOf(key))
	}
	if after := listeners(t, from); after != before {
		t.Errorf("subscribed connections were %s, and are %s", before, after)
	}
	for i, lease := range held {
		release(t, lease)
		within(t, "a waiter of "+lease.Key(), servedWithin, heard[i])
	}
}

// listeners names the connections that are subscribed to something.
func listeners(t *testing.T, s *redistest.Server) string {
	t.Helper()
	list, err := s.Client(t).Do(t.Context(), "client", "list", "type", "pubsub").Text()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for line := range strings.Lines(list) {
		id, _, _ := strings.Cut(line, " ")
		ids = append(ids, id)
	}
	return strings.Join(ids, ",")
}

func claim(t *testing.T, s *redisstore.Store, id, token string, want record.State) {
	t.Helper()
	rep, err := s.Claim(t.Context(), record.ClaimRequest{
		ID: id, Token: token, Lease: time.Minute, Retention: time.Hour, Deadline: time.Now().Add(servedWithin),
	})
	if err != nil || rep.State != want {
		t.Errorf("claim of %s by %s: state %v, %v; want state %v", id, token, rep.State, err, want)
	}
}

func commit(t *testing.T, s *redisstore.Store, id, token string) {
	t.Helper()
	rep, err := s.Commit(t.Context(), record.CommitRequest{
		ID: id, Token: token, Generation: 1, Response: []byte("response"), Retention: time.Hour,
		Deadline: time.Now().Add(servedWithin),
	})
	if err != nil || rep.State != record.StateGranted {
		t.Errorf("commit of %s by %s: state %v, %v", id, token, rep.State, err)
	}
}

// wantNoLocks waits until no master has a lock left. Fences may be.
func wantNoLocks(t *testing.T, set *redistest.ClusterSet) {
	t.Helper()
	for _, shard := range set.Shards {
		wantGone(t, shard[0].Client(t))
	}
}

// load is what several processes do to many keys while a test disturbs them.
type load struct {
	t       *testing.T
	lockers []*core.Locker
	keys    []string
	stop    atomic.Bool
	work    sync.WaitGroup

	mu      sync.Mutex
	inside  map[string]int
	last    map[string]int64
	taken   []int // by worker
	longest time.Duration
}

// loadWorkers is how many goroutines each locker has under load.
const loadWorkers = 8

func startLoad(t *testing.T, lockers []*core.Locker, keys []string) *load {
	l := &load{
		t: t, lockers: lockers, keys: keys, inside: map[string]int{}, last: map[string]int64{},
		taken: make([]int, len(lockers)*loadWorkers),
	}
	for i := range l.taken {
		l.work.Go(func() { l.run(i) })
	}
	return l
}

// run takes one lock after the other. Every second time it is one of five hot
// keys.
func (l *load) run(worker int) {
	locker := l.lockers[worker%len(l.lockers)]
	for !l.stop.Load() {
		key := l.keys[rand.IntN(len(l.keys))]
		if rand.IntN(2) == 0 {
			key = l.keys[rand.IntN(5)]
		}
		begin := time.Now()
		lease, err := locker.Lock(l.t.Context(), key, core.Wait(time.Minute))
		if err != nil {
			l.t.Errorf("Lock(%s) after %v: %v", key, time.Since(begin), err)
			return
		}
		l.enter(worker, lease, time.Since(begin))
		if err := lease.Err(); err != nil {
			l.t.Errorf("the lease of %s: %v", key, err)
		}
		l.leave(key)
		if err := lease.Release(l.t.Context()); err != nil && !errors.Is(err, driver.ErrNotReady) {
			l.t.Errorf("Release(%s): %v", key, err)
		}
	}
}

func (l *load) enter(worker int, lease *core.Lease, waited time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := lease.Key()
	if l.inside[key]++; l.inside[key] != 1 {
		l.t.Errorf("two inside %s", key)
	}
	if lease.Token() <= l.last[key] {
		l.t.Errorf("%s: token %d after %d", key, lease.Token(), l.last[key])
	}
	l.last[key] = lease.Token()
	l.taken[worker]++
	l.longest = max(l.longest, waited)
}

func (l *load) leave(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inside[key]--
}

// end stops the load and returns how many locks were taken.
func (l *load) end() (total int) {
	l.stop.Store(true)
	l.work.Wait()
	for worker, n := range l.taken {
		total += n
		if n == 0 {
			l.t.Errorf("worker %d got no lock at all", worker)
		}
	}
	return total
}

func TestReshardingUnderLoadDisturbsNobody(t *testing.T) {
	t.Parallel()
	set := redistest.Cluster(t, 3, 0)
	rdb := set.Client(t)
	var lockers []*core.Locker
	var stores []*redisstore.Store
	losses := make(chan core.Loss, 1000)
	for range 3 {
		// A node writes a file, and waits for the disk, each time that it gains or
		// loses a slot. On a busy machine that can take a second.
		store := newStore(t, rdb, redisstore.Timeout(10*time.Second))
		l, err := core.New(store, core.Watchdog(15*time.Second), core.OnLost(func(x core.Loss) { losses <- x }))
		if err != nil {
			t.Fatal(err)
		}
		lockers, stores = append(lockers, l), append(stores, store)
	}
	keys := someKeys(200)
	var held []*core.Lease
	for i := range 50 {
		held = append(held, lock(t, lockers[i%3], fmt.Sprint("held", i)))
	}
	l := startLoad(t, lockers, keys)

	// The slots of all keys and some that have none, there and back.
	slots := make([]map[int]bool, 3) // by shard
	add := func(name string, n int) {
		for i := range n {
			key := fmt.Sprint(name, i)
			home := set.Shard(t, key)
			if slots[home] == nil {
				slots[home] = map[int]bool{}
			}
			slots[home][redistest.Slot(key)] = true
		}
	}
	add("key", len(keys))
	add("held", len(held))
	add("never", 30)
	moved, begin := 0, time.Now()
	for _, back := range []bool{false, true} {
		for home := range slots {
			from, to := set.Shards[home][0], set.Shards[(home+1)%3][0]
			if back {
				from, to = to, from
			}
			set.Settle(t)
			for slot := range slots[home] {
				set.Migrate(t, slot, from, to).Finish(t)
				moved++
			}
		}
	}
	took := time.Since(begin)
	total := l.end()
	t.Logf("%d slots moved in %v, %d locks taken, the longest wait was %v", moved, took, total, l.longest)
	if moved < 500 {
		t.Errorf("%d slots were moved, want 500", moved)
	}
	if l.longest > 20*time.Second {
		t.Errorf("somebody waited %v", l.longest)
	}
	for _, lease := range held {
		if err := confirm(t, lease); err != nil {
			t.Errorf("%s was held all the time: %v", lease.Key(), err)
		}
		release(t, lease)
	}
	for _, l := range lockers {
		ctx, cancel := bounded(10 * time.Second)
		if err := l.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		cancel()
	}
	for _, s := range stores {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	close(losses)
	for x := range losses {
		t.Errorf("lost: %+v", x)
	}
	wantNoLocks(t, set)
	for _, shard := range set.Shards {
		wantUnheard(t, shard[0].Client(t))
	}
}

// wantUnheard waits until nobody is subscribed to anything.
func wantUnheard(t *testing.T, rdb *redis.Client) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		channels, err := rdb.PubSubShardChannels(ctx, "*").Result()
		if err == nil && len(channels) > 0 {
			err = fmt.Errorf("still subscribed: %v", channels)
		}
		return err
	})
}

func TestAClientForOneServerThatMeetsAClusterSaysSo(t *testing.T) {
	t.Parallel()
	set := redistest.Cluster(t, 2, 0)
	l := newLocker(t, set.Shards[0][0].Client(t))
	for _, key := range someKeys(10) {
		lease, err := tryLock(t, l, key)
		if set.Shard(t, key) == 0 {
			if err != nil {
				t.Errorf("a key of this node: %v", err)
			} else {
				release(t, lease)
			}
			continue
		}
		wantErr(t, err, core.ErrUnavailable)
		if err == nil || !strings.Contains(err.Error(), "ClusterClient") {
			t.Errorf("a key of another node: %v", err)
		}
	}
}

// On a Cluster that moves slots go-redis asks for the new owner's leave (ASKING),
// and looks up where commands have their keys (COMMAND).
func TestRightsForAMigration(t *testing.T) {
	t.Parallel()
	set := redistest.Cluster(t, 2, 0)
	admins := []*redis.Client{set.Shards[0][0].Client(t), set.Shards[1][0].Client(t)}
	for _, admin := range admins {
		if err := admin.Do(t.Context(), append(documented(t), alsoFor(t, "Cluster")...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	as := func(o *redis.ClusterOptions) { o.Username, o.Password = "interlock", "password" }
	a, b := newLocker(t, set.Client(t, as)), newLocker(t, set.Client(t, as))
	const key = "k"
	from := set.Master(t, key)
	to := set.Shards[1-set.Shard(t, key)][0]
	lease := lock(t, a, key)
	heard := pass(t, b, key, lease.Token())
	awaitListener(t, from, freeOf(key))
	m := set.Migrate(t, redistest.Slot(key), from, to)
	m.MoveAll(t)
	if err := confirm(t, lease); err != nil {
		t.Errorf("Check: %v", err)
	}
	release(t, lease)
	m.Finish(t)
	within(t, "a waiter", servedWithin, heard)
	for _, admin := range admins {
		log := admin.Do(t.Context(), "ACL", "LOG").Val()
		if entries, _ := log.([]any); len(entries) != 0 {
			t.Errorf("refused by the server: %v", log)
		}
	}
}
