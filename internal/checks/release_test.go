package checks_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The script that makes a release refuses what must not be released, and tags
// nothing then.
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
	}{
		"a good release":         {version: "v0.2.0", check: "true", want: "git push origin main v0.2.0", tagged: true},
		"a nested module":        {version: "v0.2.0", check: "true", want: "git push origin main v0.2.0 nested/v0.2.0", tagged: true, nested: "v0.2.0"},
		"nested is behind":       {version: "v0.2.0", check: "true", want: "go -C nested mod edit -require=github.com/interlock-go/interlock@v0.2.0", nested: "v0.1.0"},
		"no version":             {version: "", check: "true", want: "usage"},
		"not a version":          {version: "v0.02.0", check: "true", want: "is not a version"},
		"not in the changelog":   {version: "v0.3.0", check: "true", want: "CHANGELOG.md has no line"},
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
			files := map[string][]byte{filepath.Join("scripts", "release.sh"): script, "CHANGELOG.md": []byte(changelog)}
			if c.nested != "" {
				for _, dir := range []string{"nested", "trust"} {
					if err := os.Mkdir(dir, 0o700); err != nil {
						t.Fatal(err)
					}
				}
				files[filepath.Join("trust", "go.mod")] = []byte("module trust\n")
				files[filepath.Join("nested", "go.mod")] = []byte("module nested\n\nrequire (\n\tgithub.com/interlock-go/interlock " + c.nested + "\n)\n")
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
			for _, tag := range []string{"v0.2.0", "nested/v0.2.0"} {
				tags, _ := exec.CommandContext(t.Context(), "git", "tag", "--list", tag).Output()
				want := c.tagged && (tag == "v0.2.0" || c.nested != "")
				if tagged := len(tags) > 0; tagged != want {
					t.Errorf("tagged %s: %v; want %v", tag, tagged, want)
				}
			}
		})
	}
}
