package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
)

// closeWait bounds the clean-up after the end of the command and the release of the lock: more than a
// request for the lock that is under way, with replicas to ask, and its release take.
const closeWait = 5 * time.Second

// Streams are the input and output of the command, and the messages of the wrapper.
type Streams struct {
	Stdin, Stdout, Stderr *os.File
	// Voice writes the error.
	Voice *Voice
	// Look, unless nil, reads who holds the lock of the command. It is a courtesy, and may fail.
	Look func(ctx context.Context) (Held, error)
}

// Held says who holds a lock.
type Held struct {
	By     string  // in words; empty: no process
	Tokens []int64 // the fencing tokens of the grants
	// Silent, unless zero, says that the holders may have died, and after what time the lock is free if they have.
	Silent time.Duration
}

// lookWithin bounds a look at the holder.
const lookWithin = 3 * time.Second

// held returns who holds the lock; the zero value if that is not known.
func (s Streams) held(ctx context.Context) Held {
	if s.Look == nil {
		return Held{}
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	held, err := s.Look(ctx)
	if err != nil {
		return Held{}
	}
	return held
}

// heldEnv names the grants of the wrappers around a command: the hash of each key, a colon and the token.
const heldEnv = "INTERLOCK_HELD"

// grant is a grant as heldEnv has it.
func grant(key string, token int64) string {
	return fmt.Sprintf("%s:%d", core.Hashed(key).Hash(), token)
}

// inside reports whether a wrapper around this one holds the lock: it waits for this wrapper to end.
func (c *Command) inside(ctx context.Context, streams Streams) bool {
	around := strings.Split(os.Getenv(heldEnv), ",")
	if !slices.ContainsFunc(around, func(g string) bool { return strings.HasPrefix(g, core.Hashed(c.key).Hash()+":") }) {
		return false
	}
	// The key may be another one's on another server, and the lock may have been lost.
	return slices.ContainsFunc(streams.held(ctx).Tokens, func(token int64) bool { return slices.Contains(around, grant(c.key, token)) })
}

// Run takes the lock, runs the command and releases the lock. It returns the exit
// status. Run uses only the values of ctx: signals end it, not the end of a context.
// It takes over the signals that it passes on, so call it once in a process.
func (c *Command) Run(ctx context.Context, store core.Store, streams Streams) int {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	log := logger{streams.Voice.say, c.key}
	go streams.Voice.listen(func() bool { return mayWrite(streams.Stderr) })
	defer streams.Voice.finish()
	path, err := exec.LookPath(c.args[0])
	if err != nil {
		return log.notStarted(err)
	}
	if c.inside(ctx, streams) {
		log.printf("the lock %q is held by the interlock run that this command runs under: it would wait without end", c.key)
		return StatusUsage
	}
	var records *Records
	if c.per > 0 || c.record {
		if records, err = NewRecords(store, c.ttl, c.location); err != nil {
			log.printf("%v", err)
			return StatusUsage
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
			defer cancel()
			_ = records.Close(ctx)
		}()
	}
	incoming, stops := receive()
	defer signal.Stop(incoming)

	loss := make(chan core.Loss, 1)
	locker, err := core.New(store, core.Watchdog(c.ttl), core.WholeLease(), core.Name("interlock run"), core.Service(c.service(), ""), core.OnLost(func(l core.Loss) { loss <- l }))
	if err != nil {
		log.printf("%v", err)
		return StatusInternal
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
		defer cancel()
		_ = locker.Close(ctx) // otherwise the lock ends with its lease
	}()
	lease, status := c.lock(ctx, cancel, locker, incoming, streams, log)
	if lease == nil {
		if status != StatusBusy {
			return status
		}
		if by := streams.held(ctx).By; by != "" {
			log.printf("the lock %q is held by %s", c.key, by)
		}
		return c.busy
	}
	execute := func() int { return c.execute(ctx, path, lease, streams, log, incoming, stops, loss) }
	if records == nil {
		return execute()
	}
	status, ran := c.recorded(ctx, records, lease.Token(), func() int { return stopped(incoming) }, log, execute)
	if !ran {
		_ = lease.Release(ctx)
	}
	return status
}

// stopped waits for a moment, and returns the number of a signal that ends a wait, or 0.
func stopped(incoming <-chan os.Signal) int {
	pause := time.NewTimer(lookAgain)
	defer pause.Stop()
	for {
		select {
		case sig := <-incoming:
			if ends(sig) {
				return number(sig)
			}
		case <-pause.C:
			return 0
		}
	}
}

// execute runs the command under the lease, releases the lock and returns the exit status.
func (c *Command) execute(
	ctx context.Context, path string, lease *core.Lease, streams Streams, log logger,
	incoming, stops <-chan os.Signal, loss <-chan core.Loss,
) int {
	granted := time.Now()
	speak := streams.Voice.hush()
	child, err := start(path, c.args, append(os.Environ(),
		"INTERLOCK_KEY="+c.key, fmt.Sprintf("INTERLOCK_TOKEN=%d", lease.Token()),
		heldEnv+"="+strings.TrimPrefix(os.Getenv(heldEnv)+","+grant(c.key, lease.Token()), ",")), streams)
	speak()
	if err != nil {
		_ = lease.Release(ctx) // nothing ran under it
		return log.notStarted(err)
	}
	w := watch{command: c, lease: lease, child: child, log: log}
	w.until(incoming, stops)
	released := c.leave(ctx, lease, granted, log)
	child.restore(streams.Stdin)
	return w.status(released, loss)
}

// leave releases the lock, or leaves it to the store for the rest of the time that it is kept at least.
func (c *Command) leave(ctx context.Context, lease *core.Lease, granted time.Time, log logger) error {
	if rest := c.least - time.Since(granted); rest >= leastKept {
		if _, err := lease.HandOver(ctx, rest); errors.Is(err, core.ErrLost) {
			return err
		} else if err != nil {
			log.printf("the lock %q could not be kept for %v more: %v", c.key, rest.Round(time.Millisecond), err)
		}
	}
	return lease.Release(ctx) // nothing, after a hand-over
}

// service is the text that lists of locks show next to the host and the number of this
// process: the program that runs, cut to the length that there is for it.
func (c *Command) service() string {
	name := "run " + filepath.Base(c.args[0])
	return name[:min(len(name), maxService)]
}

// maxService is the length that core.Service accepts.
const maxService = 128

// lock takes the lock. If it returns no lease, it returns the exit status. The lease
// lasts no longer than ctx.
func (c *Command) lock(
	ctx context.Context, cancel context.CancelFunc, locker *core.Locker, incoming <-chan os.Signal, streams Streams, log logger,
) (*core.Lease, int) {
	var lease *core.Lease
	taken := make(chan error, 1)
	go func() {
		var err error
		lease, err = c.take(ctx, locker, streams, log)
		taken <- err
	}()
	for {
		select {
		case err := <-taken:
			return lease, log.notTaken(err)
		case sig := <-incoming:
			if !ends(sig) {
				continue // it is for the command, which there is not
			}
			cancel()
			if err := <-taken; err == nil {
				_ = lease.Release(ctx) // it came at the last moment
			}
			return nil, statusSignal + number(sig)
		}
	}
}

// logger tells the user of the command what to know.
type logger struct {
	log func(string)
	key string
}

func (l logger) printf(format string, args ...any) { l.log(fmt.Sprintf(format, args...)) }

// notTaken says why there is no lock, and returns the exit status.
func (l logger) notTaken(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, core.ErrFull):
		l.printf("no permit of %q was to be had in time: all are taken", l.key)
		return StatusBusy
	case errors.Is(err, core.ErrHeld):
		l.printf("the lock %q was not to be had in time: another process holds it", l.key)
		return StatusBusy
	case errors.Is(err, core.ErrKey):
		l.printf("%v", err)
		return StatusUsage
	case errors.Is(err, core.ErrUnavailable), errors.Is(err, core.ErrNotReplicated):
		l.printf("the lock %q could not be taken: %v", l.key, err)
		return StatusUnavailable
	}
	l.printf("the lock %q could not be taken: %v", l.key, err)
	return StatusInternal
}

// notStarted says why there is no command, and returns the exit status that shells
// have for it.
func (l logger) notStarted(err error) int {
	l.printf("%v", err)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return StatusNotFound
	}
	return StatusNotExecutable
}
