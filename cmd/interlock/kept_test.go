//go:build integration

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
)

// No process has such a lock, and Redis refuses it to all but the dead processes.
func TestALockThatIsKeptIsShownWaitedForAndFreed(t *testing.T) {
	s := alone(t)
	keep := func() {
		t.Helper()
		s.rdb.HSet(t.Context(), "interlock:{k}", "r", 2000, "q", strings.Repeat("a", 32)+"~q,"+strings.Repeat("b", 32)+"~q")
		// As after a clock that was set back, so that a slow machine finds it.
		if err := s.rdb.PExpire(t.Context(), "interlock:{k}", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
	}
	has := func(text string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%q is missing in\n%s", part, text)
			}
		}
	}
	keep()
	has(s.want(0, "ls").out, "k ", "kept for locker aaaaaaaa and 1 more  -  ", "  2s  ")
	has(s.want(0, "inspect", "k").out, "no process holds it; 2s left", "locker aaaaaaaa (not listed), the lock is kept for it")
	has(s.want(0, "inspect", "-json", "k").out, `"kept_left_ms":2000`, `"kept":true`)
	has(s.want(exitHeld, "wait", "-timeout", "100ms", "k").stderr, "k is still kept after 100ms")
	if r := decode[show.Result](t, s.want(exitHeld, "wait", "-json", "-timeout", "100ms", "k")); r[0].Result != "kept" {
		t.Errorf("the result of wait is %+v; want kept", r)
	}
	has(s.want(exitUsage, "release", "k").stderr, "interlock release -kept k", "# kept for locker aaaaaaaa and 1 more")
	has(s.want(exitNo, "release", "k", "-token", "5").stderr, "interlock release -kept k")
	s.want(exitUsage, "release", "-kept", "-token", "5", "k")
	has(s.want(0, "release", "-kept", "k").out, "freed k: it was kept for locker aaaaaaaa and 1 more")
	s.want(0, "wait", "k")
	s.want(exitNo, "inspect", "k")
	has(s.want(exitNo, "release", "-kept", "k").stderr, "k is free", "k is not kept for waiting processes")
	keep()
	if r := decode[show.Result](t, s.want(0, "release", "-json", "-kept", "k")); r[0].Result != "freed" || r[0].Key != "k" {
		t.Errorf("the result of release is %+v; want freed", r)
	}
}
