//go:build integration

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
)

// Commands with -permits run beside as many others, commands with -shared beside each other.
func TestRunTakesPermitsAndSharedLocks(t *testing.T) {
	s := alone(t)
	other := s.process()
	permit := s.lock(other, "pool", core.Permits(2))
	s.want(0, "run", "-wait", "0", "-permits", "2", "pool", "--", "true")
	if r := s.want(75, "run", "-wait", "0", "-permits", "1", "pool", "--", "true"); !strings.Contains(r.stderr, "all are taken") {
		t.Errorf("a command without a permit prints %q; want that all are taken", r.stderr)
	}
	if r := s.want(3, "run", "-wait", "0", "-conflict-status", "3", "pool", "--", "true"); !strings.Contains(r.stderr, "is held by") {
		t.Errorf("an exclusive command prints %q; want the holder of the permit", r.stderr)
	}
	if err := permit.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	shared := s.lock(other, "schema", core.Shared())
	s.want(0, "run", "-wait", "0", "-shared", "schema", "--", "true")
	s.want(75, "run", "-wait", "0", "schema", "--", "true")
	if err := shared.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want(0, "run", "-wait", "0", "schema", "--", "true")
}

// A command that ends soon keeps its lock from a host with a late clock, and its wrapper does
// not wait for that.
func TestRunKeepsTheLockAtLeast(t *testing.T) {
	s := alone(t)
	s.want(4, "run", "-at-least", "1h", "nightly", "--", "sh", "-c", "exit 4")
	if r := s.want(75, "run", "-wait", "0", "nightly", "--", "true"); !strings.Contains(r.stderr, "handed over") {
		t.Errorf("the second host prints %q; want that the lock was handed over", r.stderr)
	}
	left := s.rdb.PTTL(t.Context(), "interlock:{nightly}").Val()
	if left < 50*time.Minute || left > time.Hour {
		t.Errorf("the lock is kept for %v more; want an hour but for the time of the command", left)
	}
	// The time of a command that takes longer is not added to.
	s.want(0, "run", "-at-least", "10ms", "long", "--", "sleep", "0.1")
	s.want(exitNo, "inspect", "long")
}
