//go:build unix

package run_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/internal/redistest"
)

// witnessEnv names the file in which this program, as a command under a lock, notes
// that it lives.
const witnessEnv = "RUN_TEST_WITNESS"

func TestMain(m *testing.M) {
	if file := os.Getenv(witnessEnv); file != "" {
		witness(file)
		return
	}
	unignore()
	redistest.Main(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(toolDir) // empty if no test has built it
		os.Exit(status)
	}))
}

// unignore lets the commands of the tests get the signals that are ignored in this process,
// as SIGHUP is under nohup, and SIGINT in the background of a script: a command inherits
// that a signal is ignored, but not that it is caught.
func unignore() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// witness notes the time, over and over, until it is killed. It ignores SIGTERM, and ends by
// itself only after its test, should that have been broken off.
func witness(file string) {
	signal.Ignore(syscall.SIGTERM)
	f, err := os.Create(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
		_, _ = f.WriteAt([]byte(fmt.Sprint(time.Now().UnixNano())), 0)
		time.Sleep(time.Millisecond)
	}
}

// toolDir is where the tool is.
var toolDir string

// tool is the path of the tool, which is built once.
var tool = sync.OnceValues(func() (string, error) {
	var err error
	if toolDir, err = os.MkdirTemp("", "interlock-run-"); err != nil {
		return "", err
	}
	path := filepath.Join(toolDir, "interlock")
	out, err := exec.Command("go", "build", "-o", path, "github.com/interlock-go/interlock/cmd/interlock").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// wrapper is one `interlock run`.
type wrapper struct {
	t    *testing.T
	cmd  *exec.Cmd
	pipe *os.File
	out  *bufio.Reader
	errs bytes.Buffer
	done chan struct{}
}

// begin starts the tool with its connection to addr and these arguments. change may
// alter the process before.
func begin(t *testing.T, addr string, args []string, change ...func(*exec.Cmd)) *wrapper {
	t.Helper()
	path, err := tool()
	if err != nil {
		t.Fatal(err)
	}
	w := &wrapper{t: t, cmd: exec.Command(path, append([]string{"-addr", addr, "run"}, args...)...), done: make(chan struct{})}
	// A pipe of the system, which the command inherits: no goroutine copies.
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.cmd.Stdout, w.cmd.Stderr, w.pipe, w.out = out, &w.errs, r, bufio.NewReader(r)
	w.cmd.WaitDelay = 10 * time.Second // a command that was left behind has standard error
	for _, f := range change {
		f(w.cmd)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	go func() {
		defer close(w.done)
		_ = w.cmd.Wait() // how it ended is in ProcessState
	}()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill() // it has ended, or the test has failed
		<-w.done
		_ = r.Close()
	})
	return w
}

// says waits for a line of the command.
func (w *wrapper) says(want string) {
	w.t.Helper()
	if got := w.line(); got != want {
		w.t.Fatalf("the command said %q; want %q", got, want)
	}
}

// line is the next line of the command.
func (w *wrapper) line() string {
	w.t.Helper()
	if err := w.pipe.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		w.t.Fatal(err)
	}
	line, err := w.out.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		w.t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (w *wrapper) send(sig os.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(sig); err != nil {
		w.t.Fatal(err)
	}
}

// status waits for the end, and returns the exit status.
func (w *wrapper) status() int {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(time.Minute):
		w.t.Fatal("the tool did not end within a minute")
	}
	return w.cmd.ProcessState.ExitCode()
}

// ends checks the exit status, and that standard error has a text.
func (w *wrapper) ends(want int, text string) {
	w.t.Helper()
	if got := w.status(); got != want || !strings.Contains(w.errs.String(), text) {
		w.t.Fatalf("status %d, and it said %q; want %d, and %q", got, w.errs.String(), want, text)
	}
}
