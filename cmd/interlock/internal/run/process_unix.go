//go:build unix

package run

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

// passedOn are the signals that the command gets.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// receive takes over the signals that are passed on, and the signals that would stop or end
// this process while it has the lock: SIGTSTP, and SIGPIPE, which is the error of a write
// then. A signal that was ignored when the process began (nohup) stays ignored, for the
// command too. stops has a signal after a child was stopped, or has ended: in a separate
// channel, which the ends of many children cannot fill.
func receive() (incoming, stops chan os.Signal) {
	incoming, stops = make(chan os.Signal, 16), make(chan os.Signal, 1)
	take := func(c chan os.Signal, signals ...os.Signal) {
		for _, sig := range signals {
			if !signal.Ignored(sig) {
				signal.Notify(c, sig)
			}
		}
	}
	take(incoming, passedOn...)
	take(stops, syscall.SIGCHLD)
	take(make(chan os.Signal, 1), syscall.SIGTSTP, syscall.SIGPIPE) // they are dropped
	return incoming, stops
}

// ownTerminal lets this process write to a terminal from the background,
// also after `stty tostop`, and take the foreground back. The kernel would stop it for
// both (SIGTTOU), or send the signal again and again if it were caught.
//
// The command must not inherit that: it is called when the command has begun. Before that
// nothing is written from the background (see mayWrite and [Voice]).
func ownTerminal() { signal.Ignore(syscall.SIGTTOU, syscall.SIGTTIN) }

// mayWrite reports whether a write to a file cannot stop this process.
func mayWrite(f *os.File) bool { return !terminal(f) || inForeground(f) }

// ends reports whether a signal ends the wait for the lock.
func ends(sig os.Signal) bool {
	switch sig {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

func number(sig os.Signal) int {
	if s, ok := sig.(syscall.Signal); ok {
		return int(s)
	}
	return 0
}

// run starts the command, and waits for it and for all other children.
//
// On Linux the command dies with the thread that starts it (prctl(2), PR_SET_PDEATHSIG).
// That thread waits, so it dies with this process.
func (c *child) run() error {
	c.before = becomeReaper()
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			c.reap()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	ownTerminal()
	return nil
}

// reap waits for all children: the command, and the processes that it has left without a
// parent, where this process gets them: as process 1, and on Linux. It returns when there
// are none.
func (c *child) reap() {
	command := c.cmd.Process.Pid
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return
		case pid == command && status.Signaled():
			c.code = statusSignal + int(status.Signal())
			close(c.done)
		case pid == command:
			c.code = status.ExitStatus()
			close(c.done)
		}
	}
}

// pass passes a signal on to the process group of the command.
func (c *child) pass(sig os.Signal) {
	c.signal(sig.(syscall.Signal)) //nolint:forcetypeassert // all are
	if ends(sig) {
		c.signal(syscall.SIGCONT) // a process that is stopped does not get it
	}
}

// resume has a command on the terminal go on after it was stopped. A command under a lock
// cannot be suspended from there: the user would not see that it keeps the lock. A process
// that was not stopped does not notice.
func (c *child) resume() {
	if c.onTerminal {
		c.signal(syscall.SIGCONT)
	}
}

// terminate asks the command and its descendants to end, also processes that are stopped.
func (c *child) terminate() {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		c.signal(sig)
		c.signalOthers(sig)
	}
}

// killAll ends the command and its descendants at once.
func (c *child) killAll() {
	c.signal(syscall.SIGKILL)
	c.killOthers()
}

// signal sends a signal to the process group. While a process of the group exists, no
// other process or group gets its number. A process of another user, as under sudo, does not
// get it; see survivors.
func (c *child) signal(sig syscall.Signal) {
	_ = syscall.Kill(-c.cmd.Process.Pid, sig)
}

// shellArgs run a string as a command.
func shellArgs() []string { return []string{"/bin/sh", "-c"} }

// asScript returns the arguments that run a file without a first line #! as shells run it: by
// /bin/sh. It reports false if the file is no text, as a program for another machine.
func asScript(path string, args []string, err error) ([]string, bool) {
	if !errors.Is(err, syscall.ENOEXEC) {
		return nil, false
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, false
	}
	defer func() { _ = f.Close() }()
	begin := make([]byte, 256)
	n, _ := io.ReadFull(f, begin)
	if bytes.IndexByte(begin[:n], 0) >= 0 {
		return nil, false
	}
	return append([]string{"/bin/sh", path}, args[1:]...), true
}

// attributes give the command its own process group.
func (c *child) attributes(streams Streams) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(attr)
	c.nearTerminal = terminal(streams.Stdin)
	// A process that reads from the terminal has to be in its foreground group. The keys
	// that make signals then reach the command, and not this process. In a pipeline the
	// other programs have to stay there: `interlock run K -- command | less` reads the
	// terminal, too.
	if !c.nearTerminal || pipe(streams.Stdout) || pipe(streams.Stderr) || !inForeground(streams.Stdin) {
		return attr
	}
	c.onTerminal = true
	attr.Foreground, attr.Ctty = true, int(streams.Stdin.Fd())
	return attr
}

// restore gives the terminal back to this process group.
func (c *child) restore(stdin *os.File) {
	if c.onTerminal {
		takeForeground(stdin)
	}
}
