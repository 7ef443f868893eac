//go:build integration

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// varying matches the parts of the tool's output that differ from call to call.
var varying = []struct {
	find *regexp.Regexp
	put  string
}{
	{regexp.MustCompile(`(?m)^time=.*\n`), ""}, // the log
	{regexp.MustCompile(`\b\d{16}\b`), "TOKEN"},
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "ID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`((?:_ms|size)":)-?[0-9.]+`), "${1}N"},
	{regexp.MustCompile(`[+-]?\b[0-9.]+(ns|µs|ms|s|m|h)([0-9.]+[ms])*\b`), "SPAN"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDR"},
	{regexp.MustCompile(`(redis|valkey) \d[0-9.]*`), "VERSION"},
	{regexp.MustCompile(` +`), " "},
}

// even replaces the parts of a text that differ from call to call.
func even(text string) string {
	for _, v := range varying {
		text = v.find.ReplaceAllString(text, v.put)
	}
	return text
}

// step is a command line of the document, and its output.
type step struct{ line, prints string }

// steps reads the examples of docs/tool.md.
func steps(t *testing.T) (all []step) {
	t.Helper()
	text, err := os.ReadFile("../../docs/tool.md")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		command, begins := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = strings.TrimSpace(line) == "```console"
		case inside && begins:
			all = append(all, step{line: strings.TrimSpace(command)})
		case inside:
			all[len(all)-1].prints += line
		}
	}
	if len(all) < 14 {
		t.Fatalf("%d examples: the test has gone blind", len(all))
	}
	return all
}

// docs/tool.md shows the output of the tool.
func TestTheExamplesOfTheDocumentAreWhatTheToolPrints(t *testing.T) {
	program, env := tool(t)
	srv := redistest.Start(t)
	s := of(t, srv)
	token := scene(s)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "answer.json"), []byte(`{"id":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(dir, "interlock")); err != nil {
		t.Fatal(err)
	}
	given := regexp.MustCompile(`-token \d+`)
	waiting := regexp.MustCompile(`web-2/3107/bank v1\.4\.0|cron-1/911/cron v2\.0\.1`)
	code := 0
	for _, e := range steps(t) {
		if e.line == "echo $?" {
			if e.prints != fmt.Sprintln(code) {
				t.Errorf("exit code %d; the document says %s", code, e.prints)
			}
			continue
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", given.ReplaceAllString(e.line, "-token "+text(token))+" 2>&1")
		cmd.Dir = dir
		cmd.Env = []string{env, "PATH=" + dir + ":" + os.Getenv("PATH"), "INTERLOCK_ADDR=" + srv.Addr()}
		out, _ := cmd.CombinedOutput()
		code = cmd.ProcessState.ExitCode()
		got, want := even(string(out)), even(e.prints)
		if strings.HasSuffix(e.line, " lockers") { // in no order
			got, want = sorted(got), sorted(want)
		}
		if given.MatchString(e.line) { // on a busy machine the first that waits can miss its turn
			got, want = waiting.ReplaceAllString(got, "WAITING"), waiting.ReplaceAllString(want, "WAITING")
		}
		if got != want {
			t.Errorf("$ %s\nprints\n%s\nthe document says\n%s", e.line, out, e.prints)
		}
		if given.MatchString(e.line) { // the next one has it before the next example
			redistest.Eventually(t, time.Minute, func(context.Context) error {
				l := decode[show.Lock](t, s.run("inspect", "-json", "account/42"))[0]
				if l.Held != 1 || l.Holders[0].Token == token {
					return errors.New("no other process has it")
				}
				return nil
			})
		}
	}
}

func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// scene makes the locks of the examples, and returns the token of account/42.
func scene(s *servers) (token int64) {
	t := s.t
	t.Helper()
	bank1, bank2, cron := s.process(core.Unlisted()), s.process(core.Unlisted()), s.process(core.Unlisted())
	lease := s.lock(bank1, "account/42")
	s.lock(bank1, "export", core.Shared())
	s.lock(bank2, "export", core.Shared())
	s.lock(cron, "nightly")
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	t.Cleanup(func() { cancel(); waiting.Wait() })
	for i, l := range []*core.Locker{bank2, cron} {
		waiting.Go(func() { _, _ = l.Lock(ctx, "account/42") }) // one gets it, the other waits to the end
		s.until(func(r ran) bool { return strings.Contains(r.out, "waits "+strconv.Itoa(i+1)) }, "inspect", "account/42")
	}

	// The entries, as their processes would write them.
	l := decode[show.Lock](t, s.want(0, "inspect", "-json", "account/42"))[0]
	now := time.Now().UnixMilli()
	for i, e := range [][]any{
		{"host", "web-1", "pid", 4711, "service", "bank", "version", "v1.4.0"},
		{"host", "web-2", "pid", 3107, "service", "bank", "version", "v1.4.0"},
		{"host", "cron-1", "pid", 911, "service", "cron", "version", "v2.0.1"},
	} {
		id := []string{l.Holders[0].Locker.ID, l.Waiters[0].Locker.ID, l.Waiters[1].Locker.ID}[i]
		e = append(e, "started", now-1000, "seen", now-200, "protocol", 1)
		if err := s.rdb.HSet(t.Context(), "interlock:locker:{"+id+"}", e...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	id := decode[show.Record](t, s.want(exitNo, "idem", "show", "-json", "tenant-7", "8e03978e-40d5"))[0].ID
	s.rdb.HSet(t.Context(), "interlock:idem:{"+id+"}", "v", "1", "t", "x:1", "f", "f", "g", "1", "s", "c", "u", text(time.Now().Add(-2*time.Second).UnixMilli()), "m", "1")
	s.rdb.PExpire(t.Context(), "interlock:idem:{"+id+"}", 24*time.Hour)
	return lease.Token()
}
