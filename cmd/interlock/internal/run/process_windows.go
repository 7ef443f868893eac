package run

import (
	"os"
	"os/signal"
	"syscall"
)

// receive takes over Ctrl-C, which reaches the command by itself: Windows tells all
// processes of the console. No other signal exists there.
func receive() chan os.Signal {
	incoming := make(chan os.Signal, 16)
	signal.Notify(incoming, os.Interrupt)
	return incoming
}

func ends(os.Signal) bool { return true }

func number(os.Signal) int { return int(syscall.SIGINT) }

func (c *child) pass(os.Signal) {}

// terminate ends the command at once: Windows has no SIGTERM.
func (c *child) terminate() { c.killAll() }

// killAll ends the command, and not what the command has started.
func (c *child) killAll() {
	_ = c.cmd.Process.Kill() // it has ended, or it ends now
}

func exitStatus(state *os.ProcessState) int { return state.ExitCode() }

// shellArgs run a string as a command.
func shellArgs() []string { return []string{"cmd.exe", "/C"} }

func (c *child) attributes(*os.File) *syscall.SysProcAttr { return nil }

func (c *child) restore(*os.File) {}
