package run_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stat returns the state and the parent of a process, "" if there is none.
func stat(pid int) (state, parent string) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", ""
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return fields[0], fields[1]
}

// eventually waits until ok returns nil.
func eventually(t *testing.T, ok func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// number reads a line that is a number.
func (w *wrapper) number() int {
	w.t.Helper()
	line := w.line()
	n, err := strconv.Atoi(line)
	if err != nil {
		w.t.Fatalf("the command said %q", line)
	}
	return n
}

// A child of the command lives in its own session, and in its own group without a parent. It
// ends with the command.
func TestWhatHasLeftTheGroupOfTheCommandIsEndedToo(t *testing.T) {
	t.Parallel()
	w := begin(t, "", []string{"-ttl", "3s", "-shell", "k", "--", `
		setsid sh -c 'trap "" TERM; echo $$; while :; do sleep 0.01; done' &
		(setsid sh -c 'setsid sh -c "echo \$\$; exec sleep 1000" & exit' &)
		trap 'exit 3' TERM; while :; do sleep 0.01; done`})
	pids := []int{w.number(), w.number()}
	w.change("free")
	w.ends(79, "was lost")
	for _, pid := range pids {
		eventually(t, func() error {
			if state, _ := stat(pid); state != "" && state != "Z" {
				return fmt.Errorf("process %d lives: %s", pid, state)
			}
			return nil
		})
	}
}

// The shell that the wrapper has replaced had started something before.
func TestWhatTheCommandHasNotStartedLivesOn(t *testing.T) {
	t.Parallel()
	w := inMemory(t, "", "-ttl", "3s", "-shell", "k", "--", "echo ready; trap 'exit 3' TERM; while :; do sleep 0.01; done")
	shell := exec.Command("sh", append([]string{"-c", `sleep 1000 >/dev/null 2>&1 & echo $!; exec "$0" "$@"`}, w.Args...)...)
	shell.Env = w.Env
	run := start(t, shell)
	neighbor := run.number()
	defer func() {
		if p, err := os.FindProcess(neighbor); err == nil {
			_ = p.Kill()
		}
	}()
	run.says("ready")
	run.change("free")
	run.status()
	if state, _ := stat(neighbor); state == "" || state == "Z" {
		t.Errorf("the neighbor was killed: %q", state)
	}
}

// When the parent of a process ends, the wrapper adopts the process, as process 1 of a
// container does, and no zombie remains.
func TestTheWrapperReapsWhatComesToIt(t *testing.T) {
	t.Parallel()
	r, input, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close(); _ = input.Close() }()
	w := begin(t, "", []string{"-shell", "k", "--", `exec 9<&0; (sh -c 'echo $$; read x; exit 0' <&9 &); while :; do sleep 0.01; done`},
		func(c *exec.Cmd) { c.Stdin = r })
	orphan := w.number()
	eventually(t, func() error {
		if _, parent := stat(orphan); parent != strconv.Itoa(w.cmd.Process.Pid) {
			return fmt.Errorf("its parent is %s", parent)
		}
		return nil
	})
	_ = input.Close() // it ends
	eventually(t, func() error {
		if state, _ := stat(orphan); state != "" {
			return fmt.Errorf("it is there still: %s", state)
		}
		return nil
	})
	w.send(syscall.SIGTERM)
	w.ends(128+int(syscall.SIGTERM), "")
}

// The command does not inherit the wrapper's own settings.
func TestTheCommandHasTheSignalsOfItsParent(t *testing.T) {
	t.Parallel()
	args := []string{"-E", "^Sig(Ign|Blk)", "/proc/self/status"}
	want, err := exec.Command("grep", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	got, err := inMemory(t, "", append([]string{"k", "--", "grep"}, args...)...).Output()
	if err != nil || string(got) != string(want) {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}
