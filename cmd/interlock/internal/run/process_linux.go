package run

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

// dieWithParent has the kernel kill the command when this process dies of any cause. It does
// not reach the children of the command.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// processes are processes by their numbers, each with when it began: a number is used
// again.
type processes map[int]string

// becomeReaper has the processes below this one come to it when their parents end, in
// place of process 1 (prctl(2), PR_SET_CHILD_SUBREAPER): so they can be found. It returns
// the processes that are below this one already, of a shell that this process has
// replaced.
func becomeReaper() processes {
	const setChildSubreaper = 36
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0) // Linux has it since 3.4
	before := processes{}
	for _, p := range below(os.Getpid(), nil) {
		before[p.pid] = p.began
	}
	return before
}

// proc is a process.
type proc struct {
	pid, parent, group int
	state              byte
	began              string
}

// read reads the kernel's status of a process (proc(5), stat).
func read(pid int) (p proc, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return p, false
	}
	// The name of the program stands in parentheses, and may have some itself.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return p, false
	}
	p = proc{pid: pid, state: fields[0][0], began: string(fields[19])}
	p.parent, _ = strconv.Atoi(string(fields[1]))
	p.group, _ = strconv.Atoi(string(fields[2]))
	return p, true
}

// below returns the processes below a process that have not ended. It leaves out the
// processes of a list, and their descendants.
func below(top int, without processes) (found []proc) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]proc{}
	for _, name := range names {
		if pid, err := strconv.Atoi(name.Name()); err == nil {
			if p, ok := read(pid); ok {
				children[p.parent] = append(children[p.parent], p)
			}
		}
	}
	for todo := []int{top}; len(todo) > 0; todo = todo[1:] {
		for _, p := range children[todo[0]] {
			if without[p.pid] == p.began {
				continue
			}
			if todo = append(todo, p.pid); p.state != 'Z' {
				found = append(found, p)
			}
		}
	}
	return found
}

// others are the processes that the command has started and that have left its group.
func (c *child) others() (found []proc) {
	for _, p := range below(os.Getpid(), c.before) {
		if p.group != c.cmd.Process.Pid {
			found = append(found, p)
		}
	}
	return found
}

// signalOthers sends a signal to the processes that have left the group.
func (c *child) signalOthers(sig syscall.Signal) {
	for _, p := range c.others() {
		p.signal(sig)
	}
}

// signal sends a signal to a process. Its number may be another's by now: the kernel is
// asked for a handle of the number, and the handle is used only if the number is still
// the process's.
func (p proc) signal(sig syscall.Signal) {
	handle, err := os.FindProcess(p.pid)
	if err != nil {
		return
	}
	if now, ok := read(p.pid); ok && now.began == p.began {
		_ = handle.Signal(sig) // it has ended, or it gets the signal
	}
	_ = handle.Release()
}

// killOthers kills the processes that have left the group until there are none: what dies
// may have started another before. A chain of processes that start each other and end may be
// faster than the looks; see survivors.
func (c *child) killOthers() {
	for range 100 {
		all := c.others()
		if len(all) == 0 {
			return
		}
		for _, p := range all {
			p.signal(syscall.SIGKILL)
		}
		time.Sleep(time.Millisecond) // they die meanwhile
	}
}

// survivors are the processes of the command and its descendants that have not ended: after
// killAll these are processes of another user, processes that wait for a disk or a network file
// system, and the last of a chain that starts processes faster than they are found.
func (c *child) survivors() (pids []int) {
	for _, p := range below(os.Getpid(), c.before) {
		pids = append(pids, p.pid)
	}
	return pids
}

// look continues processes of the group that were stopped from the terminal while their
// parent could not be: a shell that waits for a program to begin (vfork) is not stopped,
// and so says nothing. Without the terminal, the command stays stopped where it reads from
// it, and look says so once.
func (c *child) look() (news string) {
	if !c.nearTerminal {
		return ""
	}
	for _, p := range below(os.Getpid(), c.before) {
		if p.state != 'T' || p.group != c.cmd.Process.Pid {
			continue
		}
		if c.onTerminal {
			c.resume()
			return ""
		}
		if !c.stopped {
			c.stopped = true
			return "the command was stopped: it does not have the terminal, in a pipeline or in the background, and may have read from it"
		}
	}
	return ""
}
