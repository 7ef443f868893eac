//go:build integration

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/redistest"
)

// topologies are the tests for each kind of servers.
var topologies = map[string]func(w *world){
	"locks are shown with the processes that hold them and wait":  (*world).testLocks,
	"a lock that an operator releases is a loss of its holder":    (*world).testRelease,
	"an operator releases one place of many":                      (*world).testReleaseOfAPlace,
	"hostile keys are listed as they are":                         (*world).testHostileKeys,
	"wait returns when the lock is free":                          (*world).testWait,
	"a lock that is kept is not free, until an operator frees it": (*world).testKept,
	"records are shown in each state":                             (*world).testRecords,
	"the rights are those of the documents":                       (*world).testRights,
	"check says what the servers are":                             (*world).testCheck,
}

func TestAFleetOfOneServer(t *testing.T) {
	t.Parallel()
	for name, test := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(common(t))
		})
	}
}

func TestAFleetOfACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.Cluster(t, 3, 0).Client(t)
	t.Run("tests", func(t *testing.T) {
		for name, test := range topologies {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				_, prefix := redistest.Common(t)
				test(worldOf(t, rdb, prefix))
			})
		}
	})
}

func (w *world) testLocks() {
	f := w.fleet()
	a, b := w.process(core.Service("bank", "v1")), w.process(core.Service("cron", "v2"))
	lease := w.lock(a, "exclusive")
	w.lock(a, "shared", core.Shared())
	w.lock(b, "shared", core.Shared())
	w.lock(b, "permit", core.Permits(2))
	ctx, cancel := context.WithCancel(w.t.Context())
	waited := w.later(ctx, b, "exclusive")

	l := w.eventually(f, "exclusive", func(l fleet.Lock) bool {
		return len(l.Waiters) == 1 && l.Waiters[0].Locker.Listed && l.Holders[0].Locker.Listed
	})
	host, _ := os.Hostname()
	holder, waiter := l.Holders[0], l.Waiters[0]
	if l.Kind != fleet.Exclusive || l.Held != 1 || holder.Token != lease.Token() || l.Fence != lease.Token() {
		w.t.Errorf("%+v; want token %d", l, lease.Token())
	}
	if holder.Left <= 0 || holder.Left > w.Holds() || holder.Age <= 0 || holder.Age > w.Holds() || !l.Oldest().Equal(holder.Since) {
		w.t.Errorf("%v left of a lease of %v, age %v", holder.Left, w.Holds(), holder.Age)
	}
	if !strings.HasPrefix(holder.Owner, holder.Locker.ID+":") || holder.Locker.Host != host || holder.Locker.PID != os.Getpid() ||
		holder.Locker.Service != "bank" || holder.Locker.Version != "v1" || holder.Locker.Protocol != driver.Protocol ||
		holder.Locker.Renews() != "yes" || time.Since(holder.Locker.Started) > w.Holds() {
		w.t.Errorf("holder %+v", holder)
	}
	if waiter.Locker.Service != "cron" || waiter.Place || waiter.Called || waiter.Locker.ID == holder.Locker.ID {
		w.t.Errorf("waiter %+v", waiter)
	}

	all := w.list(f, "")
	if len(all) != 3 {
		w.t.Errorf("%d locks: %+v", len(all), all)
	}
	if l := all["shared"]; l.Kind != fleet.Places || l.Held != 2 || len(l.Holders) != 2 || l.Holders[0].Locker.ID == l.Holders[1].Locker.ID {
		w.t.Errorf("shared: %+v", l)
	}
	if l := all["permit"]; l.Kind != fleet.Places || l.Held != 1 || l.Holders[0].Left <= 0 || l.Holders[0].Locker.Service != "cron" {
		w.t.Errorf("permit: %+v", l)
	}
	lockers := map[string]string{}
	for l, err := range f.Lockers(w.t.Context()) {
		wantErr(w.t, err, nil)
		lockers[l.Service] = l.ID
	}
	if len(lockers) != 2 || lockers["bank"] != holder.Locker.ID || lockers["cron"] != waiter.Locker.ID {
		w.t.Errorf("lockers %v", lockers)
	}
	cancel()
	<-waited
	if l, err := f.Inspect(w.t.Context(), "free"); err != nil || l.Held != 0 || l.Kind != "" {
		w.t.Errorf("a free lock: %+v, %v", l, err)
	}
	if n := len(w.list(w.fleet(fleet.Prefix(w.prefix[:len(w.prefix)-1]+"?")), "")); n != 0 {
		w.t.Errorf("%d locks of another prefix", n)
	}
}

func (w *world) testRelease() {
	f := w.fleet()
	losses := make(chan observe.Loss, 1)
	a := w.process(core.OnLost(func(l core.Loss) { losses <- l }))
	lease := w.lock(a, "k")
	next := w.later(w.t.Context(), w.process(), "k")
	before := w.eventually(f, "k", func(l fleet.Lock) bool { return len(l.Waiters) == 1 })

	for _, wrong := range []int64{0, lease.Token() - 1, lease.Token() + 1} {
		_, err := f.Release(w.t.Context(), "k", wrong)
		wantErr(w.t, err, fleet.ErrNoGrant)
	}
	wantErr(w.t, lease.Check(w.t.Context()), nil)
	holder, err := f.Release(w.t.Context(), "k", lease.Token())
	if err != nil || holder.Owner != before.Holders[0].Owner {
		w.t.Fatalf("%+v, %v", holder, err)
	}
	w.lost(lease)
	loss := <-losses
	if loss.Token != lease.Token() || loss.Owner != holder.Owner || loss.Reason != observe.LossRevoked {
		w.t.Errorf("%+v", loss)
	}
	second := <-next
	if l, err := f.Inspect(w.t.Context(), "k"); err != nil || l.Held != 1 || l.Holders[0].Locker.ID != before.Waiters[0].Locker.ID ||
		second.Token() <= lease.Token() {
		w.t.Errorf("%+v, %v; want the locker that waited, with a token above %d", l, err, lease.Token())
	}
	wantErr(w.t, second.Release(w.t.Context()), nil)
	_, err = f.Release(w.t.Context(), "k", lease.Token())
	wantErr(w.t, err, fleet.ErrNoGrant)
}

func (w *world) testReleaseOfAPlace() {
	f := w.fleet()
	losses := make(chan observe.Loss, 3)
	a := w.process(core.OnLost(func(l core.Loss) { losses <- l }))
	first, second := w.lock(a, "k", core.Permits(2)), w.lock(a, "k", core.Permits(2))
	next := w.later(w.t.Context(), w.process(), "k", core.Permits(2))
	l := w.eventually(f, "k", func(l fleet.Lock) bool { return len(l.Waiters) == 1 })
	if l.Held != 2 || !l.Waiters[0].Place {
		w.t.Errorf("%+v", l)
	}
	if _, err := f.Release(w.t.Context(), "k", first.Token()); err != nil {
		w.t.Fatal(err)
	}
	third := <-next
	w.lost(first)
	if loss := <-losses; loss.Token != first.Token() {
		w.t.Errorf("%+v; want the loss of token %d", loss, first.Token())
	}
	wantErr(w.t, second.Check(w.t.Context()), nil)
	if third.Token() < second.Token()+driver.Tokens {
		w.t.Errorf("token %d after those from %d", third.Token(), second.Token())
	}
	w.eventually(f, "k", func(l fleet.Lock) bool { return l.Held == 2 && len(l.Waiters) == 0 })
	if len(losses) != 0 {
		w.t.Errorf("another place was lost: %+v", <-losses)
	}
}

var hostileKeys = []string{
	"{", "}", `\`, `\(`, "a{b}c", `{\}`, "*", "?", "[a-z]", "^-", "\x00\x1b[2Jx", "\u202eevil", "\xff\xfe", "<script>alert(1)</script>",
	"q", "locker:x", "idem:x", " ", "a:fence", "}:fence",
}

func (w *world) testHostileKeys() {
	f := w.fleet()
	l := w.process(core.Unlisted())
	for _, key := range hostileKeys {
		w.lock(l, key)
	}
	all := w.list(f, "")
	for _, key := range hostileKeys {
		if _, ok := all[key]; !ok {
			w.t.Errorf("%q is not listed", key)
		}
		if got, err := f.Inspect(w.t.Context(), key); err != nil || got.Held != 1 || got.Key != key {
			w.t.Errorf("%q: %+v, %v", key, got, err)
		}
		if strings.ContainsAny(key, "*?") {
			continue // it is a pattern
		}
		if got := w.list(f, key); len(got) != 1 || got[key].Key != key {
			w.t.Errorf("the pattern %q finds %v", key, got)
		}
	}
	if len(all) != len(hostileKeys) {
		w.t.Errorf("%d locks; want %d", len(all), len(hostileKeys))
	}
}

func (w *world) testWait() {
	f := w.fleet()
	a := w.process()
	wantErr(w.t, f.Wait(w.t.Context(), "k"), nil)
	over, end := context.WithCancelCause(w.t.Context())
	end(errors.New("over"))
	for range 20 { // it ends before, or while, the lock is read
		wantErr(w.t, f.Wait(over, "k"), context.Cause(over))
	}
	for key, opts := range map[string][]core.Option{"held": nil, "shared": {core.Shared()}} {
		lease := w.lock(a, key, opts...)
		ctx, cancel := context.WithTimeoutCause(w.t.Context(), 50*time.Millisecond, errors.New("enough"))
		wantErr(w.t, f.Wait(ctx, key), context.Cause(ctx))
		cancel()
		done := make(chan error, 1)
		go func() { done <- f.Wait(w.t.Context(), key) }()
		w.looks()
		if len(done) > 0 {
			w.t.Errorf("returned while the lock is held: %v", <-done)
		}
		wantErr(w.t, lease.Release(w.t.Context()), nil)
		wantErr(w.t, <-done, nil)
	}
}

func (w *world) testRecords() {
	f, store, ctx := w.fleet(), w.store(), w.t.Context()
	claim := func(key string, lease time.Duration) fleet.Record {
		r, err := f.Record(ctx, "tenant", key)
		if err != nil || r.State != fleet.RecordNone {
			w.t.Fatalf("%+v, %v", r, err)
		}
		rep, err := store.Claim(ctx, record.ClaimRequest{
			ID: r.ID, Token: key, Lease: lease, Retention: 2 * w.Holds(), Deadline: time.Now().Add(w.Patience()),
		})
		if err != nil || rep.State != record.StateGranted {
			w.t.Fatalf("%+v, %v", rep, err)
		}
		return r
	}
	is := func(key, state string) (r fleet.Record) {
		w.t.Helper()
		redistest.Eventually(w.t, w.Patience(), func(ctx context.Context) error {
			var err error
			if r, err = f.Record(ctx, "tenant", key); err == nil && r.State != state {
				err = fmt.Errorf("%+v; want %s", r, state)
			}
			return err
		})
		return r
	}
	most := w.Holds() + time.Millisecond // a store may count in milliseconds, and rounds a lease up
	claim("in-flight", w.Holds())
	if r := is("in-flight", fleet.RecordInFlight); r.Lease <= 0 || r.Lease > most || r.Kept <= r.Lease || r.Generation != 1 || r.Marked {
		w.t.Errorf("%+v", r)
	}
	r := claim("lapsed", time.Millisecond)
	is("lapsed", fleet.RecordLapsed)
	mark := record.MarkRequest{ID: r.ID, Token: "lapsed", Lease: time.Millisecond, Retention: w.Holds(), Deadline: time.Now().Add(w.Patience())}
	wantErr(w.t, store.Mark(ctx, mark), nil)
	if r := is("lapsed", fleet.RecordUnknown); !r.Marked {
		w.t.Errorf("%+v", r)
	}
	if n, err := f.Unknown(ctx); n != 1 || err != nil {
		w.t.Errorf("counted %d unknown outcomes, %v; want 1", n, err)
	}

	// An engine stores the answers, and the operator's.
	e, err := idempotency.New(store, idempotency.Global())
	wantErr(w.t, err, nil)
	defer e.Close(ctx)
	answer := endpoint.Response{Status: 201, Header: map[string][]string{"Content-Type": {"text/plain"}}, Body: []byte("secret")}
	wantErr(w.t, e.Resolve(ctx, "tenant", "lapsed", admin.CarriedOut(endpoint.HTTP, answer)), nil)
	if r := is("lapsed", fleet.RecordCompleted); r.Protocol != endpoint.HTTP || r.Status != 201 || r.Size < 10 || r.Sealed {
		w.t.Errorf("%+v", r)
	}
	wantErr(w.t, e.Forget(ctx, "tenant", "lapsed"), nil)
	is("lapsed", fleet.RecordNone)

	r = claim("handed-over", time.Millisecond)
	mark = record.MarkRequest{ID: r.ID, Token: "handed-over", HandOver: true, Lease: w.Holds(), Retention: w.Holds(), Deadline: time.Now().Add(w.Patience())}
	wantErr(w.t, store.Mark(ctx, mark), nil)
	if r := is("handed-over", fleet.RecordHandedOver); r.Lease <= 0 || r.Lease > most {
		w.t.Errorf("%+v; want the time of the ticket", r)
	}
	w.listRecords(f)

	r = claim("unavailable", w.Holds())
	_, err = store.Commit(ctx, record.CommitRequest{
		ID: r.ID, Token: "unavailable", Generation: 1, Retention: w.Holds(), Tombstone: w.Holds(), Deadline: time.Now().Add(w.Patience()),
	})
	wantErr(w.t, err, nil)
	is("unavailable", fleet.RecordUnavailable)
	w.rdb.Del(ctx, w.record(r.ID))
	is("unavailable", fleet.RecordExpired)

	r = claim("damaged", w.Holds())
	w.rdb.HSet(ctx, w.record(r.ID), "v", "2")
	is("damaged", fleet.RecordDamaged)
	w.rdb.Set(ctx, w.record(r.ID), "x", 0)
	is("damaged", fleet.RecordDamaged)
}

// listRecords goes through the records that testRecords has made, one at a time.
func (w *world) listRecords(f *fleet.Fleet) {
	states := map[string]int{}
	for cursor, more := "", true; more; {
		more = false
		for r, err := range f.Records(w.t.Context(), fleet.RecordQuery{After: cursor}) {
			if wantErr(w.t, err, nil); err != nil {
				return
			}
			states[r.State]++
			cursor, more = r.Cursor, true
			break
		}
	}
	if want := map[string]int{fleet.RecordInFlight: 1, fleet.RecordHandedOver: 1}; !maps.Equal(states, want) {
		w.t.Errorf("one at a time the list has %v; want %v", states, want)
	}
	for r, err := range f.Records(w.t.Context(), fleet.RecordQuery{States: []string{fleet.RecordInFlight}}) {
		if err != nil || r.State != fleet.RecordInFlight {
			w.t.Errorf("%+v, %v; want %s alone", r, err, fleet.RecordInFlight)
		}
	}
	for r, err := range f.Records(w.t.Context(), fleet.RecordQuery{Older: time.Millisecond}) {
		w.t.Errorf("%+v, %v; want no record with a lease that goes on", r, err)
	}
	for _, err := range f.Records(w.t.Context(), fleet.RecordQuery{After: "x"}) {
		wantErr(w.t, err, driver.ErrConfig)
	}
}

func (w *world) testRights() {
	w.prefix = "interlock" // of the documents
	f := w.fleet()
	ask := func(rules []string) (missing []string) {
		wantErr(w.t, w.each(w.t.Context(), func(ctx context.Context, node *redis.Client) error {
			return redistest.SetUser(ctx, node, "service", rules...)
		}), nil)
		r := w.check(f, "service")
		if r.User != "service" || r.Tried {
			w.t.Fatalf("%+v", r)
		}
		for _, m := range r.Missing {
			missing = append(missing, m.Right)
		}
		return missing
	}
	all := redistest.Rights(w.t, "idempotency records (`core/idempotency`)", "shared locks and permits", "`Store.Check`", "Cluster")
	if missing := ask(all); len(missing) > 0 {
		w.t.Errorf("the documented rights are not enough: %q", missing)
	}
	_, cluster := w.rdb.(*redis.ClusterClient)
	for _, rule := range all {
		if rule == "+hello" || !strings.HasPrefix(rule, "+") || !cluster && (rule == "+asking" || rule == "+command") {
			continue
		}
		without := slices.DeleteFunc(slices.Clone(all), func(r string) bool { return r == rule })
		if missing := ask(without); !slices.Equal(missing, []string{rule}) {
			w.t.Errorf("without %s: %q is missing", rule, missing)
		}
	}
}

func (w *world) testCheck() {
	r := w.check(w.fleet(), "")
	if r.Safe() || len(r.Unsafe) == 0 || len(r.Missing) > 0 || r.User != "default" {
		w.t.Fatalf("%+v", r)
	}
	want := 1
	if _, cluster := w.rdb.(*redis.ClusterClient); cluster {
		want = 3
	}
	if len(r.Servers) != want {
		w.t.Errorf("%d servers: %+v", len(r.Servers), r.Servers)
	}
	for _, s := range r.Servers {
		if s.Addr == "" || s.Role != "master" || s.Version == "" || s.Policy != "noeviction" || s.Err != nil ||
			s.RoundTrip <= 0 || s.Slowest < s.RoundTrip || s.Ahead.Abs() > time.Minute {
			w.t.Errorf("%+v", s)
		}
	}
	if r.ClockSpread < 0 || r.ClockSpread > time.Minute {
		w.t.Errorf("spread %v on one machine", r.ClockSpread)
	}
}
