package run

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// child is the command as a process.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	code int           // its exit status, after done

	nearTerminal bool      // its standard input is a terminal
	onTerminal   bool      // it has the foreground of the terminal
	stopped      bool      // it was said that the command was stopped, and why
	before       processes // below this process, and not of the command
}

// start starts the command.
func start(path string, args, env []string, streams Streams) (*child, error) {
	c := newChild(path, args, env, streams)
	err := c.run()
	if script, ok := asScript(path, args, err); ok {
		c = newChild(script[0], script, env, streams)
		err = c.run()
	}
	if errors.Is(err, syscall.ENOEXEC) {
		err = fmt.Errorf("%w: it is no script, and no program for this machine", err)
	}
	return c, err
}

func newChild(path string, args, env []string, streams Streams) *child {
	c := &child{cmd: exec.Command(path, args[1:]...), done: make(chan struct{})}
	c.cmd.Args[0] = args[0]
	c.cmd.Env = env
	// Files, and no other readers or writers: no goroutine stands between.
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = streams.Stdin, streams.Stdout, streams.Stderr
	c.cmd.SysProcAttr = c.attributes(streams)
	return c
}

func (c *child) exited() <-chan struct{} { return c.done }

// status is the exit status of the command, as shells have it.
func (c *child) status() int {
	<-c.done
	return c.code
}

// terminal reports whether a file is a terminal, or another device in its place.
func terminal(f *os.File) bool {
	if f == nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// pipe reports whether a file is a pipe, or a socket in its place.
func pipe(f *os.File) bool {
	if f == nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0
}
