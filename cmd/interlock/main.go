// Command interlock shows and repairs the locks of a fleet: it reads from the store which
// process holds which lock, and which wait. docs/tool.md describes its commands, their
// JSON and their exit codes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/display"
)

// The exit codes. docs/tool.md has them too.
const (
	exitDone    = 0
	exitFailed  = 1  // the server was not reached, or refused; the message says why
	exitUsage   = 2  // the command line is wrong; nothing was sent
	exitNo      = 3  // the answer is no: not held, no such grant, unsafe settings
	exitHeld    = 75 // the lock was not to be had in time (EX_TEMPFAIL of sysexits.h)
	exitStopped = 130
)

// commands are all that there are, in the order of the help.
var commands []*command

// init is where the table is filled, since completion and help read it too.
func init() {
	commands = []*command{
		lsCommand, inspectCommand, lockersCommand, waitCommand, releaseCommand, runCommand, runsCommand, doctorCommand, idemCommand,
		uiCommand,
		completionCommand, versionCommand,
	}
}

// silent keeps go-redis from writing to the terminal: failures come back as errors too.
type silent struct{}

// Printf implements the interface that redis.SetLogger takes.
func (silent) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(silent{})
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}

// execute carries out a command line and returns the exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	c := &call{stdout: stdout, stderr: stderr, conn: fromEnvironment(os.Getenv)}
	cmd, err := c.parse(args)
	if err == nil && cmd != nil {
		ctx := context.Background()
		if !cmd.ownSignals {
			var stop context.CancelFunc
			ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
			defer stop()
		}
		err = c.carryOut(ctx)
	}
	return c.exit(err)
}

// answersWithin bounds a command that asks little. Tests change it.
var answersWithin = 10 * time.Second

var errNoAnswer = errors.New("no answer from the server in time")

// patience ends a command that asks little where the server does not answer.
type patience struct{ timer *time.Timer } // nil: the command has no bound

// begin begins the time anew.
func (p patience) begin() {
	if p.timer != nil {
		p.timer.Reset(answersWithin)
	}
}

// lift takes the bound away, for as long as the command waits for its user, or reads as much as a list does.
func (p patience) lift() {
	if p.timer != nil {
		p.timer.Stop()
	}
}

// carryOut carries the command out.
func (c *call) carryOut(ctx context.Context) error {
	bound, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if c.cmd.brief && (c.cmd.lists == "" || len(c.args) == 0 || c.args[0] != c.cmd.lists) {
		c.patience.timer = time.AfterFunc(answersWithin, func() { cancel(errNoAnswer) })
		defer c.patience.lift()
	}
	defer func() {
		if c.close != nil {
			c.close()
		}
	}()
	err := c.action(bound, c)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		why := errors.New("stopped by a signal")
		if open := new(unknownError); errors.As(err, &open) {
			why = fmt.Errorf("%w; it is not known whether %s", why, open.what)
		}
		return &exitError{exitStopped, why}
	case bound.Err() != nil:
		return fmt.Errorf("%w, which is %v (%w)", errNoAnswer, answersWithin, err)
	}
	return err
}

// exitError is an error with an exit code. If err is nil, nothing is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// unknownError is the end of a command while its request was under way: the server may still carry
// the request out.
type unknownError struct {
	what string // "the grant was released"
	err  error
}

func (e *unknownError) Error() string {
	return "it is not known whether " + e.what + ": " + e.err.Error()
}

func (e *unknownError) Unwrap() error { return e.err }

// usageError is a wrong command line.
func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// exit prints an error and returns the exit code for it.
func (c *call) exit(err error) int {
	if err == nil {
		return exitDone
	}
	code := exitFailed
	var own *exitError
	if errors.As(err, &own) {
		if code = own.code; own.err == nil {
			return code
		}
		if code == exitUsage && c.cmd != nil && c.cmd.wrongLine != 0 {
			code = c.cmd.wrongLine
		}
	}
	text := inWords(err)
	if c.conn.several() && (errors.Is(err, driver.ErrUnavailable) || errors.Is(err, errNoAnswer)) {
		text += "; asked: " + c.conn.source() // the error names a single address
	}
	_, _ = fmt.Fprintln(c.stderr, "interlock:", display.Message(text))
	return code
}

// inWords is the text of an error for the user of the tool, with what to do about it.
func inWords(err error) string {
	text := strings.NewReplacer(": interlock: ", ": ", "(interlock: ", "(").Replace(strings.TrimPrefix(err.Error(), "interlock: "))
	switch {
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "NOAUTH"):
		return "wrong password, or user: set INTERLOCK_PASSWORD, and INTERLOCK_USER or -user"
	case strings.Contains(text, "MOVED "), strings.Contains(text, "CLUSTERDOWN"), strings.Contains(text, "CROSSSLOT"):
		return text + " (a node of a Cluster wants the flag -cluster)"
	}
	return text
}
