package run

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
)

const (
	// awayWait is how long a run without -wait tries to reach a server: longer than a restart
	// takes, and too short to wait for a host with a wrong name.
	awayWait = time.Minute
	// minPause and maxPause bound the pauses between two tries; they double.
	minPause = 100 * time.Millisecond
	maxPause = time.Second
	// silentMore is for how much longer than a silent holder's lease a run waits: for the drift of clocks, and requests.
	silentMore = 5 * time.Second
	// sayEvery is the time between two lines about a server that cannot be reached.
	sayEvery = 30 * time.Second
)

// take waits for the lock. The wait includes a server that cannot be reached, or has too few
// replicas, as it includes another holder. A server that is not ready (READONLY, LOADING) is
// waited for by the locker, which logs the cause.
//
// A run that does not wait meets a lock of a process that has died. A store without a clock learns that only from
// a process that stays: so the run stays, for a lease.
func (c *Command) take(ctx context.Context, locker *core.Locker, streams Streams, log logger) (*core.Lease, error) {
	var away, said time.Time // when the server was first out of reach, and when that was said
	until := time.Now().Add(c.wait)
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		began := time.Now()
		lease, err := locker.Lock(ctx, c.key, c.options(c.patience(until)...)...)
		if c.wait == 0 && errors.Is(err, core.ErrHeld) {
			if within := streams.held(ctx).Silent; within > 0 {
				within += silentMore
				log.printf("the holder of the lock %q gives no sign of life: run waits for up to %v", c.key, within.Round(time.Second))
				return c.outlast(ctx, locker, within, streams)
			}
		}
		if err == nil || c.wait == 0 || ctx.Err() != nil || !passes(err) {
			return lease, err
		}
		now := time.Now()
		if away.IsZero() || now.Sub(began) >= awayWait { // it was reached meanwhile
			away, pause = now, minPause
		}
		end := until
		if c.wait == forever {
			end = away.Add(awayWait)
		}
		if !now.Add(pause).Before(end) {
			return nil, err
		}
		if now.Sub(said) >= sayEvery {
			said = now
			log.printf("the lock %q cannot be asked for, and run tries again until %s: %v", c.key, end.Format(time.TimeOnly), err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// outlast waits for the lock of a holder that gives no sign of life, until the holder gives one.
func (c *Command) outlast(ctx context.Context, locker *core.Locker, within time.Duration, streams Streams) (*core.Lease, error) {
	waits, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for tick := time.NewTicker(maxPause); ; {
			select {
			case <-tick.C:
			case <-waits.Done():
				tick.Stop()
				return
			}
			if held := streams.held(waits); held.By != "" && held.Silent == 0 {
				cancel(fmt.Errorf("%w: %q", core.ErrHeld, c.key))
			}
		}
	}()
	return locker.Lock(waits, c.key, c.options(core.Wait(within))...)
}

// options adds the kind of the lock to other options.
func (c *Command) options(other ...core.Option) []core.Option { return append(other, c.kind...) }

// patience returns how long the locker is to wait.
func (c *Command) patience(until time.Time) []core.Option {
	switch c.wait {
	case forever:
		return nil
	case 0:
		return []core.Option{core.Wait(0)}
	}
	return []core.Option{core.Wait(max(time.Until(until), time.Millisecond))}
}

// passes reports whether the reason that there is no lock passes by itself. A refusal by the
// server, such as a wrong password, does not. (The locker itself waits for a server that is not
// ready, and returns only when the wait is over.)
func passes(err error) bool {
	return errors.Is(err, core.ErrNotReplicated) || errors.Is(err, core.ErrUnavailable) && !refused(err)
}

// refused reports whether an error is the answer of a server that refuses the same request later, too, or is about
// its certificate.
func refused(err error) bool {
	var ofRedis redis.Error
	var ofPostgres interface{ SQLState() string }
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &ofRedis), errors.Is(err, casstore.ErrRefused), errors.As(err, &untrusted):
		return true
	case errors.As(err, &ofPostgres) && len(ofPostgres.SQLState()) == 5:
		// The login; the database; the schema; a right or a table, which is missing.
		return slices.Contains([]string{"28", "3D", "3F", "42"}, ofPostgres.SQLState()[:2])
	}
	return false
}
