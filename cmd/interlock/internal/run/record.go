package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
)

const (
	// keptRuns is the retention of a key's last run. It exceeds the longest period.
	keptRuns = 800 * 24 * time.Hour
	// lookAgain is the pause between two looks at a run of this period by another host.
	lookAgain = time.Second
)

// Last is the kept part of the last run of a key.
type Last struct {
	Host   string    `json:"host"`
	PID    int       `json:"pid"`
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended"`
	Status int       `json:"status"`
	Token  int64     `json:"token"`
}

// Records keeps the runs of commands in a store. It is safe for concurrent use.
type Records struct {
	engine *idempotency.Engine
	in     []once.Option // the location of periods
}

// errNoRecords is for a store without idempotency records.
var errNoRecords = errors.New("-per and -record are for Redis and PostgreSQL: other servers keep no records")

// NewRecords returns the records in a store. A claim outlives its process by lease. Periods of whole
// days begin at midnight of the location, nil for UTC. Close it at the end.
func NewRecords(store core.Store, lease time.Duration, location *time.Location) (*Records, error) {
	s, ok := store.(idempotency.Store)
	if !ok {
		return nil, errNoRecords
	}
	engine, err := idempotency.New(s, idempotency.Global(), idempotency.Name("interlock run"),
		idempotency.Lease(lease), idempotency.MaxHold(maxWait), idempotency.Retention(keptRuns))
	if err != nil {
		return nil, err
	}
	r := &Records{engine: engine}
	if location != nil {
		r.in = append(r.in, once.In(location))
	}
	return r, nil
}

// Close waits until results are stored that the store has not confirmed yet, or for the end of ctx.
func (r *Records) Close(ctx context.Context) error { return r.engine.Close(ctx) }

// the space of keys of last runs.
const scopeOfRuns = "interlock.run"

// Last returns the last run of a key; false if none is kept.
func (r *Records) Last(ctx context.Context, key string) (Last, bool, error) {
	last, stage, err := once.Look[Last](ctx, r.engine, key, once.Scoped(scopeOfRuns))
	return last, err == nil && stage == idempotency.StageFinished, err
}

// Done returns how far the run of a key is in the present period.
func (r *Records) Done(ctx context.Context, key string, period time.Duration) (idempotency.Stage, error) {
	return once.LookPer(ctx, r.engine, key, period, r.in...)
}

// keep stores the last run of a key in place of the one before. Of two that end at the same moment
// one is kept.
func (r *Records) keep(ctx context.Context, key string, last Last) error {
	if err := r.engine.Forget(ctx, once.ScopeOf(scopeOfRuns), key); err != nil {
		return err
	}
	_, err := once.Do(ctx, r.engine, key, struct{}{}, func(context.Context, struct{}) (Last, error) { return last, nil },
		once.Scoped(scopeOfRuns))
	if errors.Is(err, idempotency.ErrInFlight) {
		return nil // another host keeps its own
	}
	return err
}

// errStatus is the error of a command that did not succeed: its period has no run yet.
var errStatus = errors.New("the command did not end with status 0")

// recorded executes the command once in its period, and keeps the run. ran is false if the command was not
// started, for the reason that status is.
func (c *Command) recorded(ctx context.Context, r *Records, token int64, stopped func() int, log logger, execute func() int) (status int, ran bool) {
	var last Last
	run := func(context.Context) error {
		ran = true
		last.Host, _ = os.Hostname()
		last.PID, last.Token, last.Began = os.Getpid(), token, time.Now()
		status = execute()
		last.Ended, last.Status = time.Now(), status
		if status != 0 {
			return errStatus
		}
		return nil
	}
	err := c.inPeriod(ctx, r, stopped, run)
	var sig errStopped
	switch {
	case errors.As(err, &sig):
		return statusSignal + int(sig), false
	case ran:
		if err != nil && !errors.Is(err, errStatus) {
			log.printf("the run of %q is not kept, and a later one in this period runs the command again: %v", c.key, err)
		}
		if err := r.keep(ctx, c.key, last); err != nil {
			log.printf("the last run of %q is not kept: %v", c.key, err)
		}
		return status, true
	case err == nil:
		text := ""
		if before, ok, err := r.Last(ctx, c.key); err == nil && ok && before.Status == 0 {
			text = fmt.Sprintf(": by %s, which ended %s", before.Host, before.Ended.Format(time.DateTime))
		}
		log.printf("%q has run in this period%s", c.key, text)
		return 0, false
	case errors.Is(err, idempotency.ErrInFlight):
		log.printf("%q is run by another host in this period, or its wrapper died less than %v ago", c.key, c.ttl)
		return c.busy, false
	case errors.Is(err, core.ErrUnavailable):
		log.printf("the runs of %q cannot be read: %v", c.key, err)
		return StatusUnavailable, false
	}
	log.printf("the runs of %q cannot be kept: %v", c.key, err)
	return StatusInternal, false
}

// errStopped is the number of a signal that ended a wait.
type errStopped int

func (e errStopped) Error() string { return fmt.Sprintf("signal %d", int(e)) }

// inPeriod calls run unless the period has a run. If the wrapper of a run has died, another host follows after its
// lease: a command with a wait stays for that. stopped returns the number of a signal that ends the wait, and
// 0 after a pause.
func (c *Command) inPeriod(ctx context.Context, r *Records, stopped func() int, run func(context.Context) error) error {
	if c.per == 0 {
		return run(ctx)
	}
	for until := time.Now().Add(c.ttl + silentMore); ; {
		err := once.Per(ctx, r.engine, c.key, c.per, run, r.in...)
		if c.wait == 0 || !errors.Is(err, idempotency.ErrInFlight) || time.Now().After(until) {
			return err
		}
		if sig := stopped(); sig != 0 {
			return errStopped(sig)
		}
	}
}
