package once

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
)

const day = 24 * time.Hour

// In makes the periods of [Per] begin at midnight in a location, by the calendar there: a
// day of 23 or 25 hours is one day. The period is a number of days, of 24 hours each. All
// processes must give the same location. [Do] ignores it. Default, and if the location is
// nil: UTC.
//
//	berlin, err := time.LoadLocation("Europe/Berlin")
//	err = once.Per(ctx, engine, "send-reports", 24*time.Hour, sendReports, once.In(berlin))
func In(location *time.Location) Option {
	return func(f *function) { f.location = location }
}

// tick is the text of the period that has an instant.
func tick(at time.Time, period time.Duration, in *time.Location) string {
	if in == nil {
		return at.UTC().Truncate(period).Format(time.RFC3339Nano)
	}
	year, month, date := at.In(in).Date()
	// The date in UTC, where all days have 24 hours. The zone keeps this text apart from
	// the text of a period in UTC.
	return time.Date(year, month, date, 0, 0, 0, 0, time.UTC).Truncate(period).Format(time.DateOnly) + " " + in.String()
}

// maxPeriod is the longest period of Per: it is doubled for the retention.
const maxPeriod = 366 * day

// early is how much before its beginning a call counts for a period. A timer may fire
// early, and the clocks of two processes differ: without it a call that comes just before
// midnight finds that the day's run is done, and the next one comes a day later.
func early(period time.Duration) time.Duration { return min(period/20, time.Second) }

// Per makes a singleton job, as cron needs on several hosts: it runs fn once in each period, over all processes on the store.
// Every process calls it from its own schedule, as often as it wants.
//
//	err := once.Per(ctx, engine, "send-reports", 24*time.Hour, sendReports)
//
// [time.Time.Truncate] makes the periods, in UTC: a day begins at midnight in UTC, an
// hour at its full hour, a week on Monday. [In] makes them in another location. A job with
// a local time needs it: each day at 1:30 in Berlin is 0:30 in UTC in winter and 23:30 in
// summer, so that in spring two of its days are one day in UTC, and a run is missing. The
// clock is the calling process's. A call
// counts for the next period if that begins within a second, or within a twentieth of
// the period if that is less: timers fire early. name names the job; two periods with
// one name are two jobs. period is positive and at most 366 days. Records are kept for
// two periods, or for the engine's [idempotency.Retention] if that is longer.
//
// Per returns nil if fn has succeeded in this period, in any process. Its other
// errors are the errors of [Do]: after an error of fn the next call of the period runs it
// again, unless the error is [Final]. [idempotency.ErrInFlight] says that a process
// runs it at this moment. A process that dies in the middle is followed by the next
// call after the [idempotency.Lease]; with [idempotency.Strict], or after
// [idempotency.MarkEffect], by none.
//
// A run that takes longer than a period overlaps with the next one, unless the engine
// has a lock ([idempotency.Under]). For a schedule that is none of periods (the first
// of a month), or that knows the time of its tick, call [Do] with that time in the key,
// and a Retention that is longer than the time for which processes may ask.
func Per(
	ctx context.Context, engine *idempotency.Engine, name string, period time.Duration, fn func(ctx context.Context) error, opts ...Option,
) error {
	key, opts, err := keyOfPeriod(name, period, opts)
	if err != nil {
		return err
	}
	if engine.Retention() < 2*period {
		engine = engine.With(idempotency.Retention(2 * period)) // or a tick would be forgotten before its end
	}
	_, err = Do(ctx, engine, key, struct{}{}, func(ctx context.Context, _ struct{}) (struct{}, error) {
		return struct{}{}, fn(ctx)
	}, opts...)
	return err
}

// LookPer returns how far the run of [Per] is in the present period, without running anything:
// [idempotency.StageFinished] after a run that succeeded. It takes the arguments and options of Per, and returns the
// errors of [Look].
func LookPer(ctx context.Context, engine *idempotency.Engine, name string, period time.Duration, opts ...Option) (idempotency.Stage, error) {
	key, opts, err := keyOfPeriod(name, period, opts)
	if err != nil {
		return "", err
	}
	_, stage, err := Look[struct{}](ctx, engine, key, opts...)
	return stage, err
}

// keyOfPeriod is the key of a job in the present period, with the options for it.
func keyOfPeriod(name string, period time.Duration, opts []Option) (key string, all []Option, err error) {
	switch {
	case period <= 0 || period > maxPeriod:
		return "", nil, fmt.Errorf("%w: Per(%q, %v): the period must be positive and at most %v", core.ErrConfig, name, period, maxPeriod)
	case name == "":
		return "", nil, fmt.Errorf("%w: Per without a name", core.ErrConfig)
	}
	var in function
	for _, o := range opts {
		if o != nil {
			o(&in)
		}
	}
	if in.location != nil && period%day != 0 {
		return "", nil, fmt.Errorf("%w: Per(%q, %v) with In: the period must be whole days, of 24 h each", core.ErrConfig, name, period)
	}
	key = fmt.Sprintf("%v %s %s", period, tick(time.Now().Add(early(period)), period, in.location), name)
	return key, append([]Option{Scoped("interlock.OncePer")}, opts...), nil
}
