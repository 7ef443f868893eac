package run

import (
	"errors"
	"os"
	"time"

	"github.com/interlock-go/interlock/core"
)

// look is how often the watch looks at the lease at least: after a machine was
// suspended, Lease.Err notices it and has the lease confirmed at once.
const look = time.Second

// Processes that were killed have deathTries times deathPause to die before it is said that
// they live on.
const (
	deathTries = 50
	deathPause = 10 * time.Millisecond
)

// process is the command as the watch sees it. No method waits, but status.
type process interface {
	// exited is closed when the command has ended.
	exited() <-chan struct{}
	// pass hands a signal on that this process got.
	pass(sig os.Signal)
	// resume is called after a child was stopped, or has ended, and look now and then. look
	// returns the messages.
	resume()
	look() (news string)
	// terminate asks the command and its descendants to end.
	terminate()
	// killAll ends both at once. survivors are the processes of both that have not ended.
	killAll()
	survivors() []int
	// status waits for the command, and returns its exit status as shells have it.
	status() int
}

// watch ends a command when its lock is lost, or is about to be.
type watch struct {
	command *Command
	lease   *core.Lease
	child   process
	log     logger

	ending bool      // SIGTERM is out
	kill   time.Time // when SIGKILL goes out
	killed time.Time // when SIGKILL went out; zero: it has not
	said   bool      // it was said that SIGKILL did not help
}

// until passes signals on, and returns when the command has ended.
//
// Nothing here writes, and nothing waits for a terminal or for another goroutine: messages
// are queued, and each signal is a system call that does not wait. The locker renews the
// lease; its goroutines write to their connections alone.
func (w *watch) until(incoming, stops <-chan os.Signal) {
	lost := w.lease.Context().Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-w.child.exited():
			if w.ending {
				w.child.killAll() // remaining processes of the command
				w.sayWhoLives()
			}
			return
		case sig := <-incoming:
			w.child.pass(sig)
			continue
		case <-stops:
			w.child.resume()
			continue
		case <-lost:
			lost = nil
			w.end("was lost")
		case <-timer.C:
		}
		timer.Reset(w.tick())
	}
}

// tick does the work that is due, and returns when to look again.
func (w *watch) tick() time.Duration {
	now, deadline := time.Now(), w.lease.Deadline()
	last := deadline.Add(-w.command.margin())
	if first := last.Add(-w.command.grace); !w.ending && now.Before(first) {
		_ = w.lease.Err() // see look; if the lease is lost, its context ends
		if news := w.child.look(); news != "" {
			w.log.printf("%s", news)
		}
		return min(first.Sub(now), look)
	}
	w.end("could not be renewed in time")
	if left := time.Until(w.kill); left > 0 {
		return left
	}
	switch {
	case w.killed.IsZero():
		w.killed = now
		w.child.killAll()
	case !w.said && now.Sub(w.killed) >= look/2:
		w.said = true
		w.child.killAll()
		w.log.printf("the command has not ended after SIGKILL, and may run beside the next one (processes %v): "+
			"they are another user's, or wait for a disk", w.child.survivors())
	}
	return look
}

// sayWhoLives says which processes have outlived the command, after they had time to die.
func (w *watch) sayWhoLives() {
	var left []int
	for range deathTries {
		if left = w.child.survivors(); len(left) == 0 {
			return
		}
		time.Sleep(deathPause)
	}
	w.child.killAll()
	w.log.printf("%d processes that the command has started live on, and may run beside the next one: %v", len(left), left)
}

// end begins to end the command. The time for SIGKILL is never put off: a renewal
// that succeeds now comes too late for the command.
func (w *watch) end(why string) {
	if w.ending {
		return
	}
	w.ending = true
	w.kill = time.Now().Add(w.command.grace)
	if last := w.lease.Deadline().Add(-w.command.margin()); last.Before(w.kill) {
		w.kill = last
	}
	w.child.terminate()
	w.log.printf("the lock %q %s: the command is ended", w.log.key, why)
}

// status is the exit status, when the lock was released with an error or none.
func (w *watch) status(released error, loss <-chan core.Loss) int {
	own := w.child.status()
	switch {
	case errors.Is(released, core.ErrLost):
		// A loss that the release has found is reported from a goroutine, a little later.
		why := "unknown"
		select {
		case l := <-loss:
			why = string(l.Reason)
		case <-time.After(closeWait):
		}
		w.log.printf("the lock %q was lost while the command ran (reason: %s); the command ended with status %d", w.log.key, why, own)
		return StatusLost
	case released != nil:
		w.log.printf("the lock %q could not be released, and ends with its lease of %v: %v", w.log.key, w.command.ttl, released)
	}
	if w.ending {
		w.log.printf("the command ended with status %d", own)
		return StatusLost
	}
	return own
}
