package run_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// pseudoTerminal returns both ends of a terminal.
func pseudoTerminal(t *testing.T) (user, terminal *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = user.Close() })
	var locked, number int32
	for request, value := range map[uintptr]*int32{syscall.TIOCSPTLCK: &locked, syscall.TIOCGPTN: &number} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, user.Fd(), request, uintptr(unsafe.Pointer(value))); errno != 0 {
			t.Fatal(errno)
		}
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return user, terminal
}

// A command on a terminal can ask questions, gets the keys that make signals, and
// gives the terminal back. It cannot be suspended: that would keep the lock.
func TestACommandHasTheTerminalAndCannotBeSuspended(t *testing.T) {
	t.Parallel()
	user, terminal := pseudoTerminal(t)
	lines := bufio.NewScanner(user)
	says := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.HasSuffix(strings.TrimSpace(lines.Text()), want) { // behind the echo of the keys
				return
			}
		}
		t.Fatalf("the terminal ended before %q: %v", want, lines.Err())
	}
	types := func(keys string) {
		t.Helper()
		if _, err := io.WriteString(user, keys); err != nil {
			t.Fatal(err)
		}
	}
	w := inMemory(t, "", "-shell", "k", "--",
		`echo ready; read x; echo "got $x"; trap 'echo interrupted; exit 4' INT; echo on; while :; do :; done`)
	cmd := exec.Command("sh", append([]string{"-c", `"$0" "$@"; echo "status $?"; read z; echo "back $z"`}, w.Args...)...)
	cmd.Env = w.Env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	says("ready")
	types("one\n")
	says("got one")
	says("on")
	types("\x1a") // Ctrl-Z
	types("\x03") // Ctrl-C
	says("interrupted")
	says("status 4")
	types("two\n")
	says("back two")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
