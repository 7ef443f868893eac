package run

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// processes has no use on Windows: no process adopts another.
type processes struct{}

// receive takes over Ctrl-C, which reaches the command by itself: Windows tells all
// processes of the console. No other signal exists there.
func receive() (incoming, stops chan os.Signal) {
	incoming = make(chan os.Signal, 16)
	signal.Notify(incoming, os.Interrupt)
	return incoming, nil
}

func mayWrite(*os.File) bool { return true }

func ends(os.Signal) bool { return true }

func number(os.Signal) int { return int(syscall.SIGINT) }

// run starts the command, and waits for it.
func (c *child) run() error {
	if err := c.cmd.Start(); err != nil {
		return err
	}
	go func() {
		defer close(c.done)
		err := c.cmd.Wait()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			c.code = exit.ExitCode()
		case err != nil:
			c.code = StatusInternal
		}
	}()
	return nil
}

func (c *child) pass(os.Signal) {}

func (c *child) resume() {}

func (c *child) look() (news string) { return "" }

// terminate ends the command at once: Windows has no SIGTERM.
func (c *child) terminate() { c.killAll() }

// killAll ends the command, and not its children.
func (c *child) killAll() {
	_ = c.cmd.Process.Kill() // it has ended, or it ends now
}

func (c *child) survivors() []int { return nil }

func asScript(string, []string, error) ([]string, bool) { return nil, false }

// shellArgs run a string as a command.
func shellArgs() []string { return []string{"cmd.exe", "/C"} }

func (c *child) attributes(Streams) *syscall.SysProcAttr { return nil }

func (c *child) restore(*os.File) {}
