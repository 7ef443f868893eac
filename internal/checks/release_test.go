package checks_test

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/internal/version"
)

// What a reader, a release and a program call the newest version is one version.
func TestTheVersionIsTheSameInAllPlaces(t *testing.T) {
	atRoot(t)
	for file, place := range map[string]*regexp.Regexp{
		"CHANGELOG.md": regexp.MustCompile(`(?m)^## \[(.*)\] - \d{4}-\d\d-\d\d$`), // the first is the newest
		"RELEASING.md": regexp.MustCompile(`(?m)^The newest version is (.*)\.$`),
		"README.md":    regexp.MustCompile(`(?m)^Status: \[(.*)\]\(CHANGELOG\.md\)`),
	} {
		m := place.FindStringSubmatch(read(t, file))
		if m == nil {
			t.Errorf("%s has no line %s", file, place)
		} else if "v"+m[1] != version.Released {
			t.Errorf("%s says %s, and the constant of internal/version %s: write one version into all", file, m[1], version.Released)
		}
	}
}

// CHANGELOG.md is merged by union, which can double lines and bring deleted ones back. A
// version that two screens do not hold tells its reader nothing.
func TestTheChangelogHasNoLineTwiceAndTwoScreensForAVersion(t *testing.T) {
	atRoot(t)
	const most, mostWords = 100, 400
	text := read(t, "CHANGELOG.md")
	if words := len(strings.Fields(text)); words > mostWords {
		t.Errorf("CHANGELOG.md has %d words, at most %d are allowed until there is a second version: the documents describe the details", words, mostWords)
	}
	section, lines, seen := "", 0, map[string]bool{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "## ") {
			section, lines = strings.TrimSpace(line), 0
		}
		if lines++; lines == most+1 {
			t.Errorf("CHANGELOG.md has more than %d lines under %q", most, section)
		}
		name := section + line // each version may have additions
		if strings.HasPrefix(line, "- ") {
			name = line[:min(len(line), 80)] // an entry that was changed on one side is there in both forms
		}
		if seen[name] && strings.TrimSpace(line) != "" {
			t.Errorf("CHANGELOG.md has twice, under %q, as a merge by union leaves it; take one out: %s", section, line)
		}
		seen[name] = true
	}
}

// The script that makes a release refuses a tree that must not be released, and tags nothing
// then.
func TestReleaseScript(t *testing.T) {
	script, err := os.ReadFile("../../scripts/release.sh")
	if err != nil {
		t.Fatal(err)
	}
	const changelog = "# Changelog\n\n## Unreleased\n\n## [0.2.0] - 2026-01-31\n"
	for name, c := range map[string]struct {
		version string
		before  func(t *testing.T, git func(...string)) // changes the repository
		check   string
		want    string
		tagged  bool
		nested  string // the version of the root that a nested module requires
		dir     string // of the nested module; nested if empty
		// The versions that the constant and RELEASING.md have; v0.2.0 and 0.2.0 if empty.
		constant, page string
	}{
		"a good release":         {version: "v0.2.0", check: "true", want: "git push --atomic origin main v0.2.0", tagged: true},
		"a nested module":        {version: "v0.2.0", check: "true", want: "git push --atomic origin main v0.2.0 nested/v0.2.0", tagged: true, nested: "v0.2.0"},
		"a nested program":       {version: "v0.2.0", check: "true", want: "git push --atomic origin main v0.2.0 cmd/nested/v0.2.0", tagged: true, nested: "v0.2.0", dir: "cmd/nested"},
		"nested is behind":       {version: "v0.2.0", check: "true", want: "go -C nested mod edit -require=github.com/interlock-go/interlock@v0.2.0", nested: "v0.1.0"},
		"no version":             {version: "", check: "true", want: "usage"},
		"not a version":          {version: "v0.02.0", check: "true", want: "is not a version"},
		"not in the changelog":   {version: "v0.3.0", check: "true", want: "CHANGELOG.md has no line"},
		"another constant":       {version: "v0.2.0", check: "true", want: "internal/version/version.go has another version", constant: "v0.1.0"},
		"another page":           {version: "v0.2.0", check: "true", want: "RELEASING.md has another version", page: "0.1.0"},
		"a check that fails":     {version: "v0.2.0", check: "false", want: "the check failed"},
		"below the last release": {version: "v0.2.0", check: "true", want: "is below v0.10.0", before: func(_ *testing.T, git func(...string)) { git("tag", "v0.10.0") }},
		"made before":            {version: "v0.2.0", check: "true", want: "exists already", before: func(_ *testing.T, git func(...string)) { git("tag", "v0.2.0") }, tagged: true},
		"on another branch":      {version: "v0.2.0", check: "true", want: "made on main", before: func(_ *testing.T, git func(...string)) { git("switch", "-qc", "other") }},
		"uncommitted changes": {version: "v0.2.0", check: "true", want: "uncommitted changes", before: func(t *testing.T, _ func(...string)) {
			if err := os.WriteFile("new", nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		dir := cmp.Or(c.dir, "nested")
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			git := func(args ...string) {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=n", "-c", "user.email=e@example.com"}, args...)...)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("git %q: %v\n%s", args, err, out)
				}
			}
			if err := os.Mkdir("scripts", 0o700); err != nil {
				t.Fatal(err)
			}
			releasing := "The newest version is " + cmp.Or(c.page, "0.2.0") + ".\n\n| the root | `v0.2.0` |\n| `trust` | none: it is a test |\n"
			if c.nested != "" {
				releasing += "| `" + dir + "` | `" + dir + "/v0.2.0` |\n"
			}
			files := map[string][]byte{
				filepath.Join("scripts", "release.sh"): script, "CHANGELOG.md": []byte(changelog), "RELEASING.md": []byte(releasing),
				filepath.Join("internal", "version", "version.go"): []byte("const Released = \"" + cmp.Or(c.constant, "v0.2.0") + "\"\n"),
			}
			if err := os.MkdirAll(filepath.Join("internal", "version"), 0o700); err != nil {
				t.Fatal(err)
			}
			if c.nested != "" {
				for _, dir := range []string{dir, "trust"} {
					if err := os.MkdirAll(dir, 0o700); err != nil {
						t.Fatal(err)
					}
				}
				files[filepath.Join("trust", "go.mod")] = []byte("module trust\n")
				files[filepath.Join(dir, "go.mod")] = []byte("module nested\n\nreplace github.com/interlock-go/interlock => ../\n\nrequire (\n\tgithub.com/interlock-go/interlock " + c.nested + "\n)\n")
			}
			for path, text := range files {
				if err := os.WriteFile(path, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			git("init", "-q", "-b", "main")
			git("config", "user.name", "n")
			git("config", "user.email", "e@example.com")
			git("add", ".")
			git("commit", "-qm", "first")
			if c.before != nil {
				c.before(t, git)
			}
			cmd := exec.CommandContext(t.Context(), "sh", "scripts/release.sh", c.version)
			cmd.Env = append(os.Environ(), "CHECK="+c.check)
			out, err := cmd.CombinedOutput()
			if !strings.Contains(string(out), c.want) {
				t.Errorf("it says %q; want %q in it", out, c.want)
			}
			if good := strings.HasPrefix(c.want, "git push"); good != (err == nil) {
				t.Errorf("it ended with %v", err)
			}
			for _, tag := range []string{"v0.2.0", dir + "/v0.2.0"} {
				tags, _ := exec.CommandContext(t.Context(), "git", "tag", "--list", tag).Output()
				want := c.tagged && (tag == "v0.2.0" || c.nested != "")
				if tagged := len(tags) > 0; tagged != want {
					t.Errorf("tagged %s: %v; want %v", tag, tagged, want)
				}
				// go install refuses a module with replace directives.
				mod, _ := exec.CommandContext(t.Context(), "git", "show", tag+":"+dir+"/go.mod").Output()
				replaced := strings.Contains(string(mod), "replace")
				if installed := strings.HasPrefix(tag, "cmd/"); want && c.nested != "" && replaced == installed {
					t.Errorf("%s: replace directives in %s/go.mod: %v; want %v", tag, dir, replaced, !installed)
				}
			}
		})
	}
}
