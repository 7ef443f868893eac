package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/quorum"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// documented is the ACL rule of docs/operations.md, as arguments.
func documented(t *testing.T) []any {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "ACL SETUSER") {
			var args []any
			for _, f := range strings.Fields(line) {
				args = append(args, f)
			}
			return args
		}
	}
	t.Fatal("docs/operations.md has no ACL rule")
	return nil
}

// alsoFor are the rights that docs/operations.md adds for something; "" is nothing.
func alsoFor(t *testing.T, what string) (rights []any) {
	t.Helper()
	if what == "" {
		return nil
	}
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| for | also |")
	for line := range strings.Lines(table) {
		// A pipe inside a cell is escaped.
		cells := strings.Split(strings.ReplaceAll(line, `\|`, "\x00"), "|")
		if len(cells) != 4 || !strings.Contains(cells[1], what) {
			continue
		}
		for _, f := range strings.Fields(strings.ReplaceAll(cells[2], "`", " ")) {
			if strings.HasPrefix(f, "+") {
				rights = append(rights, strings.ReplaceAll(f, "\x00", "|"))
			}
		}
		return rights
	}
	t.Fatalf("docs/operations.md has no rights for %s", what)
	return nil
}

// restricted makes the user of the documents on all servers.
func restricted(t *testing.T, servers []*redistest.Server, also ...any) {
	t.Helper()
	for _, srv := range servers {
		if err := srv.Client(t).Do(t.Context(), append(documented(t), also...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// denials are what the servers have refused to anybody.
func denials(t *testing.T, servers []*redistest.Server) (denied []string) {
	t.Helper()
	for _, srv := range servers {
		entries, err := srv.Client(t).Do(t.Context(), "ACL", "LOG").Slice()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			denied = append(denied, fmt.Sprint(e))
		}
	}
	return denied
}

// as makes the clients' user the one of the documents.
func as(o *redis.Options) { o.Username, o.Password = "interlock", "password" }

// exercise does with locks what there is to do.
func exercise(t *testing.T, stores ...core.Store) {
	t.Helper()
	var lockers []*core.Locker
	for i, store := range stores {
		l, err := core.New(store, core.Watchdog(time.Duration(i+1)*15*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.WithoutCancel(t.Context())) }()
		lockers = append(lockers, l)
	}
	share(t, lockers, someKeys(4), 30)
	l := lockers[0]
	lease := lock(t, l, "renewed", core.Watchdog(5*time.Second)) // so that it is renewed soon
	deadline := lease.Deadline()
	redistest.Eventually(t, 30*time.Second, func(context.Context) error {
		if !lease.Deadline().After(deadline) {
			return errors.New("not renewed")
		}
		return nil
	})
	wantErr(t, confirm(t, lease), nil)
	if err := core.Commit(lease.Context(), func() error { return nil }); err != nil {
		t.Error(err)
	}
	release(t, lease)
	all, err := l.LockAll(t.Context(), someKeys(3), core.TTL(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	release(t, all)
}

// exercisePlaces does with places what there is to do.
func exercisePlaces(t *testing.T, s driver.Store) {
	t.Helper()
	ask := func(kind driver.Kind, owner string, ttl time.Duration) bool {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
			Key: "k", Owner: owner, Kind: kind, AtMost: 2, TTL: ttl, Waiter: "w" + owner, Left: 100 * time.Millisecond,
		})
		wantErr(t, err, nil)
		return rep.Granted
	}
	leave := func(owner string) {
		_, err := s.Release(t.Context(), driver.ReleaseRequest{
			Key: "k", Owner: owner, Kind: driver.Permit, AtMost: 2, TTL: time.Minute, Token: 1, Remember: true,
			Deadline: time.Now().Add(30 * time.Second),
		})
		wantErr(t, err, nil)
	}
	soon := func(kind driver.Kind, owner string, ttl time.Duration) {
		redistest.Eventually(t, 20*time.Second, func(context.Context) error {
			if !ask(kind, owner, ttl) {
				return errors.New(owner + " is refused")
			}
			return nil
		})
	}
	got := []bool{ask(driver.Permit, "1", time.Minute), ask(driver.Permit, "2", 2*time.Second), ask(driver.Permit, "3", time.Minute), ask(driver.Exclusive, "4", time.Minute)}
	if !slices.Equal(got, []bool{true, true, false, false}) {
		t.Errorf("granted: %v", got)
	}
	s.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "1", Kind: driver.Permit, TTL: time.Hour}}, func(_ int, _ bool, err error) { wantErr(t, err, nil) })
	soon(driver.Permit, "3", time.Minute) // in the place of the second, which has ended
	leave("1")
	leave("3")
	soon(driver.Shared, "5", 50*time.Millisecond)
	soon(driver.Exclusive, "6", time.Minute) // as soon as that has ended
}

// exerciseRecords does with idempotency records what there is to do.
func exerciseRecords(t *testing.T, s record.Store) {
	t.Helper()
	ctx, soon := t.Context(), time.Now().Add(30*time.Second)
	claim := func(id, token string, lease time.Duration, strict bool) record.State {
		reply, err := s.Claim(ctx, record.ClaimRequest{
			ID: id, Token: token, Lease: lease, Retention: time.Minute, Strict: strict, Tombstone: true, Waits: true,
			Deadline: soon, Late: func(record.ClaimReply, error) {},
		})
		wantErr(t, err, nil)
		return reply.State
	}
	commit := func(id, token string) record.State {
		reply, err := s.Commit(ctx, record.CommitRequest{
			ID: id, Token: token, Generation: 1, Response: []byte("r"), Retention: time.Minute, Tombstone: time.Hour, Deadline: soon,
		})
		wantErr(t, err, nil)
		return reply.State
	}
	woken := make(chan struct{}, 10)
	got := []record.State{claim("a", "1", time.Minute, false)}
	stop := s.Await("a", time.Now(), func() { woken <- struct{}{} })
	defer stop()
	<-woken // since it cannot know what happened before
	s.Extend(ctx, []record.Extension{{ID: "a", Token: "1", Lease: time.Minute, Retention: time.Minute}}, func(_ int, err error) { wantErr(t, err, nil) })
	wantErr(t, s.Mark(ctx, record.MarkRequest{ID: "a", Token: "1", Lease: time.Minute, Retention: time.Minute, Deadline: soon}), nil)
	got = append(got, claim("a", "2", time.Minute, false), commit("a", "1"), claim("a", "3", time.Minute, false), commit("a", "4"))
	<-woken // by the commit
	got = append(got, claim("b", "1", time.Minute, false))
	wantErr(t, s.Abandon(ctx, record.AbandonRequest{ID: "b", Token: "1", Deadline: soon}), nil)
	claim("d", "1", time.Millisecond, false)
	redistest.Eventually(t, 30*time.Second, func(context.Context) error { // a take-over, which is given up in another way
		if state := claim("d", "2", time.Minute, false); state != record.StateGranted {
			return fmt.Errorf("state %d", state)
		}
		return nil
	})
	wantErr(t, s.Abandon(ctx, record.AbandonRequest{ID: "d", Token: "2", Deadline: soon}), nil)
	got = append(got, claim("c", "1", time.Millisecond, true))
	redistest.Eventually(t, 30*time.Second, func(context.Context) error {
		if state := claim("c", "2", time.Minute, true); state != record.StateUnknown {
			return fmt.Errorf("state %d", state)
		}
		return nil
	})
	wantErr(t, s.Resolve(ctx, record.ResolveRequest{ID: "c", Response: []byte("r"), Retention: time.Minute, Tombstone: time.Hour, Deadline: soon}), nil)
	wantErr(t, s.Forget(ctx, "c"), nil)
	want := []record.State{
		record.StateGranted, record.StateInFlight, record.StateGranted, record.StateCompleted,
		record.StateCompleted, record.StateGranted, record.StateGranted,
	}
	if !slices.Equal(got, want) {
		t.Errorf("states %v; want %v", got, want)
	}
}

func TestTheDocumentedRightsAreEnough(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		also string // the row of the table
		run  func(t *testing.T, user func(...*redistest.Server)) []*redistest.Server
	}{
		"locks": {"", func(t *testing.T, user func(...*redistest.Server)) []*redistest.Server {
			srv := redistest.Start(t)
			user(srv)
			exercise(t, newStore(t, srv.Client(t, as)), newStore(t, srv.Client(t, as)))
			return []*redistest.Server{srv}
		}},
		"places": {"shared locks", func(t *testing.T, user func(...*redistest.Server)) []*redistest.Server {
			srv := redistest.Start(t)
			user(srv)
			exercisePlaces(t, newStore(t, srv.Client(t, as)))
			return []*redistest.Server{srv}
		}},
		"another database": {"a database", func(t *testing.T, user func(...*redistest.Server)) []*redistest.Server {
			srv := redistest.Start(t)
			user(srv)
			second := func(o *redis.Options) { as(o); o.DB = 1 }
			exercise(t, newStore(t, srv.Client(t, second)), newStore(t, srv.Client(t, second)))
			return []*redistest.Server{srv}
		}},
		"a client with a name": {"ClientName", func(t *testing.T, user func(...*redistest.Server)) []*redistest.Server {
			srv := redistest.Start(t)
			user(srv)
			named := func(o *redis.Options) { as(o); o.ClientName = "debits" }
			exercise(t, newStore(t, srv.Client(t, named)), newStore(t, srv.Client(t, named)))
			return []*redistest.Server{srv}
		}},
		"idempotency": {"core/idempotency", func(t *testing.T, user func(...*redistest.Server)) []*redistest.Server {
			srv := redistest.Start(t)
			user(srv)
			exerciseRecords(t, newStore(t, srv.Client(t, as)))
			return []*redistest.Server{srv}
		}},
		"replica acknowledgement": {"Replicas", func(t *testing.T, user func(...*redistest.Server)) []*redistest.Server {
			set := redistest.Replicated(t, 1)
			user(set.Master)
			ack := func() core.Store {
				return newStore(t, set.Master.Client(t, as), redisstore.Replicas(1, 3*time.Second), redisstore.ReplicatedRenewals())
			}
			exercise(t, ack(), ack())
			return []*redistest.Server{set.Master}
		}},
		"Check": {"Store.Check", func(t *testing.T, user func(...*redistest.Server)) []*redistest.Server {
			srv := redistest.Start(t)
			user(srv)
			if _, err := newStore(t, srv.Client(t, as)).Check(t.Context()); err != nil {
				t.Error(err)
			}
			return []*redistest.Server{srv}
		}},
		"quorum": {"core/quorum", func(t *testing.T, user func(...*redistest.Server)) []*redistest.Server {
			servers := redistest.Independent(t, 3)
			user(servers...)
			process := func() core.Store {
				var nodes []redis.UniversalClient
				for _, srv := range servers {
					nodes = append(nodes, srv.Client(t, as))
				}
				s, err := quorum.New(nodes, quorum.AdmitYoung(), quorum.NodeTimeout(2*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				return s
			}
			exercise(t, process(), process())
			return servers
		}},
		"Sentinel": {"", func(t *testing.T, user func(...*redistest.Server)) []*redistest.Server {
			set := redistest.Sentinel(t, 1)
			user(append(set.Replicas, set.Master)...)
			as := func(o *redis.FailoverOptions) { o.Username, o.Password = "interlock", "password" }
			exercise(t, newStore(t, set.Client(t, as)), newStore(t, set.Client(t, as)))
			return append(set.Replicas, set.Master)
		}},
		"Cluster": {"Cluster", func(t *testing.T, user func(...*redistest.Server)) []*redistest.Server {
			set := redistest.Cluster(t, 3, 0)
			user(set.Nodes()...)
			as := func(o *redis.ClusterOptions) { o.Username, o.Password = "interlock", "password" }
			exercise(t, newStore(t, set.Client(t, as)), newStore(t, set.Client(t, as)))
			return set.Nodes()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			servers := c.run(t, func(servers ...*redistest.Server) { restricted(t, servers, alsoFor(t, c.also)...) })
			if denied := denials(t, servers); len(denied) != 0 {
				t.Errorf("refused by a server:\n%s", strings.Join(denied, "\n"))
			}
		})
	}
}

func TestAMissingRightIsNamed(t *testing.T) {
	srv := redistest.Start(t)
	admin := srv.Client(t)
	rule := append(documented(t), "-evalsha", "-eval")
	if err := admin.Do(t.Context(), rule...).Err(); err != nil {
		t.Fatal(err)
	}
	l := newLocker(t, srv.Client(t, func(o *redis.Options) { o.Username, o.Password = "interlock", "password" }))
	_, err := tryLock(t, l, "k")
	wantErr(t, err, core.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "NOPERM") || !strings.Contains(err.Error(), "evalsha") {
		t.Errorf("the error does not name the right: %v", err)
	}
	var redisErr redis.Error
	if !errors.As(err, &redisErr) {
		t.Errorf("the server's error is not in %v", err)
	}
}

// A user who may write but not set an expiry must not leave a lock that nobody
// has and that never ends.
func TestALockThatGetsNoExpiryIsNoLock(t *testing.T) {
	servers := redistest.Independent(t, 3)
	var nodes []redis.UniversalClient
	for _, srv := range servers {
		admin := srv.Client(t)
		if err := admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all", "-pexpire").Err(); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, srv.Client(t, func(o *redis.Options) { o.Username, o.Password = "app", "p" }))
	}
	votes, err := quorum.New(nodes, quorum.AdmitYoung(), quorum.NodeTimeout(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = votes.Close() })
	several, err := core.New(votes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = several.Close(context.Background()) })
	for name, l := range map[string]*core.Locker{"single": newLocker(t, nodes[0]), "quorum": several} {
		_, err := l.TryLock(t.Context(), name)
		wantErr(t, err, core.ErrUnavailable)
		for _, srv := range servers {
			if n := srv.Client(t).Exists(t.Context(), "interlock:{"+name+"}").Val(); n != 0 {
				t.Errorf("%s: a lock that nobody has is left", name)
			}
		}
	}
}
