package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// vet runs the program by go vet on packages of the repository, and returns the reports.
func vet(t *testing.T, dir string, args ...string) string {
	t.Helper()
	// The same program for the same source, so that Go finds what it has vetted before.
	program := filepath.Join(t.TempDir(), "interlockvet")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("building the program: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"vet", "-vettool=" + program}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off") // the workspace of scripts/newest.sh has one module
	out, _ := cmd.CombinedOutput()
	reports := ""
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "#") {
			reports += line
		}
	}
	return reports
}

// The code of the library and of its examples keeps the rules. Go caches the result for each package.
func TestTheRepositoryKeepsTheRules(t *testing.T) {
	if reports := vet(t, filepath.Join("..", ".."), "./..."); reports != "" {
		t.Errorf("the packages of the root module; want no report:\n%s", reports)
	}
}

// The code that the documents show is in a file of tests.
func TestTheCodeOfTheDocumentsKeepsTheRules(t *testing.T) {
	if reports := vet(t, filepath.Join("..", ".."), "-interlockvet.tests", "./internal/checks"); reports != "" {
		t.Errorf("the snippets of the documents; want no report:\n%s", reports)
	}
}

// The program reports a fault as go vet does. Without this test a program that reports nothing would pass.
func TestAFaultIsReported(t *testing.T) {
	reports := vet(t, "analyzer", "./testdata/src/closing")
	if want := "close: store.Close runs before locker.Close"; !strings.Contains(reports, want) {
		t.Errorf("of a store that is closed first go vet says %q; want %q in it", reports, want)
	}
}
