//go:build long

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/display"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestLsShowsTheLocksAndTheirProcesses(t *testing.T) {
	topologies(t, func(s *servers) {
		t := s.t
		if r := s.want(0, "ls"); strings.Count(r.out, "\n") != 1 || !strings.HasPrefix(r.out, "KEY  ") {
			t.Errorf("without locks:\n%s", r.out)
		}
		a, b := s.process(core.Service("bank", "v1")), s.process(core.Service("cron", "v2"))
		lease := s.lock(a, "account/1")
		s.lock(b, "account/2", core.Shared())
		s.lock(a, "account/2", core.Shared())
		s.lock(b, "job")
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan error, 1)
		go func() {
			_, err := b.Lock(ctx, "account/1")
			waited <- err
		}()
		defer func() {
			cancel()
			wantErr(t, <-waited, context.Canceled)
		}()

		host, _ := os.Hostname()
		holder := fmt.Sprintf("%s/%d/bank", host, os.Getpid())
		r := s.until(func(r ran) bool {
			return strings.Contains(r.out, holder) && strings.Contains(r.out, "/cron") && strings.Contains(r.out, " 1 ")
		}, "ls", "-sort", "waiters", "account/*")
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		if len(lines) != 3 {
			t.Fatalf("\n%s", r.out)
		}
		first := strings.Fields(lines[1])
		if len(first) != 7 || first[0] != "account/1" || first[1] != holder || first[2] != text(lease.Token()) || first[5] != "1" || first[6] != core.Hashed("account/1").Hash() {
			t.Errorf("%q", first)
		}
		if left, err := time.ParseDuration(first[3]); err != nil || left <= 0 || left > 30*time.Second {
			t.Errorf("lease left: %q", first[3])
		}
		if !strings.Contains(lines[2], " and 1 more ") {
			t.Errorf("%q", lines[2])
		}

		all := decode[show.Lock](t, s.want(0, "ls", "-json"))
		keys := map[string]show.Lock{}
		for _, l := range all {
			keys[l.Key] = l
		}
		l := keys["account/1"]
		if len(all) != 3 || len(keys) != 3 || l.Kind != "exclusive" || l.Held != 1 || l.Fence != lease.Token() || len(l.Waiters) != 1 {
			t.Fatalf("%+v", all)
		}
		h, w := l.Holders[0], l.Waiters[0]
		if h.Token != lease.Token() || h.Locker.Host != host || h.Locker.PID != os.Getpid() || h.Locker.Service != "bank" ||
			h.Locker.Version != "v1" || h.Locker.Renews != "yes" || h.Since == nil || h.AgeMS <= 0 || h.LeaseLeftMS <= 0 ||
			!h.Locker.Listed || h.Owner[:33] != h.Locker.ID+":" || h.Locker.Seen == nil || h.Locker.Started == nil {
			t.Errorf("holder %+v", h)
		}
		if w.Locker.Service != "cron" || w.Place || w.Called {
			t.Errorf("waiter %+v", w)
		}
		if l := keys["account/2"]; l.Kind != "places" || l.Held != 2 || len(l.Holders) != 2 || len(l.Waiters) != 0 || l.Waiters == nil {
			t.Errorf("%+v", l)
		}
		var ages []string
		for _, l := range decode[show.Lock](t, s.want(0, "ls", "-json", "--sort", "age")) {
			ages = append(ages, l.Key)
		}
		if !slices.Equal(ages, []string{"account/1", "account/2", "job"}) {
			t.Errorf("by age: %q", ages)
		}
		for _, args := range [][]string{{"ls", "-limit", "2"}, {"ls", "-limit", "2", "-sort", "key"}} {
			if r := s.want(0, args...); strings.Count(r.out, "\n") != 3 || !strings.Contains(r.stderr, "more than 2") {
				t.Errorf("%q:\n%s%s", args, r.out, r.stderr)
			}
		}
		lockers := decode[show.Locker](t, s.want(0, "lockers", "-json"))
		if len(lockers) != 2 || lockers[0].PID != os.Getpid() || !lockers[0].Listed {
			t.Errorf("%+v", lockers)
		}
		if r := s.want(0, "lockers"); strings.Count(r.out, "\n") != 3 || !strings.Contains(r.out, h.Locker.ID) {
			t.Errorf("\n%s", r.out)
		}
	})
}

func TestReleaseTakesTheGrantThatIsNamedAndNoOther(t *testing.T) {
	topologies(t, func(s *servers) {
		t := s.t
		lost := make(chan observe.Loss, 1)
		a, b := s.process(core.Watchdog(9*time.Second), core.OnLost(func(l core.Loss) { lost <- l })), s.process()
		lease := s.lock(a, "it's")
		next := make(chan *core.Lease, 1)
		go func() {
			lease, err := b.Lock(t.Context(), "it's")
			if err != nil {
				t.Error(err)
			}
			next <- lease
		}()
		s.until(func(r ran) bool { return strings.Contains(r.out, "waits 1") }, "inspect", "it's")

		line := "interlock release -token " + text(lease.Token()) + ` 'it'\''s'`
		if r := s.want(exitUsage, "release", "it's"); !strings.Contains(r.stderr, line) || r.out != "" {
			t.Errorf("%+v; want a line with %s", r, line)
		}
		j := decode[show.Lock](t, s.want(exitUsage, "release", "it's", "-json"))
		if len(j) != 1 || j[0].Holders[0].Token != lease.Token() {
			t.Errorf("%+v", j)
		}
		wrong := lease.Token() + 1
		if r := s.want(exitNo, "release", "it's", "--token", text(wrong)); !strings.Contains(r.stderr, line) {
			t.Errorf("%+v", r)
		}
		if err := lease.Check(t.Context()); err != nil {
			t.Fatalf("lost before it was released: %v", err)
		}

		// A shown key can be typed.
		path, env := tool(t)
		shell := exec.Command("sh", "-c", strings.Replace(line, "interlock", path+" "+strings.Join(s.args, " "), 1))
		shell.Env = append(os.Environ(), env)
		out, err := shell.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "released it's: token "+text(lease.Token())) ||
			!strings.Contains(string(out), "an operator has released a lock") {
			t.Errorf("%v\n%s", err, out)
		}
		if loss := <-lost; loss.Token != lease.Token() {
			t.Errorf("%+v", loss)
		}
		second := <-next
		if second.Token() <= lease.Token() {
			t.Errorf("token %d after %d", second.Token(), lease.Token())
		}
		r := decode[show.Result](t, s.want(0, "release", "-json", "it's", "-token", text(second.Token())))
		if len(r) != 1 || r[0].Result != "released" || r[0].Holder.Token != second.Token() {
			t.Errorf("%+v", r)
		}
		if r := s.want(exitNo, "release", "it's", "-token", text(second.Token())); !strings.Contains(r.stderr, "is free") {
			t.Errorf("%+v", r)
		}
		wantErr(t, second.Check(t.Context()), core.ErrLost)
	})
}

func TestReleaseNowTakesLocksOnlyFromAttentiveHolders(t *testing.T) {
	topologies(t, func(s *servers) {
		t := s.t
		l := s.process(core.Watchdog(time.Hour))
		plain, lease := s.lock(l, "plain"), s.lock(l, "attentive", core.Attentive())
		if r := s.want(exitNo, "release", "-now", "-token", text(plain.Token()), "plain"); !strings.Contains(r.stderr, "not released") {
			t.Errorf("%+v", r)
		}
		if err := plain.Check(t.Context()); err != nil {
			t.Errorf("the holder that would work on: %v", err)
		}
		if r := s.want(0, "release", "-now", "-token", text(lease.Token()), "attentive"); !strings.Contains(r.out, "which is told at once") {
			t.Errorf("%+v", r)
		}
		<-lease.Context().Done() // an hour passes before a renewal
		if j := decode[show.Lock](t, s.want(0, "inspect", "plain", "-json")); j[0].Holders[0].Attentive {
			t.Errorf("%+v", j)
		}
	})
}

func TestWaitReturnsWhenTheLockIsFree(t *testing.T) {
	s := alone(t)
	lease := s.lock(s.process(), "k")
	s.want(0, "wait", "free")
	if r := s.want(exitHeld, "wait", "k", "-timeout", "100ms"); !strings.Contains(r.stderr, "still held") {
		t.Errorf("%+v", r)
	}
	if r := decode[show.Result](t, s.want(exitHeld, "wait", "k", "-timeout", "100ms", "-json")); r[0].Result != "held" {
		t.Errorf("%+v", r)
	}
	done := make(chan ran, 1)
	go func() { done <- s.run("wait", "k", "-json") }()
	select {
	case r := <-done:
		t.Fatalf("returned while the lock is held: %+v", r)
	case <-time.After(300 * time.Millisecond):
	}
	wantErr(t, lease.Release(t.Context()), nil)
	if r := <-done; r.code != 0 || decode[show.Result](t, r)[0].Result != "free" {
		t.Errorf("%+v", r)
	}

	s.lock(s.process(), "other")
	list, err := s.rdb.ClientList(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	before := strings.Count(list, "\n")
	cmd := s.command(t.Context(), "wait", "other")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// When it is connected, it has asked for signals before.
	redistest.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		list, err := s.rdb.ClientList(ctx).Result()
		if err == nil && strings.Count(list, "\n") <= before {
			err = errors.New("the process is not connected")
		}
		return err
	})
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitStopped {
		t.Errorf("exit code %d after SIGINT", code)
	}
}

func TestWatchShowsTheListAgainAndAgain(t *testing.T) {
	s := alone(t)
	s.lock(s.process(), "first")
	cmd := s.command(t.Context(), "ls", "-watch", "-every", "50ms", "-limit", "1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var seen strings.Builder
	read := func(want string) {
		t.Helper()
		seen.Reset()
		for buf := make([]byte, 4096); !strings.Contains(seen.String(), want); {
			n, err := out.Read(buf)
			seen.Write(buf[:n])
			if err != nil {
				t.Fatalf("%v after\n%s", err, &seen)
			}
		}
	}
	read("  1 locks\n")
	s.lock(s.process(), "second")
	read("of more than 1\n")
	if strings.Contains(seen.String(), "\x1b") {
		t.Errorf("escapes where no terminal is: %q", seen.String())
	}
	_ = cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
}

func TestHostileTextsAreShownEscapedAndCanBeTyped(t *testing.T) {
	s := alone(t)
	l := s.process(core.Service("\x1b]0;title\a", "\u202ev1"))
	keys := []string{
		"\x1b[2J\x00\n\t\r", "\u202eevil\u2066", "\xff\xfe\xc3", "<script>alert(1)</script>", `back\slash\x41`, "{}", "\u200b", "a b",
		"\U000e0041", "\u2028",
	}
	for _, key := range keys {
		s.lock(l, key)
	}
	harmless := func(r ran) {
		t.Helper()
		for _, r := range r.out + r.stderr {
			if r != '\n' && (r < ' ' || r > '~') {
				t.Errorf("%U is shown", r)
			}
		}
	}
	r := s.until(func(r ran) bool { return strings.Contains(r.out, `\x1b]0;title`) }, "ls")
	harmless(r)
	if n := strings.Count(r.out, "\n"); n != len(keys)+1 {
		t.Errorf("%d lines for %d locks:\n%s", n, len(keys), r.out)
	}
	r = s.want(0, "ls", "-json")
	harmless(r)
	if strings.Contains(r.out, "<script>") {
		t.Errorf("\n%s", r.out)
	}
	shown := map[string]bool{}
	for _, j := range decode[show.Lock](t, r) {
		shown[j.Key] = true
		r := s.want(0, "inspect", "--", j.Key)
		harmless(r)
		again := decode[show.Lock](t, s.want(0, "inspect", "-json", "--", j.Key))
		if again[0].Key != j.Key || again[0].Holders[0].Token != j.Holders[0].Token {
			t.Errorf("%q is typed, and %q is found", j.Key, again[0].Key)
		}
		harmless(s.want(exitUsage, "release", "--", j.Key))
		harmless(s.want(exitNo, "release", "-token", "1", "--", j.Key))
	}
	for _, key := range keys {
		if !shown[display.Text(key)] {
			t.Errorf("%q is not listed", key)
		}
	}
	harmless(s.want(0, "lockers"))
	harmless(s.want(exitUsage, "\x1b[2J\u202e"))
	harmless(s.want(exitUsage, "inspect", `\q`))
	harmless(s.want(exitUsage, "ls", "-sort", "\x1b"))
}

func TestIdemShowsAndSettlesARecord(t *testing.T) {
	s := alone(t)
	show1 := func(code int, principal, key string) show.Record {
		t.Helper()
		return decode[show.Record](t, s.want(code, "idem", "show", principal, key, "-json"))[0]
	}
	if r := show1(exitNo, "p", "k"); r.State != "none" {
		t.Errorf("%+v", r)
	}
	id := show1(exitNo, "p", "k").ID
	unknown := func(id string) { // of a process that died in its effect
		s.rdb.HSet(t.Context(), "interlock:idem:{"+id+"}", "v", "1", "t", "x:1", "f", "f", "g", "2", "s", "c", "u", "1", "m", "1")
		s.rdb.PExpire(t.Context(), "interlock:idem:{"+id+"}", time.Hour)
	}
	unknown(id)
	if r := show1(0, "p", "k"); r.State != "unknown" || !r.Marked || r.Generation != 2 || r.KeptMS <= 0 {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{
		{"idem", "forget", "p", "k"},
		{"idem", "forget", "p", "k", "-state", "completed"},
	} {
		if r := s.want(exitUsage, args...); r.stderr == "" {
			t.Errorf("%q says nothing", args)
		}
	}
	if r := s.input("made", "idem", "resolve", "p", "k", "-status", "201", "-header", "x-a: b", "-body", "-"); r.code != 0 || r.out != "resolved\n" {
		t.Fatalf("%+v", r)
	}
	if r := show1(0, "p", "k"); r.State != "completed" || r.Protocol != "http" || r.Status != 201 || r.Size < 4 || r.Sealed {
		t.Errorf("%+v", r)
	}
	if r := s.want(0, "idem", "show", "p", "k"); !strings.Contains(r.out, "http 201, ") || strings.Contains(r.out, "made") {
		t.Errorf("\n%s", r.out)
	}
	s.want(exitNo, "idem", "resolve", "p", "k", "-not-carried-out")
	if r := decode[show.Result](t, s.want(0, "idem", "forget", "p", "k", "-state", "completed", "-json")); r[0].Result != "forgotten" {
		t.Errorf("%+v", r)
	}
	show1(exitNo, "p", "k")

	function := decode[show.Record](t, s.want(exitNo, "idem", "show", "-function", "p", "k", "-json"))[0]
	if function.ID == id {
		t.Error("-function makes no difference")
	}
	unknown(function.ID)
	s.want(0, "idem", "resolve", "-function", "p", "k", "-not-carried-out")
	s.want(exitNo, "idem", "show", "-function", "p", "k")
}

// A log has the hash of a key, and the hash of a record.
func TestTheHashOfALogLeadsToTheLockAndTheRecord(t *testing.T) {
	s := alone(t)
	lease := s.lock(s.process(), "account/42")
	hash := core.Hashed("account/42").Hash()
	if l := decode[show.Lock](t, s.want(0, "inspect", "-json", hash)); l[0].Key != "account/42" || l[0].Hash != hash || l[0].Holders[0].Token != lease.Token() {
		t.Errorf("%+v; want the lock that the hash names", l)
	}
	if r := s.want(0, "ls", "account/42"); !strings.Contains(r.out, hash) {
		t.Errorf("%q has no hash %s", r.out, hash)
	}
	s.want(exitNo, "inspect", "0123456789abcdef")
	unknown := strings.Repeat("u", 43)
	for id, state := range map[string]string{unknown: "c", strings.Repeat("d", 43): "d"} {
		s.rdb.HSet(t.Context(), "interlock:idem:{"+id+"}", "v", "1", "t", "x:1", "f", "f", "f2", "f", "g", "1", "s", state, "u", "1", "m", "1")
		s.rdb.PExpire(t.Context(), "interlock:idem:{"+id+"}", time.Hour)
	}
	all := decode[show.Record](t, s.want(0, "idem", "ls", "-state", "unknown", "-json"))
	if len(all) != 1 || all[0].ID != unknown || len(all[0].Downstream) != 36 {
		t.Fatalf("%+v; want the unknown record, with the key of the bank", all)
	}
	if r := s.want(0, "idem", "show", unknown); !strings.Contains(r.out, all[0].Downstream) {
		t.Errorf("%q has no downstream key", r.out)
	}
	if r := s.want(0, "idem", "ls"); strings.Count(r.out, "\n") != 3 {
		t.Errorf("%q; want a header and two records", r.out)
	}
	s.want(0, "idem", "resolve", unknown, "-not-carried-out")
	s.want(exitNo, "idem", "show", unknown)
}

// A failover ends no list that an operator watches.
func TestAWatchedListLivesThroughAnError(t *testing.T) {
	srv := redistest.Start(t)
	s := of(t, srv)
	s.lock(s.process(), "k")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := s.command(ctx, "ls", "-watch", "-every", "20ms")
	out, err := cmd.StdoutPipe()
	wantErr(t, err, nil)
	wantErr(t, cmd.Start(), nil)
	lines := bufio.NewScanner(out)
	until := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Errorf("the list ended before it said %q", text)
	}
	until("1 locks")
	srv.Kill()
	until("lock store")
	srv.Restart(t)
	until("0 locks")
	cancel()
	_ = cmd.Wait() // it was killed
}
