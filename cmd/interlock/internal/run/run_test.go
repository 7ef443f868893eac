//go:build unix

package run_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
)

func TestTheExitStatusSaysWhatHappened(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	plain, foreign := filepath.Join(filepath.Dir(text), "plain"), filepath.Join(filepath.Dir(text), "foreign")
	for name, content := range map[string]string{plain: "exit $1\n", foreign: "\x7fELF\x00\x00\x00\x00"} {
		if err := os.WriteFile(name, []byte(content), 0o700); err != nil { //nolint:gosec // it is run
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		store string
		args  []string
		want  int
		says  string
	}{
		"success":                   {args: []string{"k", "--", "true"}},
		"the command's own":         {args: []string{"k", "--", "sh", "-c", "exit 7"}, want: 7},
		"as of a wrong line":        {args: []string{"k", "--", "sh", "-c", "exit 2"}, want: 2},
		"ended by a signal":         {args: []string{"k", "--", "sh", "-c", "kill -9 $$"}, want: 128 + 9},
		"a string for the shell":    {args: []string{"-shell", "k", "--", "true && exit 3"}, want: 3},
		"held, one try":             {store: "held", args: []string{"-wait", "0", "k", "--", "true"}, want: 75, says: `the lock "k" is held by another-process`},
		"held, a bounded wait":      {store: "held", args: []string{"--wait", "100ms", "k", "--", "true"}, want: 75, says: "another process holds it"},
		"no server":                 {store: "away", args: []string{"-wait", "100ms", "k", "--", "true"}, want: 69, says: "could not be taken"},
		"too few replicas":          {store: "unreplicated", args: []string{"-wait", "0", "k", "--", "true"}, want: 69, says: "not acknowledged by enough replicas"},
		"a script without #!":       {args: []string{"k", "--", plain, "7"}, want: 7},
		"for another machine":       {args: []string{"k", "--", foreign}, want: 126, says: "no program for this machine"},
		"a key of another program":  {store: "occupied", args: []string{"k", "--", "true"}, want: 70, says: "could not be taken"},
		"command not found":         {args: []string{"k", "--", "no-such-command"}, want: 127, says: "not found"},
		"file not found":            {args: []string{"k", "--", "./no-such-command"}, want: 127, says: "no such file"},
		"not executable":            {args: []string{"k", "--", text}, want: 126, says: "permission denied"},
		"a chosen status":           {store: "held", args: []string{"-wait", "0", "-conflict-status", "0", "k", "--", "true"}, says: `the lock "k" is held by another-process`},
		"no such status":            {args: []string{"-conflict-status", "256", "k", "--", "true"}, want: 64, says: "must be from 0 to 255"},
		"two kinds":                 {args: []string{"-shared", "-permits", "2", "k", "--", "true"}, want: 64, says: "-shared and -permits are two kinds of locks"},
		"a shared lock is not kept": {args: []string{"-shared", "-at-least", "1m", "k", "--", "true"}, want: 64, says: "cannot keep a shared lock"},
		"a key too long to keep":    {args: []string{"-at-least", "1m", strings.Repeat("k", 159), "--", "true"}, want: 64, says: "at most 158 bytes"},
		"no permits":                {args: []string{"-permits", "-1", "k", "--", "true"}, want: 64, says: "at least 1 is accepted"},
		"shared":                    {args: []string{"-shared", "k", "--", "true"}},
		"a permit":                  {args: []string{"-permits", "2", "k", "--", "sh", "-c", "exit 7"}, want: 7},
		"a long key":                {args: []string{strings.Repeat("k", 513), "--", "true"}, want: 64, says: "at most 512"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin(t, c.store, c.args).ends(c.want, c.says)
		})
	}
}

func TestTheCommandKnowsItsKeyAndToken(t *testing.T) {
	t.Parallel()
	w := begin(t, "", []string{"-shell", "report/a b", "--", `echo "$INTERLOCK_KEY"; echo "$INTERLOCK_TOKEN"`},
		func(c *exec.Cmd) { c.Env = append(c.Env, "INTERLOCK_TOKEN=1") })
	w.says("report/a b")
	if token, err := strconv.ParseInt(w.line(), 10, 64); err != nil || token <= 1 {
		t.Errorf("token %d, %v", token, err)
	}
	w.ends(0, "")
}

// obedient says the name of each signal that it gets.
const obedient = `for s in HUP INT QUIT USR1 USR2; do trap "echo $s" $s; done; echo ready; while :; do sleep 0.01; done`

func TestSignalsReachTheCommand(t *testing.T) {
	t.Parallel()
	w := begin(t, "", []string{"-shell", "k", "--", obedient})
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

// A signal is for the children of the command, too.
func TestSignalsReachTheWholeGroup(t *testing.T) {
	t.Parallel()
	w := begin(t, "", []string{
		"-shell", "k", "--",
		`trap 'wait; echo outer; exit 5' TERM; (trap 'echo inner; exit' TERM; echo ready; while :; do sleep 0.01; done) & wait`,
	})
	w.says("ready")
	w.send(syscall.SIGTERM)
	w.says("inner")
	w.says("outer")
	w.ends(5, "")
}

func TestASignalThatIsIgnoredStaysIgnored(t *testing.T) {
	t.Parallel()
	w := inMemory(t, "", "k", "--", "sh", "-c", "kill -HUP $PPID; kill -HUP $$; echo alive")
	shell := exec.Command("sh", append([]string{"-c", `trap "" HUP; exec "$0" "$@"`}, w.Args...)...)
	shell.Env = w.Env
	if out, err := shell.CombinedOutput(); err != nil || string(out) != "alive\n" {
		t.Errorf("%v: %q", err, out)
	}
}

func TestASignalEndsTheWait(t *testing.T) {
	t.Parallel()
	w := begin(t, "held", []string{"k", "--", "echo", "ran"})
	for end := time.Now().Add(time.Minute); w.change("") == "0" && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // it does not wait yet
	}
	w.send(syscall.SIGUSR1) // it is for the command, and does not end the wait
	w.send(syscall.SIGINT)
	w.ends(128+int(syscall.SIGINT), "")
	if line := w.line(); line != "" {
		t.Errorf("the command said %q", line)
	}
}

// A lease that begins with the message of a release is shorter than the grace of the command.
func TestACommandIsNotEndedForTheLockWasHandedOver(t *testing.T) {
	t.Parallel()
	w := begin(t, "taken", []string{"-ttl", "8s", "-grace", "4s", "k", "--", "sh", "-c", "exit 3"})
	for end := time.Now().Add(time.Minute); w.change("") < "3" && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // from its second request on the command's process takes offers
	}
	w.change("released")
	w.ends(3, "")
}

func TestACommandWhoseLockWasLostIsEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ change, grace, script, says string }{
		"deleted, and the command cleans up": {
			"free", "4s", "trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.01; done", "status 3",
		},
		"taken over, and the command does not obey": {
			"held", "0s", "trap '' TERM; echo ready; echo cleaned; while :; do sleep 0.01; done", "status 137",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, "", []string{"-ttl", "9s", "-grace", c.grace, "-shell", "k", "--", c.script})
			w.says("ready")
			w.change(c.change)
			w.says("cleaned")
			w.ends(79, "was lost")
			if !strings.Contains(w.errs.String(), c.says) {
				t.Errorf("it said %q; want %q", w.errs.String(), c.says)
			}
		})
	}
}

// A wrapper that waits for a server says so, long before the wait is over.
func TestAWaitForAServerIsNotSilent(t *testing.T) {
	t.Parallel()
	r, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	w := begin(t, "away", []string{"-wait", "10m", "k", "--", "true"}, func(c *exec.Cmd) { c.Stderr = stderr })
	_ = stderr.Close()
	if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.Contains(line, "cannot be asked for") {
		t.Errorf("it said %q, %v; want why it waits", line, err)
	}
	w.send(syscall.SIGTERM)
	if got := w.status(); got != 128+int(syscall.SIGTERM) {
		t.Errorf("status %d; want %d", got, 128+int(syscall.SIGTERM))
	}
}

// The inner wrapper waited for the outer one, and that for the command, without a word.
func TestARunUnderTheLockThatItWantsSaysSo(t *testing.T) {
	t.Parallel()
	around := func(value string) func(*exec.Cmd) {
		return func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "INTERLOCK_HELD="+value) }
	}
	k := core.Hashed("k").Hash()
	begin(t, "held", []string{"k", "--", "true"}, around("0123456789abcdef:9,"+k+":7")).ends(64, "the interlock run that this command runs under")
	// Another server has another lock of the same key.
	begin(t, "held", []string{"-wait", "0", "k", "--", "true"}, around(k+":9")).ends(75, "another process holds it")
	begin(t, "", []string{"k", "--", "true"}, around(k+":7")).ends(0, "")

	w := begin(t, "", []string{"-shell", "k", "--", `echo "$INTERLOCK_HELD"; echo "$INTERLOCK_TOKEN"`}, around("0123456789abcdef:9"))
	held, token := w.line(), w.line()
	if want := "0123456789abcdef:9," + k + ":" + token; held != want {
		t.Errorf("the command has INTERLOCK_HELD=%s; want %s", held, want)
	}
	w.ends(0, "")
}
