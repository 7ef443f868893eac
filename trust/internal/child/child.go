//go:build unix

// Package child has processes of tests that end with the test binary: on Linux the kernel
// ends them when the binary dies of any cause.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is a process that was started.
type Process struct {
	*exec.Cmd
	Done <-chan struct{} // closed when it has ended
}

// Start starts a command, which gets a signal when the test binary dies. Its output should
// go to files or pipes: any other writer costs a goroutine that a leak check sees.
func Start(cmd *exec.Cmd, dies syscall.Signal) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	dieWithParent(cmd.SysProcAttr, dies)
	done, started := make(chan struct{}), make(chan error, 1)
	// Linux tells a child that its parent has died when the thread that forked ends
	// (prctl(2), PR_SET_PDEATHSIG). Blocked in Wait, this one lives as long as the child.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in ProcessState
		}
	}()
	return &Process{cmd, done}, <-started
}

// Signal sends a signal; the process may have ended.
func (p *Process) Signal(s os.Signal) { _ = p.Process.Signal(s) }

// Kill ends the process at once.
func (p *Process) Kill() {
	p.Signal(os.Kill)
	<-p.Done
}

// Daemon is a server with its files in a separate directory. It may be launched again after
// its end.
type Daemon struct {
	Dir string
	Who *syscall.Credential // nil: as the test
	*Process
}

// NewDaemon makes the directory. It is not a test's TempDir, into which another user could
// not look.
func NewDaemon(name string, who *syscall.Credential) (*Daemon, error) {
	dir, err := os.MkdirTemp("", name+"-")
	if err != nil {
		return nil, err
	}
	if who != nil {
		err = os.Chown(dir, int(who.Uid), int(who.Gid))
	}
	return &Daemon{Dir: dir, Who: who}, err
}

// start starts a program, and appends its output to the log.
func (d *Daemon) start(dies syscall.Signal, path string, args ...string) (*Process, error) {
	log, err := os.OpenFile(d.log(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own copy, ours was never written to
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = d.Dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: d.Who}
	return Start(cmd, dies)
}

// Run runs a program that comes to an end.
func (d *Daemon) Run(path string, args ...string) error {
	p, err := d.start(syscall.SIGKILL, path, args...)
	if err != nil {
		return err
	}
	<-p.Done
	if !p.ProcessState.Success() {
		return fmt.Errorf("%s: %v\n%s", filepath.Base(path), p.ProcessState, d.Tail())
	}
	return nil
}

// Launch starts the server, and waits until ready returns no error.
func (d *Daemon) Launch(dies syscall.Signal, within time.Duration, ready func(context.Context) error, path string, args ...string) error {
	p, err := d.start(dies, path, args...)
	if err != nil {
		return err
	}
	d.Process = p
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.Done:
			return fmt.Errorf("%s has ended\n%s", filepath.Base(path), d.Tail())
		case <-ctx.Done():
			p.Kill()
			return errors.Join(context.Cause(ctx), err)
		case <-again.C:
		}
	}
}

// End ends the server by a signal, or at once if that takes too long.
func (d *Daemon) End(s os.Signal, within time.Duration) error {
	if d.Process == nil {
		return nil
	}
	d.Signal(s)
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-d.Done:
		return nil
	case <-timer.C:
		d.Kill()
		return fmt.Errorf("%s did not end within %v", filepath.Base(d.Path), within)
	}
}

func (d *Daemon) log() string { return filepath.Join(d.Dir, "log") }

// Tail returns the last lines of the log.
func (d *Daemon) Tail() string {
	said, err := os.ReadFile(d.log())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
