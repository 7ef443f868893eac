//go:build long

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The nested modules keep the rules, too.
func TestTheNestedModulesKeepTheRules(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "-C", filepath.Join("..", ".."), "ls-files", "*/go.mod").Output()
	if err != nil {
		t.Fatalf("listing the modules: %v", err)
	}
	modules := strings.Fields(string(out))
	if len(modules) < 15 {
		t.Fatalf("%d nested modules found: the test has gone blind", len(modules))
	}
	for _, file := range modules {
		dir := filepath.Dir(file)
		if dir == "tools" {
			continue // it has no code
		}
		if reports := vet(t, filepath.Join("..", "..", dir), "./..."); reports != "" {
			t.Errorf("%s; want no report:\n%s", dir, reports)
		}
	}
}
