package checks_test

import (
	"cmp"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A go.mod for users states the oldest versions that the tests pass with, and says in a comment
// why each is needed. The newest versions are not below them.
func TestEachFloorHasItsReason(t *testing.T) {
	atRoot(t)
	newest := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^([^#\s]\S*) (v\S+)$`).FindAllStringSubmatch(read(t, "scripts/newest.txt"), -1) {
		newest[m[1]] = m[2]
	}
	floor := regexp.MustCompile(`(?m)^\t(\S+) (v\S+)(?: // (.*))?$`)
	floors := 0
	users, _ := nested(t)
	for _, dir := range append(users, ".") {
		file := filepath.Join(dir, "go.mod")
		for _, m := range floor.FindAllStringSubmatch(read(t, file), -1) {
			name, version, reason := m[1], m[2], m[3]
			if strings.HasPrefix(name, module) || reason == "indirect" {
				continue
			}
			floors++
			if reason == "" {
				t.Errorf("%s does not say why it requires %s %s: write it behind the version, as a comment", file, name, version)
			}
			if at, ok := newest[name]; ok && older(at, version) {
				t.Errorf("scripts/newest.txt has %s %s, below the floor %s of %s", name, at, version, file)
			}
		}
	}
	if floors < 25 || len(newest) < 20 {
		t.Errorf("only %d floors and %d newest versions found: the test has gone blind", floors, len(newest))
	}
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
