package run_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// session is a program in the foreground of its own terminal.
type session struct {
	*wrapper
	user  *os.File // the other end of the terminal
	lines chan string
}

func ioctl(t *testing.T, f *os.File, request uintptr, value unsafe.Pointer) {
	t.Helper()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(value)); errno != 0 {
		t.Fatal(errno)
	}
}

// onTerminal starts a program with a terminal as its standard streams, with more flags of the
// terminal than it has by itself.
func onTerminal(t *testing.T, cmd *exec.Cmd, flags uint32) *session {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var locked, number int32
	ioctl(t, user, syscall.TIOCSPTLCK, unsafe.Pointer(&locked))
	ioctl(t, user, syscall.TIOCGPTN, unsafe.Pointer(&number))
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var settings syscall.Termios
	ioctl(t, terminal, syscall.TCGETS, unsafe.Pointer(&settings))
	settings.Lflag |= flags
	ioctl(t, terminal, syscall.TCSETS, unsafe.Pointer(&settings))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	s := &session{wrapper: start(t, cmd), user: user, lines: make(chan string)}
	_ = terminal.Close()
	over, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		defer close(s.lines)
		for lines := bufio.NewScanner(user); lines.Scan(); { // until the last program on the terminal has ended
			select {
			case s.lines <- lines.Text():
			case <-over:
			}
		}
	}()
	t.Cleanup(func() {
		close(over)
		// All that is in the session, if the test has failed.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Process.Kill()
		<-read
		_ = user.Close()
	})
	return s
}

// shows waits for a line that has a text.
func (s *session) shows(want string) {
	s.t.Helper()
	var before []string
	for timeout := time.After(time.Minute); ; {
		select {
		case line, ok := <-s.lines:
			if strings.Contains(line, want) { // after the echo of the keys
				return
			}
			if before = append(before, line); !ok {
				s.t.Fatalf("the terminal ended before %q: %q", want, before)
			}
		case <-timeout:
			s.t.Fatalf("%q is not shown, but %q", want, before)
		}
	}
}

func (s *session) types(keys string) {
	s.t.Helper()
	if _, err := io.WriteString(s.user, keys); err != nil {
		s.t.Fatal(err)
	}
}

// in makes a wrapper the first program of a line of a shell.
func in(t *testing.T, line string, args ...string) *exec.Cmd {
	t.Helper()
	w := inMemory(t, "", args...)
	cmd := exec.Command("sh", append([]string{"-c", line}, w.Args...)...)
	cmd.Env = w.Env
	return cmd
}

// A command on a terminal can ask questions, gets the keys that make signals, and
// gives the terminal back. It cannot be suspended: that would keep the lock.
func TestACommandHasTheTerminalAndCannotBeSuspended(t *testing.T) {
	t.Parallel()
	s := onTerminal(t, in(t, `"$0" "$@"; echo "status $?"; read z; echo "back $z"`, "-shell", "k", "--",
		`echo ready; read x; echo "got $x"; trap 'echo interrupted; exit 4' INT; echo on; while :; do sleep 0.01; done`), 0)
	s.shows("ready")
	s.types("one\n")
	s.shows("got one")
	s.shows("on")
	s.types("\x1a") // Ctrl-Z
	s.types("\x03") // Ctrl-C
	s.shows("interrupted")
	s.shows("status 4")
	s.types("two\n")
	s.shows("back two")
	s.ends(0, "")
}

// Ctrl-Z stops a program that the shell of a command begins, and not the shell, which waits
// for that: no signal tells the wrapper.
func TestWhatIsStoppedBehindTheCommandGoesOn(t *testing.T) {
	t.Parallel()
	s := onTerminal(t, inMemory(t, "", "-shell", "k", "--", `sleep 1000 & kill -STOP $!; echo "stopped $!"; trap 'exit 3' TERM; while :; do sleep 0.01; done`), 0)
	s.shows("stopped")
	eventually(t, func() error {
		for _, pid := range below(s.cmd.Process.Pid) {
			if state, _ := stat(pid); state == "T" {
				return fmt.Errorf("process %d is stopped", pid)
			}
		}
		return nil
	})
	s.send(syscall.SIGTERM)
	s.ends(3, "")
}

// below returns the processes below a process.
func below(top int) (all []int) {
	names, _ := os.ReadDir("/proc")
	for _, name := range names {
		if pid, err := strconv.Atoi(name.Name()); err == nil {
			for p := pid; p > 1; {
				_, parent := stat(p)
				if p, err = strconv.Atoi(parent); err != nil {
					break
				}
				if p == top {
					all = append(all, pid)
					break
				}
			}
		}
	}
	return all
}

// While the command has the foreground, the wrapper is in the background of the terminal,
// which may let no such program write (stty tostop), or output is suspended. The shell gives
// each line its own group, as at a prompt: the kernel stops no other groups.
func TestACommandIsEndedWhateverTheTerminalDoes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags uint32
		keys  string
	}{"stty tostop": {flags: syscall.TOSTOP}, "Ctrl-S": {keys: "\x13"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := onTerminal(t, in(t, `set -m; "$0" "$@"; exit $?`, "-ttl", "3s", "-shell", "k", "--", ended), c.flags)
			s.shows("ready")
			s.types(c.keys)
			s.change("held")
			s.ends(79, "")
		})
	}
}

// The programs of a pipeline share the terminal: it must not be taken from them, or the
// kernel stops all of them, and the wrapper with them, when one reads.
func TestAPipelineKeepsTheTerminal(t *testing.T) {
	t.Parallel()
	s := onTerminal(t, in(t, `"$0" "$@" | sh -c 'read x < /dev/tty; echo "the pager got $x"; cat'`, "-shell", "k", "--",
		`echo ready; trap 'echo interrupted >&2; exit 4' INT; while :; do sleep 0.01; done`), 0)
	s.types("one\n")
	s.shows("the pager got one")
	s.shows("ready")
	s.types("\x03")
	s.shows("interrupted")
	s.status()
}

// A command in a pipeline that asks a question is stopped by the kernel. The wrapper says
// so, and Ctrl-C ends it.
func TestACommandThatIsStoppedInAPipelineIsSaidToBe(t *testing.T) {
	t.Parallel()
	s := onTerminal(t, in(t, `"$0" "$@" | cat`, "-shell", "k", "--", `trap 'echo interrupted >&2; exit 4' INT; read x < /dev/tty`), 0)
	s.shows("the command was stopped")
	s.types("\x03")
	s.shows("interrupted")
	s.status()
}
