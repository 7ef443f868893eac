package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
)

// minLeadPause and maxLeadPause bound the pauses of Lead after an error of the store.
const (
	minLeadPause = 100 * time.Millisecond
	maxLeadPause = 5 * time.Second
)

// Lead is leader election: it runs fn on one process at a time, the process that holds the lock of key. All
// processes call it, and all but one wait. When the process that leads dies, another
// one leads as soon as the lease has ended ([Watchdog]).
//
//	err := core.Lead(ctx, locker, "leader/mailer", func(ctx context.Context) error {
//		token := core.LeaseFromContext(ctx).Token() // fences the leader's writes
//		return deliver(ctx, token)                  // until ctx ends
//	})
//
// fn runs under [Lease.Context]. When the lock is lost, that context ends, and fn has to
// return. Another process may lead before it does: what fn writes needs the fencing
// token ([Lease.Token]). Lead then waits for the lock again, and runs fn once more when
// it holds the lock anew. So it does after [MaxHold], which makes leaders take turns.
// The result of fn after a loss does not count.
//
// Lead returns
//
//   - what fn returns while the lock is held, nil too: fn is done. It also is done when
//     ctx has ended. The lock is released first, and the next process leads.
//   - an error that matches [context.Cause] of ctx, if ctx ends while Lead waits.
//   - [ErrClosed] if the locker is closing. End ctx before [Locker.Close], which waits
//     for fn.
//   - an error that does not pass by itself: [ErrKey], [ErrConfig], [ErrKeyOccupied],
//     [ErrUpgrade].
//
// While the store cannot be reached, or refuses the request, Lead tries again, after
// pauses of 0.1 s that grow to 5 s. It logs the cause at once and then once a minute
// ([log/slog]). A panic of fn passes through, after the release. It accepts the options of
// [Locker.Lock]. [Wait] has no effect; [Shared] and [Permits] are refused ([ErrConfig]),
// because several processes would lead at the same time, and so are [Newest] and [OneWaiter].
func Lead(ctx context.Context, l *Locker, key string, fn func(ctx context.Context) error, opts ...Option) error {
	c, err := l.base.forCall(opts)
	if err != nil {
		return err
	}
	if c.terms.Kind.Place() {
		return fmt.Errorf("%w: Lead with Shared or Permits: several processes would lead at the same time", ErrConfig)
	}
	if c.terms.Line != driver.InTurn {
		return fmt.Errorf("%w: Lead with %s: a process that waits to lead does not end the leader's work, nor the wait of others", ErrConfig, lines[c.terms.Line])
	}
	c.terms.Wait, c.terms.Whole, c.standby = waitForever, true, true // a leader is to last
	var pause time.Duration
	var failures logs.Throttle
	for {
		lease, err := l.lockOne(ctx, key, c)
		switch {
		case err == nil:
			pause = 0
			var lost bool
			if lost, err = lead(ctx, lease, fn); !lost || ctx.Err() != nil {
				return err
			}
		case ctx.Err() != nil || !passes(err):
			return err
		case !errors.Is(err, ErrHeld):
			// Without a line this process would look like a process that waits for its turn.
			if n := failures.Count(time.Now()); n > 0 {
				l.calls.log.Warn("interlock: Lead gets no answer from the store, and tries again", "key", key, "tries", n, "error", err)
			}
		}
		pause = min(max(2*pause, minLeadPause), maxLeadPause)
		select {
		case <-time.After(pause/2 + rand.N(pause/2)): // not all processes at once
		case <-ctx.Done():
			return fmt.Errorf("interlock: waiting to lead by %q: %w", key, context.Cause(ctx))
		}
	}
}

// lead runs fn under a lease, and reports whether the lock was lost meanwhile.
func lead(ctx context.Context, lease *Lease, fn func(context.Context) error) (lost bool, err error) {
	defer lease.Release(ctx) //nolint:errcheck // Err reports a loss; the observer gets the rest
	err = fn(lease.Context())
	lostBy := lease.Err()
	return lostBy != nil && !errors.Is(lostBy, ErrReleased), err
}

// passes reports whether the reason that a lock was not granted passes by itself.
func passes(err error) bool {
	return errors.Is(err, ErrHeld) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotReplicated)
}
