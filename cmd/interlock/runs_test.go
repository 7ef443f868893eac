//go:build integration

package main

import (
	"strings"
	"testing"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
)

// A command of cron succeeds once in a period, whoever comes later, and a monitor sees that.
func TestRunPerPeriodAndItsRuns(t *testing.T) {
	s := alone(t)
	has := func(text string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%q is missing in\n%s", part, text)
			}
		}
	}
	per := func(more ...string) []string {
		return append([]string{"run", "-wait", "0", "-per", "8760h", "nightly", "--"}, more...)
	}
	if r := decode[show.Run](t, s.want(exitNo, "runs", "-json", "-per", "8760h", "nightly")); len(r) != 1 || r[0].Period != "missing" || r[0].Began != nil {
		t.Errorf("before a run: %+v; want that it is missing", r)
	}
	s.want(9, per("sh", "-c", "exit 9")...)
	has(s.want(exitNo, "runs", "nightly").out, " 9 ")
	has(s.want(exitNo, "runs", "-per", "8760h", "nightly").out, "missing")
	has(s.want(0, per("echo", "ran")...).out, "ran\n")
	if r := s.want(0, per("echo", "ran")...); r.out != "" {
		t.Errorf("a second host runs the command: %q", r.out)
	} else {
		has(r.stderr, `"nightly" has run in this period: by `)
	}
	has(s.want(0, "runs", "nightly").out, "KEY ", "STATUS", " 0 ")
	r := decode[show.Run](t, s.want(0, "runs", "-json", "-per", "8760h", "nightly"))
	if len(r) != 1 || r[0].Period != "done" || r[0].Status != 0 || r[0].Host == "" || r[0].Token == 0 || r[0].Ended.Before(*r[0].Began) {
		t.Errorf("after a run: %+v; want that it is done, with its host and token", r)
	}
	s.want(exitNo, "runs", "nightly", "other")

	s.want(2, "run", "-record", "hourly", "--", "sh", "-c", "exit 2")
	has(s.want(exitNo, "runs", "hourly").out, " 2 ")
	s.want(0, "run", "-record", "hourly", "--", "true")
	s.want(0, "runs", "hourly")
	s.want(exitUsage, "runs")
	s.want(64, "run", "-per", "1h", "-zone", "Europe/Berlin", "k", "--", "true")
	s.want(64, "run", "-per", "24h", "-zone", "Nowhere/Town", "k", "--", "true")
	s.want(64, "run", "-per", "24h", "-permits", "2", "k", "--", "true")
}
