package riverlock

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/interlock-go/interlock/core/idempotency/once"
)

// waitingSince is the name in the metadata of a job of the time of its first refusal.
const waitingSince = "interlock_waiting_since"

// setMetadata is river.MetadataSet. It works in a worker of River alone.
var setMetadata = river.MetadataSet

// refused returns the error for a job that did not run: a snooze if the reason passes by itself.
func (o *options) refused(ctx context.Context, job *rivertype.JobRow, err error) error {
	var refused *once.RefusedError
	if !errors.As(err, &refused) || refused.RetryAfter == 0 {
		return permanent(err)
	}
	waits := waiting(job)
	now := time.Now()
	switch {
	case waits.Since.IsZero():
		if failed := setMetadata(ctx, waitingSince, now.UTC()); failed != nil {
			return errors.Join(err, failed)
		}
	case now.Sub(waits.Since) >= o.giveUp:
		return err
	}
	return river.JobSnooze(o.pause(waits.Snoozes))
}

// entered notes that the job has its lock: the time of a later refusal counts anew.
func (o *options) entered(ctx context.Context, job *rivertype.JobRow) {
	if !waiting(job).Since.IsZero() {
		_ = setMetadata(ctx, waitingSince, nil) // it has worked for the refusal
	}
}

// pause is for how long a job is snoozed that was snoozed so many times. The upper bound doubles
// with each time, the lower one stays: a job that has waited for long must not come less often
// than all that are new, or it would never find the lock free.
func (o *options) pause(snoozes int) time.Duration {
	upper := o.least
	for range snoozes + 1 {
		if upper = 2 * upper; upper >= o.most {
			upper = o.most
			break
		}
	}
	return o.least + rand.N(upper-o.least+1)
}

// waits are the snoozes of a job, as its metadata counts them.
type waits struct {
	Since   time.Time `json:"interlock_waiting_since"`
	Snoozes int       `json:"snoozes"` // River counts them
}

func waiting(job *rivertype.JobRow) waits {
	var w waits
	_ = json.Unmarshal(job.Metadata, &w) // without them the job waits since now
	return w
}
