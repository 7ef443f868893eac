package redistest

import (
	"context"
	"errors"
	"testing"
	"time"
)

// stop is an error that ends poll at once: trying again cannot help.
type stop struct{ error }

func (s stop) Unwrap() error { return s.error }

// poll calls try until it returns nil, with short pauses that grow to 50 ms:
// Redis announces neither that it is up nor that a failover has ended. The error
// is try's last error that was not merely the end of ctx.
func poll(ctx context.Context, try func(context.Context) error) error {
	var last error
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-timer.C:
		}
		err := try(ctx)
		if err == nil {
			return nil
		}
		if s := (stop{}); errors.As(err, &s) {
			return s.error
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		timer.Reset(pause)
	}
}

// Eventually waits until try returns nil, up to the given time, and fails the test
// with try's last error otherwise. It is for conditions that only the server
// knows; an event of this process deserves a channel.
func Eventually(tb testing.TB, within time.Duration, try func(context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), within)
	defer cancel()
	if err := poll(ctx, try); err != nil {
		tb.Fatalf("redistest: not within %v: %v", within, err)
	}
}
