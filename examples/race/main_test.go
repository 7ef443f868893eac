//go:build long && unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain is also the main function of the processes that the tests start.
func TestMain(m *testing.M) {
	if runWorker() {
		return
	}
	os.Exit(m.Run())
}

// A holder that was stopped past its lease overwrites what others wrote meanwhile, unless the row
// locks them out or checks its token.
func TestOnlyTheRowAndTheTokenLoseNoUpdate(t *testing.T) {
	rows, err := run(t.Context(), time.Second, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(approaches) {
		t.Fatalf("%d approaches ran; want %d", len(rows), len(approaches))
	}
	for _, r := range rows {
		if r.stopped == 0 || r.debits == 0 {
			t.Errorf("%s: %d debits, %d holders stopped; want some", r.name, r.debits, r.stopped)
		}
		if r.wrong != amount*r.lost {
			t.Errorf("%s: the balance is wrong by %d, and %d updates are lost; want %d each", r.name, r.wrong, r.lost, amount)
		}
		stops := int64(r.stopped)
		switch {
		case !r.onRedis && (r.lost != 0 || r.overlaps != 0):
			t.Errorf("%s: %d lost updates, %d overlaps; want none", r.name, r.lost, r.overlaps)
		case r.onRedis && r.overlaps < stops:
			t.Errorf("%s: %d overlaps; want at least one for each of the %d stops", r.name, r.overlaps, stops)
		case r.onRedis && r.safe && (r.lost != 0 || r.refused < stops):
			t.Errorf("%s: %d lost updates, %d writes refused; want no update lost, and a refusal for each of the %d stops", r.name, r.lost, r.refused, stops)
		case !r.safe && r.lost < stops:
			t.Errorf("%s: %d lost updates; want at least one for each of the %d stops: the stop does not show the fault", r.name, r.lost, stops)
		}
	}
}

func TestWithoutRedisTheRowAloneRuns(t *testing.T) {
	t.Setenv("INTERLOCK_REDIS_SERVER", filepath.Join(t.TempDir(), "no-redis-server"))
	var said strings.Builder
	rows, err := run(t.Context(), time.Millisecond, &said)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1 || rows[0].onRedis {
		t.Errorf("%d approaches ran; want SELECT ... FOR UPDATE alone", len(rows))
	}
	if !strings.Contains(said.String(), "install redis-server") {
		t.Errorf("the output is %q; want what to install", said.String())
	}
}

func TestWithoutPostgresTheErrorSaysWhatToInstall(t *testing.T) {
	t.Setenv("INTERLOCK_POSTGRES_BIN", t.TempDir())
	_, err := run(t.Context(), time.Millisecond, t.Output())
	if err == nil || !strings.Contains(err.Error(), "install postgresql") {
		t.Errorf("the error is %v; want what to install", err)
	}
}
