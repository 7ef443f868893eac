//go:build long

package observability

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/goccy/go-yaml"
)

// binEnv names a directory with promtool.
const binEnv = "INTERLOCK_PROMETHEUS_BIN"

// promtool runs it. Without it the test fails: an alert that was not tried cannot be relied
// on.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if dir := os.Getenv(binEnv); dir != "" {
		path, err = exec.LookPath(filepath.Join(dir, "promtool"))
	}
	if err != nil {
		t.Fatalf("no promtool: run ./scripts/test.sh long, which installs it, or apt-get install prometheus; %s names a directory that has it: %v", binEnv, err)
	}
	if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}

func TestPromtoolAcceptsTheRules(t *testing.T) { promtool(t, "check", "rules", rulesFile) }

func TestTheAlertsFireWhenTheyShouldAndNotElse(t *testing.T) {
	const cases = "testdata/alerts.yaml"
	promtool(t, "test", "rules", cases)

	text, err := os.ReadFile(cases)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			InputSeries   []struct{ Series string } `yaml:"input_series"`
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	// A case of a series that no process emits shows nothing: of a bucket that there is not.
	known := emitted(t)
	tried := make(map[string]bool)
	for _, test := range file.Tests {
		for _, s := range test.InputSeries {
			if _, err := check(known, s.Series); err != nil {
				t.Errorf("%s: %v", cases, err)
			}
		}
		for _, c := range test.AlertRuleTest {
			tried[fmt.Sprint(c.Alertname, " fires: ", len(c.ExpAlerts) > 0)] = true
		}
	}
	for _, r := range rules(t) {
		for _, fires := range []bool{true, false} {
			if r.Alert != "" && !tried[fmt.Sprint(r.Alert, " fires: ", fires)] {
				t.Errorf("%s has no case for: %s fires: %v", cases, r.Alert, fires)
			}
		}
	}
}
