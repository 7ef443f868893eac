//go:build unix

package run_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/cmd/interlock/internal/run"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

const (
	// witnessEnv names a file. As a command under a lock, this program notes there that it
	// lives.
	witnessEnv = "RUN_TEST_WITNESS"
	// wrapperEnv makes this program a wrapper; its value selects the store.
	wrapperEnv = "RUN_TEST_WRAPPER"
	// controlEnv says that a test controls the store.
	controlEnv = "RUN_TEST_CONTROL"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(witnessEnv); file != "" {
		witness(file)
		return
	}
	if state, ok := os.LookupEnv(wrapperEnv); ok {
		os.Exit(wrap(state, os.Args[1:]))
	}
	unignore()
	goleak.VerifyTestMain(m)
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

// wrap is `interlock run` on a separate store in memory, with all flags before the key. A
// test that controls the store writes lines to the file descriptor 3. Each is answered on
// 4, by how many requests have asked for a lock.
func wrap(state string, args []string) int {
	store := memstore.New()
	var before *core.Lease // of a holder that releases the lock
	change := func(to string) {
		switch to {
		case "held":
			store.Take("k", time.Hour)
		case "taken":
			locker, err := core.New(store, core.Watchdog(time.Second)) // who waits asks again after that
			if err != nil {
				panic(err)
			}
			if before, err = locker.Lock(context.Background(), "k"); err != nil {
				panic(err)
			}
		case "released":
			_ = before.Release(context.Background())
		case "free":
			store.Expire("k")
		case "away":
			store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		case "unreplicated":
			store.Intercept(func(r memstore.Request) memstore.Fault {
				if r.Op == memstore.Acquire {
					return memstore.Fault{Err: driver.ErrNotReplicated, Executed: true}
				}
				return memstore.Fault{}
			})
		case "occupied":
			store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Fault{Err: driver.ErrKeyOccupied} })
		}
	}
	change(state)
	if os.Getenv(controlEnv) != "" {
		syscall.CloseOnExec(3) // it is not the command's
		syscall.CloseOnExec(4)
		go func() {
			answers := os.NewFile(4, "answers")
			for lines := bufio.NewScanner(os.NewFile(3, "changes")); lines.Scan(); {
				change(lines.Text())
				_, _ = fmt.Fprintln(answers, store.Requests(memstore.Acquire))
			}
		}()
	}
	var flags run.Flags
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.Define(fs)
	dashes := slices.Index(args, "--")
	if err := fs.Parse(args[:dashes]); err != nil {
		return 2
	}
	cmd, err := flags.Command(fs.Arg(0), args[dashes+1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return run.StatusUsage
	}
	status := cmd.Run(context.Background(), store, run.Streams{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Voice: run.NewVoice(func(line string) { _, _ = fmt.Fprintln(os.Stderr, "interlock:", line) }),
		Look: func(context.Context) (run.Held, error) {
			if owner, _, held := store.Holder("k"); held {
				return run.Held{By: owner, Tokens: []int64{7}}, nil
			}
			return run.Held{}, nil
		},
	})
	if owner, _, held := store.Holder("k"); held && !strings.HasPrefix(owner, "another-process") {
		fmt.Fprintln(os.Stderr, "the lock is still held")
		return 1
	}
	return status
}

// wrapper is one `interlock run`.
type wrapper struct {
	t    *testing.T
	cmd  *exec.Cmd
	pipe *os.File
	out  *bufio.Reader
	errs bytes.Buffer
	done chan struct{}

	changes *os.File
	answers *bufio.Reader
}

// inMemory prepares a wrapper on memory.
func inMemory(t *testing.T, state string, args ...string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), wrapperEnv+"="+state, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// begin starts a wrapper on memory. change may alter the process before.
func begin(t *testing.T, state string, args []string, change ...func(*exec.Cmd)) *wrapper {
	t.Helper()
	cmd := inMemory(t, state, args...)
	for _, f := range change {
		f(cmd)
	}
	return start(t, cmd)
}

// start starts a wrapper.
func start(t *testing.T, cmd *exec.Cmd) *wrapper {
	t.Helper()
	w := &wrapper{t: t, cmd: cmd, done: make(chan struct{})}
	// Pipes of the system, which the command inherits: no goroutine copies.
	pipe := func() (r, to *os.File) {
		r, to, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close(); _ = to.Close() })
		return r, to
	}
	r, out := pipe()
	changed, changes := pipe()
	answers, answer := pipe()
	w.pipe, w.out, w.changes, w.answers = r, bufio.NewReader(r), changes, bufio.NewReader(answers)
	cmd.ExtraFiles = []*os.File{changed, answer}
	if cmd.Stdout == nil {
		cmd.Stdout = out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &w.errs
	}
	cmd.Env = append(cmd.Env, controlEnv+"=1")
	cmd.WaitDelay = 10 * time.Second // a surviving command has standard error
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, theirs := range []*os.File{out, changed, answer} {
		_ = theirs.Close()
	}
	go func() {
		defer close(w.done)
		_ = cmd.Wait() // how it ended is in ProcessState
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, or the test has failed
		<-w.done
	})
	return w
}

// change changes the store, and returns how many requests have asked for a lock.
func (w *wrapper) change(to string) (asked string) {
	w.t.Helper()
	if _, err := fmt.Fprintln(w.changes, to); err != nil {
		w.t.Fatal(err)
	}
	asked, err := w.answers.ReadString('\n')
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.TrimSpace(asked)
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
		w.t.Fatal("the wrapper did not end within a minute")
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
