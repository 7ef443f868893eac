//go:build unix

package run

import (
	"os"
	"os/signal"
	"syscall"
)

// passedOn are the signals that the command gets.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// receive takes over the signals that are passed on, and those that would stop this
// process, or say that the command was stopped. A signal that was ignored when the
// process began (nohup) stays ignored, for the command too.
func receive() chan os.Signal {
	incoming := make(chan os.Signal, 16)
	for _, sig := range append([]os.Signal{syscall.SIGTSTP, syscall.SIGCHLD}, passedOn...) {
		if !signal.Ignored(sig) {
			signal.Notify(incoming, sig)
		}
	}
	return incoming
}

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

// pass passes a signal on to the process group of the command.
//
// A command under a lock cannot be suspended from the terminal: the user would not
// see that it keeps the lock. SIGCHLD comes when it was stopped, and then it goes on;
// one that was not stopped does not notice. SIGTSTP for this process is dropped, or
// the lease would not be renewed.
func (c *child) pass(sig os.Signal) {
	switch sig {
	case syscall.SIGTSTP:
	case syscall.SIGCHLD:
		if c.onTerminal {
			c.signal(syscall.SIGCONT)
		}
	default:
		if s, ok := sig.(syscall.Signal); ok {
			c.signal(s)
		}
	}
}

// terminate asks the process group to end, also if it was stopped.
func (c *child) terminate() {
	c.signal(syscall.SIGTERM)
	c.signal(syscall.SIGCONT)
}

// killAll ends the process group at once.
func (c *child) killAll() { c.signal(syscall.SIGKILL) }

// signal sends a signal to the process group. While a process of the group exists, no
// other process or group gets its number.
func (c *child) signal(sig syscall.Signal) {
	_ = syscall.Kill(-c.cmd.Process.Pid, sig) // it has ended, or it gets the signal
}

// exitStatus is the status of a process as shells have it.
func exitStatus(state *os.ProcessState) int {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return statusSignal + int(ws.Signal())
	}
	return state.ExitCode()
}

// shellArgs run a string as a command.
func shellArgs() []string { return []string{"/bin/sh", "-c"} }

// attributes give the command a process group of its own.
func (c *child) attributes(stdin *os.File) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(attr)
	if stdin == nil || !inForeground(stdin) {
		return attr
	}
	// What reads from the terminal has to be in its foreground group. The keys that
	// make signals then reach the command, and not this process.
	c.onTerminal = true
	attr.Foreground, attr.Ctty = true, int(stdin.Fd())
	return attr
}

// restore gives the terminal back to this process group.
func (c *child) restore(stdin *os.File) {
	if c.onTerminal {
		takeForeground(stdin)
	}
}
