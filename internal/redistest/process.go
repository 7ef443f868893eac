package redistest

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
)

// process is one run of a server program. It is never reused: a restarted
// server has a new one.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the process is dead and reaped
}

// launch starts the program with its output in log.
func launch(path string, args []string, dir string, log *os.File) (*process, error) {
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	// An *os.File is handed to the child as it is; any other writer would cost
	// a copying goroutine that the leak check sees.
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithParent()

	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the process and waits for it, both on one locked thread: Linux
// delivers the parent-death signal when the *thread* that forked ends, not the
// process (prctl(2), PR_SET_PDEATHSIG). Blocked in Wait, this thread lives
// exactly as long as the child, so the signal can come only from our own death.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.done)

	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = p.cmd.Wait() // the exit status of a killed server says nothing
}

// pid is the process id.
func (p *process) pid() int { return p.cmd.Process.Pid }

// dead reports whether the process has ended.
func (p *process) dead() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal sends sig; a process that has already ended is no error.
func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// kill ends the process at once, a suspended one too, and waits until it is gone.
func (p *process) kill() {
	// SIGKILL to our own child fails only when it is gone already.
	_ = p.signal(os.Kill)
	<-p.done
}
