package checks_test

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A go.mod states the oldest versions, and docs/decisions.md says what each is needed for.
func TestFloorsAreTheDocumentedVersions(t *testing.T) {
	atRoot(t)
	documented := floors(t, filepath.Join("docs", "decisions.md"), "(?m)^\\| `(\\S+)`(?: in `(\\S+)`)? \\| (v\\S+) \\|")
	newest := floors(t, filepath.Join("scripts", "newest.txt"), `(?m)^([^#\s]\S*)() (v\S+)$`)
	required := map[string]string{}
	for _, dir := range append([]string{"."}, contrib...) {
		// A floor of the root is the floor of a nested module as well.
		for of, version := range floors(t, filepath.Join(dir, "go.mod"), `(?m)^\t(\S+)() (v\S+)$`) {
			if strings.HasPrefix(of, module) {
				continue
			}
			if at, ok := required[of]; ok && at != version {
				of += " in " + dir
			}
			required[of] = version
		}
	}
	for _, of := range slices.Sorted(maps.Keys(required)) {
		if documented[of] != required[of] {
			t.Errorf("go.mod requires %s %s, and docs/decisions.md says %q", of, required[of], documented[of])
		}
		name, _, _ := strings.Cut(of, " in ")
		if at, ok := newest[name]; ok && older(at, required[of]) {
			t.Errorf("scripts/newest.txt has %s %s, below the floor %s", name, at, required[of])
		}
	}
	for of, version := range documented {
		if required[of] == "" {
			t.Errorf("docs/decisions.md has the floor %s of %s, which no go.mod requires", version, of)
		}
	}
	if len(required) < 20 || len(newest) < 20 {
		t.Errorf("only %d floors and %d newest versions found: the test has gone blind", len(required), len(newest))
	}
}

// floors finds modules, with the module that requires them if it is named, and versions.
func floors(t *testing.T, path, pattern string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
		of := m[1]
		if m[2] != "" {
			of += " in " + m[2]
		}
		found[of] = m[3]
	}
	return found
}

// older reports whether a release comes before another release.
func older(a, b string) bool {
	numbers := func(version string) (all []int) {
		version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "-")
		for part := range strings.SplitSeq(version, ".") {
			n, _ := strconv.Atoi(part)
			all = append(all, n)
		}
		return all
	}
	return cmp.Or(slices.Compare(numbers(a), numbers(b)), strings.Compare(a, b)) < 0
}
