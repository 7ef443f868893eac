//go:build unix

package run_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/internal/redistest"
)

func TestTheExitStatusSaysWhatHappened(t *testing.T) {
	srv := redistest.Shared(t)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	set := srv.Client(t)
	if err := set.Set(t.Context(), "interlock:{other}", "no lock", 0).Err(); err != nil {
		t.Fatal(err)
	}
	holder := begin(t, srv.Addr(), []string{"held", "--", "sh", "-c", "echo ready; read end"}, func(c *exec.Cmd) {
		r, end, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c.Stdin = r
		t.Cleanup(func() { _ = r.Close(); _ = end.Close() })
	})
	holder.says("ready")
	for name, c := range map[string]struct {
		addr string
		args []string
		want int
		says string
	}{
		"success":                  {args: []string{"k1", "--", "true"}},
		"the command's own":        {args: []string{"k2", "--", "sh", "-c", "exit 7"}, want: 7},
		"that of a wrong line":     {args: []string{"k3", "--", "sh", "-c", "exit 2"}, want: 2},
		"ended by a signal":        {args: []string{"k4", "--", "sh", "-c", "kill -9 $$"}, want: 128 + 9},
		"a string for the shell":   {args: []string{"k5", "-shell", "--", "true && exit 3"}, want: 3},
		"held, one try":            {args: []string{"-wait", "0", "held", "--", "true"}, want: 75, says: "another process holds it"},
		"held, a bounded wait":     {args: []string{"held", "--wait", "100ms", "--", "true"}, want: 75, says: "another process holds it"},
		"no server":                {addr: "127.0.0.1:1", args: []string{"k", "--", "true"}, want: 69, says: "connection refused"},
		"a key of another program": {args: []string{"other", "--", "true"}, want: 70, says: "other"},
		"command not found":        {args: []string{"k6", "--", "no-such-command"}, want: 127, says: "not found"},
		"file not found":           {args: []string{"k6", "--", "./no-such-command"}, want: 127, says: "no such file"},
		"not executable":           {args: []string{"k7", "--", text}, want: 126, says: "permission denied"},
		"no command":               {args: []string{"k8"}, want: 64, says: "usage"},
		"no key":                   {args: []string{"--", "true"}, want: 64, says: "usage"},
		"an empty key":             {args: []string{"", "--", "true"}, want: 64, says: "the key is empty"},
		"a long key":               {args: []string{string(make512()), "--", "true"}, want: 64, says: "at most 512"},
		"unknown flag":             {args: []string{"-what", "k", "--", "true"}, want: 64, says: "-what"},
		"no duration":              {args: []string{"-wait", "soon", "k", "--", "true"}, want: 64, says: "500ms, 30s or 5m"},
		"a short ttl":              {args: []string{"-ttl", "10ms", "k", "--", "true"}, want: 64, says: "at least 1s"},
		"a long grace":             {args: []string{"-ttl", "10s", "-grace", "6s", "k", "--", "true"}, want: 64, says: "at most half of the ttl, 5s"},
		"several for the shell":    {args: []string{"k", "-shell", "--", "echo", "a"}, want: 64, says: "quote the command"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := c.addr
			if addr == "" {
				addr = srv.Addr()
			}
			w := begin(t, addr, c.args)
			for end := time.Now().Add(time.Minute); c.addr == "" && w.status() == 69 && time.Now().Before(end); {
				w = begin(t, addr, c.args) // a busy server had not answered in time
			}
			w.ends(c.want, c.says)
		})
	}
}

// make512 is a key that is too long.
func make512() []byte {
	b := make([]byte, 513)
	for i := range b {
		b[i] = 'k'
	}
	return b
}

func TestTheCommandKnowsItsKeyAndTokenAndTheLockIsFreeAfterIt(t *testing.T) {
	srv := redistest.Shared(t)
	w := begin(t, srv.Addr(), []string{"report/a b", "-shell", "--", `echo "$INTERLOCK_KEY"; echo "$INTERLOCK_TOKEN"`},
		func(c *exec.Cmd) { c.Env = append(os.Environ(), "INTERLOCK_TOKEN=1") })
	w.says("report/a b")
	token, err := strconv.ParseInt(w.line(), 10, 64)
	if err != nil || token <= 1 {
		t.Errorf("token %d, %v", token, err)
	}
	w.ends(0, "")
	rdb := srv.Client(t)
	if n, err := rdb.Exists(t.Context(), "interlock:{report/a b}").Result(); n != 0 || err != nil {
		t.Errorf("the lock is there still: %d, %v", n, err)
	}
	last, err := rdb.Get(t.Context(), "interlock:{report/a b}:fence").Int64()
	if err != nil || last != token {
		t.Errorf("the last token is %d, %v; the command had %d", last, err, token)
	}
}

// obedient says the name of each signal that it gets.
const obedient = `for s in HUP INT QUIT USR1 USR2; do trap "echo $s" $s; done; echo ready; while :; do sleep 0.01; done`

func TestSignalsReachTheCommand(t *testing.T) {
	w := begin(t, redistest.Shared(t).Addr(), []string{"k", "-shell", "--", obedient})
	w.says("ready")
	for _, s := range []struct {
		sig  syscall.Signal
		name string
	}{
		{syscall.SIGHUP, "HUP"},
		{syscall.SIGINT, "INT"},
		{syscall.SIGQUIT, "QUIT"},
		{syscall.SIGUSR1, "USR1"},
		{syscall.SIGUSR2, "USR2"},
	} {
		w.send(s.sig)
		w.says(s.name)
	}
	w.send(syscall.SIGTSTP) // it must not stop the renewals, and so the wrapper
	w.send(syscall.SIGTERM)
	w.ends(128+int(syscall.SIGTERM), "")
}

// A signal is for what the command has started, too.
func TestSignalsReachTheWholeGroup(t *testing.T) {
	w := begin(t, redistest.Shared(t).Addr(), []string{
		"k", "-shell", "--",
		`trap 'wait; echo outer; exit 5' TERM; (trap 'echo inner; exit' TERM; echo ready; while :; do sleep 0.01; done) & wait`,
	})
	w.says("ready")
	w.send(syscall.SIGTERM)
	w.says("inner")
	w.says("outer")
	w.ends(5, "")
}

func TestASignalThatIsIgnoredStaysIgnored(t *testing.T) {
	path, err := tool()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("sh", "-c", `trap "" HUP; exec "$0" "$@"`, path, "-addr", redistest.Shared(t).Addr(), "run", "k", "--",
		"sh", "-c", "kill -HUP $PPID; kill -HUP $$; echo alive").CombinedOutput()
	if err != nil || string(out) != "alive\n" {
		t.Errorf("%v: %q", err, out)
	}
}

func TestASignalEndsTheWaitAndLeavesNothingBehind(t *testing.T) {
	srv := redistest.Shared(t)
	holder := begin(t, srv.Addr(), []string{"k", "-shell", "--", obedient})
	holder.says("ready")
	w := begin(t, srv.Addr(), []string{"k", "--", "echo", "ran"})
	// It waits once its name is in the list of the lock.
	redistest.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		return srv.Client(t).HGet(ctx, "interlock:{k}", "q").Err()
	})
	w.send(syscall.SIGUSR1) // it is for the command, and does not end the wait
	w.send(syscall.SIGINT)
	w.ends(128+int(syscall.SIGINT), "")
	if line := w.line(); line != "" {
		t.Errorf("the command said %q", line)
	}
	holder.send(syscall.SIGTERM)
	holder.ends(128+int(syscall.SIGTERM), "")
	last := begin(t, srv.Addr(), []string{"k", "-wait", "1s", "--", "true"})
	for end := time.Now().Add(time.Minute); last.status() == 69 && time.Now().Before(end); {
		last = begin(t, srv.Addr(), []string{"k", "-wait", "1s", "--", "true"}) // a busy server had not answered in time
	}
	last.ends(0, "")
}
