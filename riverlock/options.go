package riverlock

import (
	"fmt"
	"net/url"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/interlock-go/interlock/core/idempotency/once"
)

// Option changes a middleware. A nil Option has no effect.
type Option func(*options)

type options struct {
	key         func(job *rivertype.JobRow) string
	with        []once.Option
	least, most time.Duration // of a snooze
	giveUp      time.Duration
}

func newOptions(opts []Option) *options {
	o := &options{key: KeyOf, least: time.Second, most: 30 * time.Second, giveUp: time.Hour}
	for _, option := range opts {
		if option != nil {
			option(o)
		}
	}
	return o
}

// Snooze says for how long a job is snoozed that was refused for the time being: for a random
// time of at least least. The upper bound doubles with each snooze of the job, up to most. River
// looks for jobs that are snoozed for more than five seconds once in that time. Snooze panics
// unless least is positive and most is not less. Default: a second, and thirty.
func Snooze(least, most time.Duration) Option {
	if least <= 0 || most < least {
		panic(fmt.Sprintf("riverlock: Snooze(%v, %v): the first must be positive, and the second not less", least, most))
	}
	return func(o *options) { o.least, o.most = least, most }
}

// GiveUp says for how long a job is snoozed in all. A refusal after d is an error of the job:
// River counts it, retries the job as its policy says, and discards it after the last attempt.
// The time begins at the first refusal, and anew when the job has run. GiveUp panics unless d is
// positive. Default: an hour.
func GiveUp(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("riverlock: GiveUp(%v): must be positive", d))
	}
	return func(o *options) { o.giveUp = d }
}

// Key says which jobs are the same work for [Idempotent]: those with the same key. The key names
// the work and not only its object ("charge/order-7"), since two kinds of jobs with one key are
// refused. A job with an empty key, or with a key of more than 512 bytes, is cancelled. Default:
// [KeyOf].
func Key(f func(job *rivertype.JobRow) string) Option {
	return func(o *options) {
		if f != nil {
			o.key = f
		}
	}
}

// KeyOf is the key of a job unless [Key] says otherwise: the key that [Carry] has given it, or
// else its kind, its ID and the time of its insertion. Two schemas of River count the same IDs.
func KeyOf(job *rivertype.JobRow) string {
	if key := metadata(job)[keyName]; key != "" {
		return key
	}
	return fmt.Sprintf("%s/%d@%d", url.PathEscape(job.Kind), job.ID, job.CreatedAt.UnixMicro())
}

// With passes options to [once.Do]. Default: none.
//
//	riverlock.Idempotent(engine, riverlock.With(once.Cancelable()))
func With(opts ...once.Option) Option {
	return func(o *options) { o.with = append(o.with, opts...) }
}
