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

// binEnv names a directory with prometheus and promtool.
const binEnv = "INTERLOCK_PROMETHEUS_BIN"

// program returns the path of prometheus or promtool. Without it the test fails: an
// alert that was not tried cannot be relied on.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if dir := os.Getenv(binEnv); dir != "" {
		path, err = exec.LookPath(filepath.Join(dir, name))
	}
	if err != nil {
		t.Fatalf("no %s: run ./scripts/test.sh, which installs it, or apt-get install prometheus; %s names a directory that has it: %v", name, binEnv, err)
	}
	return path
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program(t, "promtool"), args...).CombinedOutput(); err != nil {
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
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	tried := make(map[string]bool)
	for _, test := range file.Tests {
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
