//go:build unix

package run_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// ended is a command that says how it ends, on standard output alone.
const ended = `exec 2>/dev/null; trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.01; done`

// Nothing reads the messages of the wrapper. The command is ended all the same, and so is the
// wrapper.
func TestACommandIsEndedThoughTheWrapperCannotWrite(t *testing.T) {
	t.Parallel()
	for name, stderr := range map[string]func(t *testing.T, r, w *os.File){
		"a pipe that is full": func(t *testing.T, _, w *os.File) {
			fd := int(w.Fd())
			if err := syscall.SetNonblock(fd, true); err != nil {
				t.Fatal(err)
			}
			for err := error(nil); err == nil; { // EAGAIN in the end
				_, err = syscall.Write(fd, make([]byte, 4096))
			}
			if err := syscall.SetNonblock(fd, false); err != nil {
				t.Fatal(err)
			}
		},
		"a pipe without a reader": func(t *testing.T, r, _ *os.File) {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, stream, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.Close(); _ = stream.Close() }()
			stderr(t, r, stream)
			w := begin(t, "", []string{"-ttl", "3s", "-shell", "k", "--", ended}, func(c *exec.Cmd) { c.Stderr = stream })
			w.says("ready")
			w.change("held")
			w.says("cleaned")
			w.ends(79, "")
		})
	}
}
