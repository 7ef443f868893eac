package fleet_test

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
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// documented returns the rules of docs/operations.md: those of a lock, and those of some
// rows of the table below them.
func documented(t *testing.T, rows ...string) (rules []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "ACL SETUSER interlock on ")
	line, table, _ := strings.Cut(after, "\n")
	rules = strings.Fields(line)
	if len(rows) > 0 && rows[0] == "" { // these alone
		rules, rows = nil, rows[1:]
	}
	for _, row := range rows {
		_, cells, ok := strings.Cut(table, "| "+row+" | ")
		if !ok {
			t.Fatalf("docs/operations.md has no row %q", row)
		}
		cells, _, _ = strings.Cut(cells, "\n")
		for _, f := range strings.Fields(strings.NewReplacer("`", " ", `\|`, "|").Replace(cells)) {
			if strings.HasPrefix(f, "+") {
				rules = append(rules, f)
			}
		}
	}
	return rules
}

// user makes a user with rules and returns a client of that user.
func user(t *testing.T, srv *redistest.Server, rules ...string) *redis.Client {
	t.Helper()
	args := []any{"ACL", "SETUSER", "tested", "reset", "on", ">password"}
	for _, r := range rules {
		args = append(args, r)
	}
	if err := srv.Client(t).Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	return srv.Client(t, func(o *redis.Options) {
		o.Username, o.Password, o.DisableIdentity = "tested", "password", true
	})
}

const reading = "`interlock ls`, `inspect`, `lockers`, `wait`"

func TestTheRightToReadIsEnoughToRead(t *testing.T) {
	srv := redistest.Start(t)
	lease := lock(t, process(t, srv.Client(t)), "k")
	lock(t, process(t, srv.Client(t)), "places", core.Shared())
	f := open(t, user(t, srv, append(documented(t, "", reading), "%R~interlock:*")...))
	eventually(t, f, "k", func(l fleet.Lock) bool { return l.Held == 1 && l.Holders[0].Locker.Listed })
	if all := list(t, f, "*"); len(all) != 2 {
		t.Errorf("%v", all)
	}
	for l, err := range f.Lockers(t.Context()) {
		if err != nil || l.PID != os.Getpid() {
			t.Errorf("%+v, %v", l, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantErr(t, f.Wait(ctx, "k"), context.DeadlineExceeded)
	wantErr(t, f.Wait(t.Context(), "free"), nil)
	_, err := f.Release(t.Context(), "k", lease.Token())
	if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "+evalsha") {
		t.Errorf("%v; want one that names the right", err)
	}
	wantErr(t, lease.Check(t.Context()), nil)
}

func TestTheRightsAreThoseOfTheDocuments(t *testing.T) {
	topologies(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := open(t, rdb)
		ask := func(rules []string) []string {
			args := []any{"ACL", "SETUSER", "service", "reset", "on", ">x"}
			for _, r := range rules {
				args = append(args, r)
			}
			set := func(ctx context.Context, node *redis.Client) error { return node.Do(ctx, args...).Err() }
			var err error
			if c, ok := rdb.(*redis.ClusterClient); ok {
				err = c.ForEachMaster(t.Context(), set)
			} else {
				err = set(t.Context(), rdb.(*redis.Client))
			}
			wantErr(t, err, nil)
			r, err := f.Check(t.Context(), "service")
			if err != nil || r.User != "service" || r.Tried {
				t.Fatalf("%+v, %v", r, err)
			}
			var missing []string
			for _, m := range r.Missing {
				missing = append(missing, m.Right)
			}
			return missing
		}
		all := documented(t, "idempotency records (`core/idempotency`)", "shared locks and permits", "`Store.Check`", "Cluster")
		if missing := ask(all); len(missing) > 0 {
			t.Errorf("the documented rights are not enough: %q", missing)
		}
		_, cluster := rdb.(*redis.ClusterClient)
		for _, rule := range all {
			if rule == "+hello" || !strings.HasPrefix(rule, "+") || !cluster && (rule == "+asking" || rule == "+command") {
				continue
			}
			without := slices.DeleteFunc(slices.Clone(all), func(r string) bool { return r == rule })
			if missing := ask(without); !slices.Equal(missing, []string{rule}) {
				t.Errorf("without %s: %q is missing", rule, missing)
			}
		}
	})
}

func TestAUserThatMayNotAskForRightsTries(t *testing.T) {
	srv := redistest.Start(t)
	all := documented(t, "shared locks and permits", "`Store.Check`")
	all = slices.DeleteFunc(all, func(r string) bool { return r == "on" || r[0] == '>' })
	check := func(rules []string) fleet.Report {
		r, err := open(t, user(t, srv, rules...)).Check(t.Context(), "")
		if err != nil || !r.Tried || r.User != "tested" {
			t.Fatalf("%+v, %v", r, err)
		}
		return r
	}
	if r := check(all); len(r.Missing) > 0 {
		t.Errorf("%+v", r.Missing)
	}
	for _, rule := range []string{"+evalsha", "+pexpire", "+del", "+hset", "+hlen", "+hdel", "+info", "+config|get", "~interlock:*"} {
		without := slices.DeleteFunc(slices.Clone(all), func(r string) bool { return r == rule })
		r := check(without)
		rights := fmt.Sprint(r.Missing)
		if r.Safe() || !strings.Contains(rights, strings.TrimSuffix(strings.TrimSuffix(rule, "interlock:*"), "|get")) {
			t.Errorf("without %s: %s", rule, rights)
		}
	}
	if n := srv.Client(t).DBSize(t.Context()).Val(); n > 40 { // fences
		t.Errorf("%d keys are left", n)
	}
}

func TestCheckSaysWhatTheServersAre(t *testing.T) {
	topologies(t, func(t *testing.T, rdb redis.UniversalClient) {
		r, err := open(t, rdb).Check(t.Context(), "")
		if err != nil || r.Safe() || len(r.Unsafe) == 0 || len(r.Missing) > 0 || r.User != "default" {
			t.Fatalf("%+v, %v", r, err)
		}
		want := 1
		if _, cluster := rdb.(*redis.ClusterClient); cluster {
			want = 3
		}
		if len(r.Servers) != want {
			t.Errorf("%d servers: %+v", len(r.Servers), r.Servers)
		}
		for _, s := range r.Servers {
			if s.Addr == "" || s.Role != "master" || s.Version == "" || s.Policy != "noeviction" || s.Err != nil ||
				s.RoundTrip <= 0 || s.Slowest < s.RoundTrip || s.Ahead > time.Second || s.Ahead < -time.Second {
				t.Errorf("%+v", s)
			}
		}
		if r.ClockSpread < 0 || r.ClockSpread > time.Second {
			t.Errorf("spread %v on one machine", r.ClockSpread)
		}
	})
}

// A connection that cannot be made is an error, and never a lock that is free.
func TestAServerThatCannotBeAskedIsAnError(t *testing.T) {
	gone := redistest.Start(t)
	goneClient := gone.Client(t)
	gone.Kill()
	denies := redistest.Start(t)
	user(t, denies, "+@all", "~*", "&*")
	for name, rdb := range map[string]*redis.Client{
		"gone": goneClient,
		"denies": denies.Client(t, func(o *redis.Options) {
			o.Username, o.Password, o.DisableIdentity = "tested", "another", true
		}),
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t, rdb)
			_, err := f.Inspect(t.Context(), "k")
			wantErr(t, err, driver.ErrUnavailable)
			_, err = f.Release(t.Context(), "k", 1)
			wantErr(t, err, driver.ErrUnavailable)
			_, err = f.Record(t.Context(), "p", "k")
			wantErr(t, err, driver.ErrUnavailable)
			_, err = f.Check(t.Context(), "")
			if r, _ := f.Check(t.Context(), ""); err == nil && r.Safe() {
				t.Errorf("safe: %+v", r)
			}
			wantErr(t, f.Wait(t.Context(), "k"), driver.ErrUnavailable)
			n := 0
			for _, err := range f.Locks(t.Context(), "") {
				wantErr(t, err, driver.ErrUnavailable)
				n++
			}
			for _, err := range f.Lockers(t.Context()) {
				wantErr(t, err, driver.ErrUnavailable)
				n++
			}
			if n != 2 {
				t.Errorf("%d errors of two iterations", n)
			}
		})
	}
}

func TestRecordsAreShownInEachState(t *testing.T) {
	topologies(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := open(t, rdb)
		store, err := redisstore.New(rdb, redisstore.Timeout(10*time.Second))
		wantErr(t, err, nil)
		defer store.Close()
		n := 0
		claim := func(key string, lease time.Duration) (fleet.Record, string) {
			r, err := f.Record(t.Context(), "tenant", key)
			if err != nil || r.State != fleet.RecordNone {
				t.Fatalf("%+v, %v", r, err)
			}
			n++
			token := fmt.Sprintf("token:%d", n)
			rep, err := store.Claim(t.Context(), record.ClaimRequest{
				ID: r.ID, Token: token, Lease: lease, Retention: time.Hour, Deadline: time.Now().Add(time.Minute),
			})
			if err != nil || rep.State != record.StateGranted {
				t.Fatalf("%+v, %v", rep, err)
			}
			return r, token
		}
		is := func(key, state string) (r fleet.Record) {
			t.Helper()
			redistest.Eventually(t, time.Minute, func(ctx context.Context) error {
				var err error
				if r, err = f.Record(ctx, "tenant", key); err == nil && r.State != state {
					err = fmt.Errorf("%+v; want %s", r, state)
				}
				return err
			})
			return r
		}
		claim("in-flight", time.Minute)
		if r := is("in-flight", fleet.RecordInFlight); r.Lease <= 30*time.Second || r.Lease > time.Minute || r.Kept <= r.Lease ||
			r.Generation != 1 || r.Marked {
			t.Errorf("%+v", r)
		}
		r, token := claim("lapsed", time.Millisecond)
		is("lapsed", fleet.RecordLapsed)
		mark := record.MarkRequest{ID: r.ID, Token: token, Lease: time.Millisecond, Retention: time.Hour, Deadline: time.Now().Add(time.Minute)}
		wantErr(t, store.Mark(t.Context(), mark), nil)
		if r := is("lapsed", fleet.RecordUnknown); !r.Marked {
			t.Errorf("%+v", r)
		}

		// An engine stores the answers, and the operator's.
		e, err := idempotency.New(store, idempotency.Global())
		wantErr(t, err, nil)
		defer e.Close(t.Context())
		answer := endpoint.Response{Status: 201, Header: map[string][]string{"Content-Type": {"text/plain"}}, Body: []byte("secret")}
		wantErr(t, e.Resolve(t.Context(), "tenant", "lapsed", admin.CarriedOut(endpoint.HTTP, answer)), nil)
		if r := is("lapsed", fleet.RecordCompleted); r.Protocol != endpoint.HTTP || r.Status != 201 || r.Size < 10 || r.Sealed {
			t.Errorf("%+v", r)
		}
		wantErr(t, e.Forget(t.Context(), "tenant", "lapsed"), nil)
		is("lapsed", fleet.RecordNone)

		r, token = claim("unavailable", time.Minute)
		_, err = store.Commit(t.Context(), record.CommitRequest{
			ID: r.ID, Token: token, Generation: 1, Retention: 100 * time.Millisecond, Tombstone: time.Minute, Deadline: time.Now().Add(time.Minute),
		})
		wantErr(t, err, nil)
		is("unavailable", fleet.RecordUnavailable)
		if err := rdb.Del(t.Context(), "interlock:idem:{"+r.ID+"}").Err(); err != nil {
			t.Fatal(err)
		}
		is("unavailable", fleet.RecordExpired)

		r, _ = claim("damaged", time.Minute)
		rdb.HSet(t.Context(), "interlock:idem:{"+r.ID+"}", "v", "2")
		is("damaged", fleet.RecordDamaged)
		rdb.Set(t.Context(), "interlock:idem:{"+r.ID+"}", "x", 0)
		is("damaged", fleet.RecordDamaged)
	})
}
