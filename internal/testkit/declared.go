package testkit

import (
	"maps"
	"slices"
	"testing"
)

// Declared fails the test if a framework declares a row that does not exist, or gives no reason.
func Declared(tb testing.TB, label string, cannot map[string]string, rows []string) {
	tb.Helper()
	for _, name := range slices.Sorted(maps.Keys(cannot)) {
		if cannot[name] == "" {
			tb.Errorf("%s cannot hold %q: want the reason", label, name)
		}
		if !slices.Contains(rows, name) {
			tb.Errorf("%s cannot hold %q, which is no row; the rows are %q", label, name, rows)
		}
	}
}

// Row begins the test of a row: it skips a row that the framework declares, with its reason, and
// says in the log of a failure how one declares it.
func Row(t *testing.T, name, field string, cannot map[string]string) {
	t.Helper()
	if reason, declared := cannot[name]; declared {
		t.Skip("the framework cannot hold it: " + reason)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("if the framework cannot hold this row, however the adapter is written, say why in %s[%q]", field, name)
		}
	})
}
