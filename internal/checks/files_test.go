package checks_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A program that was built in the tree was committed with it once: 22 MB in every clone.
func TestTheTreeHasNoLargeFiles(t *testing.T) {
	atRoot(t)
	const most = 256 << 10
	out, err := exec.CommandContext(t.Context(), "git", "ls-files", "-z").Output()
	if err != nil {
		t.Logf("git does not list the files, as in a copy without a repository: %v", err)
		return
	}
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(files) < 500 {
		t.Errorf("git lists %d files; want all of the tree", len(files))
	}
	for _, name := range files {
		if info, err := os.Lstat(name); err == nil && info.Size() > most {
			t.Errorf("%s has %d bytes, at most %d are allowed: remove it with git rm", name, info.Size(), most)
		}
	}
}
