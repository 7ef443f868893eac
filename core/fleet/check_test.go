//go:build integration

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
	"github.com/interlock-go/interlock/internal/redistest"
)

// user makes a user of a server and returns a client of that user.
func user(t *testing.T, srv *redistest.Server, rules ...string) *redis.Client {
	t.Helper()
	wantErr(t, redistest.SetUser(t.Context(), srv.Client(t), "tested", rules...), nil)
	return srv.Client(t, func(o *redis.Options) {
		o.Username, o.Password, o.DisableIdentity = "tested", "password", true
	})
}

const reading = "`interlock ls`, `inspect`, `lockers`, `wait`"

func TestTheRightToReadIsEnoughToRead(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	w := worldOf(t, srv.Client(t), "interlock")
	lease := w.lock(w.process(), "k")
	w.lock(w.process(), "places", core.Shared())
	f := w.fleetOf(user(t, srv, append(redistest.RightsFor(t, reading), "%R~interlock:*")...))
	w.eventually(f, "k", func(l fleet.Lock) bool { return l.Held == 1 && l.Holders[0].Locker.Listed })
	if all := w.list(f, "*"); len(all) != 2 {
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
		t.Errorf("%v; want an error that names the right", err)
	}
	wantErr(t, lease.Check(t.Context()), nil)
}

func TestAUserThatMayNotAskForRightsTries(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	w := worldOf(t, srv.Client(t), "interlock")
	all := redistest.Rights(t, "shared locks and permits", "`Store.Check`")
	all = slices.DeleteFunc(all, func(r string) bool { return r == "on" || r[0] == '>' })
	check := func(rules []string) fleet.Report {
		r := w.check(w.fleetOf(user(t, srv, rules...)), "")
		if !r.Tried || r.User != "tested" {
			t.Fatalf("%+v", r)
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
	if n := w.rdb.DBSize(t.Context()).Val(); n > 40 { // fences
		t.Errorf("%d keys are left", n)
	}
}

// A user that is switched off has all rights, and may not log in.
func TestTheRightsOfAUserThatIsSwitchedOff(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	w := worldOf(t, srv.Client(t), "interlock")
	user(t, srv, "+@all", "~*", "&*")
	off := fleet.MissingRight{For: "locks", Right: "on"}
	for _, protocol := range []int{2, 3} {
		f := w.fleetOf(srv.Client(t, func(o *redis.Options) { o.Protocol = protocol }))
		for state, want := range map[string][]fleet.MissingRight{"on": nil, "off": {off}} {
			wantErr(t, w.rdb.Do(t.Context(), "ACL", "SETUSER", "tested", state).Err(), nil)
			if r, err := f.Check(t.Context(), "tested"); err != nil || !slices.Equal(r.Missing, want) || r.Safe() && len(want) > 0 {
				t.Errorf("protocol %d, %s: %+v, %v; want %v to be missing", protocol, state, r, err, want)
			}
		}
	}
	f := w.fleetOf(user(t, srv, "+@all", "-acl|getuser", "~*", "&*"))
	if r, err := f.Check(t.Context(), "default"); err != nil || !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "+acl|getuser") }) {
		t.Errorf("%+v, %v; want a note that names the right", r, err)
	}
}

// A connection that cannot be made is an error, and never a lock that is free.
func TestAServerThatCannotBeAskedIsAnError(t *testing.T) {
	t.Parallel()
	gone := redistest.Start(t)
	// One refused dial is enough. After as many as its pool is large, go-redis would go on
	// to dial in the background.
	goneClient := gone.Client(t, func(o *redis.Options) { o.MaxRetries, o.DialerRetries, o.PoolSize = -1, 1, 1000 })
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
			f := (&world{t: t, prefix: "interlock"}).fleetOf(rdb)
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

// A proxy refuses most questions of a Check. The Check reports the answers to the others
// all the same.
func TestAProxyThatDistributesKeysIsNamed(t *testing.T) {
	t.Parallel()
	servers := redistest.Independent(t, 2)
	proxy := redistest.Sharding(t, servers, func(key string) int { return int(key[len(key)-2] % 2) },
		"HELLO", "SUBSCRIBE", "SCRIPT", "INFO", "CONFIG", "ACL", "SCAN")
	rdb := servers[0].Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
	report, err := worldOf(t, rdb, "interlock").fleet().Check(t.Context(), "")
	if err != nil || report.Safe() || len(report.Servers) != 1 || len(report.Missing) != 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	for i, want := range []string{"it cannot be asked what it is", "several servers have the keys"} {
		if len(report.Unsafe) != 2 || !strings.Contains(report.Unsafe[i], want) {
			t.Errorf("%q, want %q", report.Unsafe, want)
		}
	}
}
