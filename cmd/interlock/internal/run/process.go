package run

import (
	"errors"
	"os/exec"
	"runtime"
)

// child is the command as a process.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // of the wait, after done

	onTerminal bool // it has the foreground of the terminal
}

// start starts the command.
//
// On Linux it dies with the thread that starts it (prctl(2), PR_SET_PDEATHSIG). That
// thread is kept until the command has ended, so it dies with this process.
func start(path string, args, env []string, streams Streams) (*child, error) {
	c := &child{cmd: exec.Command(path, args[1:]...), done: make(chan struct{})}
	c.cmd.Args[0] = args[0]
	c.cmd.Env = env
	// Files, and no other readers or writers: no goroutine stands between.
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = streams.Stdin, streams.Stdout, streams.Stderr
	c.cmd.SysProcAttr = c.attributes(streams.Stdin)
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(c.done)
		err := c.cmd.Start()
		started <- err
		if err == nil {
			c.err = c.cmd.Wait()
			c.restore(streams.Stdin)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

func (c *child) exited() <-chan struct{} { return c.done }

// status is the exit status of the command, as shells have it.
func (c *child) status() int {
	<-c.done
	var exit *exec.ExitError
	switch {
	case c.err == nil:
		return 0
	case errors.As(c.err, &exit):
		return exitStatus(exit.ProcessState)
	}
	return StatusInternal
}
